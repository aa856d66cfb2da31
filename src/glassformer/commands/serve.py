"""`glassformer serve`: runs as a server, for the browser and for programs."""

from functools import partial
from shlex import quote

from glassformer.serve.config import ServeConfig
from glassformer.terminal import say

HEADINGS = {
    "terms": ("glossary", "keep", "placeholders"),
    "who may use it": ("keys", "new_key", "session_hours", "allow_host", "cors_origin", "log_text"),
    "limits of a request": (
        *("max_body_bytes", "max_lines", "max_line_chars", "max_chars", "max_beam", "max_n_best", "max_length"),
        *("max_source_tokens", "max_terms", "max_attention_lines", "max_headers", "max_header_bytes"),
    ),
    "limits of the server": (
        *(
            "max_queue",
            "max_chars_per_minute",
            "max_sign_ins_per_minute",
            "max_connections",
            "deadline_seconds",
            "slow_seconds",
        ),
        *("keep_alive_seconds", "drain_seconds"),
    ),
    "jobs": ("max_file_bytes", "max_jobs", "max_job_lines", "job_minutes"),
    "batches": ("gather_ms", "batch_tokens", "share_batches", "help"),
}
"""Flags below each heading."""


def serve(config: ServeConfig) -> int:
    """Serve until a signal comes; or make a key, and print it once."""
    config.check()
    if config.keys is not None and config.new_key is not None:
        from glassformer.serve.keys import add_key

        add_key(config.keys, config.new_key, show=partial(print, flush=True))
        command = f"glassformer serve RUN --keys {quote(str(config.keys))}"
        say(f"keep this key, which is never shown again; start the server with {command}")
        return 0
    from glassformer.serve.languages import open_runs

    runs = open_runs(config.run, config.languages)
    try:
        from glassformer.serve.server import run_server
    except ImportError as error:
        raise ImportError(f'serving needs {error.name}: pip install "glassformer[serve]"') from None
    run_server(config, runs)
    return 0
