"""Every setting and limit of the server, with its default. One flag each on the command line. Loads no FastAPI."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from glassformer.errors import ConfigError, shown
from glassformer.generation.config import HYPOTHESES
from glassformer.settings.checks import BatchTokens, Count, Device, Flag, Natural, Number, Positive, Threads, Whole
from glassformer.settings.docstrings import with_fields

Port = Annotated[int, Whole(at_least=0, at_most=65_535)]
Copies = Annotated[int, Whole(at_least=1, limit=64)]
Bytes = Annotated[int, Whole(at_least=1, limit=1 << 30)]
Seconds = Annotated[float, Number(above=0, limit=86_400)]


@with_fields
@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serve runs over HTTP: LibreTranslate's API, a richer one of its own, and a page.

    It listens on this machine alone, unless --keys and --host say otherwise. SIGTERM and Ctrl-C end it once what is
    under way is answered.
    """

    run: Annotated[tuple[Path, ...], Flag("RUN", positional=True)] = ()
    """The run folders that training left, one for each pair of languages."""
    host: Annotated[str, Flag("ADDRESS")] = "127.0.0.1"
    """The address to listen on. One that other machines can reach needs --keys."""
    port: Port = 8000
    """The port to listen on; 0 takes a free one."""
    workers: Copies | None = None
    """The number of processes for each run, each with a copy of its model. Without it there are two on a CPU that has
    several cores, and one elsewhere."""
    languages: Annotated[tuple[str, ...], Flag("RUN=SOURCE-TARGET")] = ()
    """The codes of a run's languages, such as runs/news=en-de, in place of those that it was trained with. Codes that
    have a hyphen of their own are joined by a colon: runs/news=en:pt-BR."""
    device: Annotated[Device, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: Annotated[str, Flag("TYPE")] = "auto"
    """float32, bfloat16, float16, int8, or auto: what is fastest here (int8 on recent CPUs)."""
    threads: Threads | None = None
    """The number of CPU threads of each process. Without it the processes of a run share out the cores."""

    glossary: Annotated[tuple[str, ...], Flag("FILE")] = ()
    """The files of terms, one a line: the term, a tab, its translation (several forms with | between them). If a text
    has the term, its translation has one of the forms. RUN=FILE is for one run alone."""
    keep: Path | None = None
    """The file of words that are kept as they are, a line each."""
    placeholders: Annotated[str | None, Flag("PATTERN")] = None
    """Copy what matches this regular expression as it is; default: {name}, %s, URLs, e-mail addresses, <x id="1"/>."""

    keys: Path | None = None
    """The file of API keys. With it all requests but those to /health/live need a key. People sign in at / with
    theirs."""
    new_key: Annotated[str, Flag("NAME")] | None = None
    """Make a key of this name, add it to the file of --keys, print it, and end. It is never shown again."""
    session_hours: Positive = 12.0
    """After so many hours a person who signed in has to sign in again."""
    allow_host: Annotated[tuple[str, ...], Flag("NAME")] = ()
    """The names by which the server may be called, besides localhost and addresses in numbers. Other names are refused,
    so that no web page reaches the server by a name of its own."""
    cors_origin: Annotated[tuple[str, ...], Flag("ORIGIN")] = ()
    """The origins whose pages may use the server, such as https://example.org. Without it only its own page may."""
    log_text: bool = False
    """Write the text of requests to the log, too."""

    max_body_bytes: Bytes = 1 << 20
    """The largest body that a request may have."""
    max_file_bytes: Bytes = 8 << 20
    """The largest file that a job may have, with the form around it."""
    max_lines: Count = 128
    """A request may have at most so many lines."""
    max_line_chars: Count = 5_000
    """A line may have at most so many characters."""
    max_chars: Count = 50_000
    """A request may have at most so many characters."""
    max_beam: Annotated[int, HYPOTHESES] = 10
    """The widest beam that a request may ask for."""
    max_n_best: Annotated[int, HYPOTHESES] = 5
    """A request may ask for at most so many translations of a line."""
    max_length: Annotated[int, Whole(at_least=1, limit=4096)] = 256
    """A translation may have at most so many tokens."""
    max_source_tokens: Annotated[int, Whole(at_least=2, limit=4096)] = 1024
    """A line may have at most so many tokens, with </s>."""
    max_terms: Natural = 100
    """A request may bring at most so many terms of its own."""
    max_attention_lines: Count = 8
    """A request that wants attention may have at most so many lines."""
    max_queue: Count = 100
    """At most so many requests of a run wait or are worked on. More are answered with 503."""
    max_chars_per_minute: Natural = 1_000_000
    """Each key, or without keys each address, may have so many characters a minute translated. 0 allows any number."""
    max_sign_ins_per_minute: Natural = 60
    """Each address may try so many wrong keys a minute to sign in. 0 allows any number."""
    max_connections: Count = 512
    """There may be so many connections at a time."""
    max_headers: Count = 100
    """A request may have at most so many header fields."""
    max_header_bytes: Annotated[int, Whole(at_least=256, limit=1 << 20)] = 8192
    """A header field may have so many bytes, and all together eight times as many."""
    max_jobs: Count = 20
    """There may be so many jobs at a time. Those that are done count until their result is removed."""
    max_job_lines: Count = 100_000
    """A job may have at most so many lines."""
    job_minutes: Positive = 60.0
    """The result of a job is kept for so many minutes."""
    deadline_seconds: Seconds = 30.0
    """A translation may take this many seconds. The search looks at the time at each step."""
    slow_seconds: Seconds = 60.0
    """A client may take this many seconds to send a request, or to read a part of an answer."""
    keep_alive_seconds: Seconds = 5.0
    """A connection without a request stays open for this many seconds."""
    drain_seconds: Seconds = 25.0
    """When the server is told to end, requests under way may take this many seconds."""
    gather_ms: Annotated[float, Number(at_least=0, limit=1_000)] = 3.0
    """After each request a batch waits this many milliseconds for another one, at most five times as long in all."""
    batch_tokens: BatchTokens = 4096
    """A batch may have this many source tokens, times the beam, padding included."""
    share_batches: bool = False
    """Let requests share batches even where the last bits of one request's numbers then depend on the others. In int8
    with the extra `fast` they don't, so there requests always share batches."""

    def check(self) -> None:
        """Raise ConfigError for settings that exclude one another."""
        if self.new_key is not None:
            if self.keys is None:
                raise ConfigError("new_key needs `keys`: name the file that it is added to")
            return
        if not self.run:
            raise ConfigError("serve needs RUN: the folder of a run, see glassformer serve --help")
        if self.keys is None and not is_loopback(self.host):
            raise ConfigError(
                f"host must be an address of this machine alone, such as 127.0.0.1, got {self.host}: other "
                "machines need a key, so give `keys`; glassformer serve --keys keys.json --new-key NAME makes one"
            )
        for origin in self.cors_origin:
            if not re.fullmatch(r"https?://[^/\s]+", origin):
                raise ConfigError(f"cors_origin must be an origin such as https://example.org, got {shown(origin)}")
        for name in self.allow_host:
            if not re.fullmatch(r"[^/:\s]+|\[[0-9a-fA-F:.]+\]", name):
                raise ConfigError(f"allow_host must be a name alone, such as translate.example.org, got {shown(name)}")
        if self.max_n_best > self.max_beam:
            raise ConfigError(
                f"max_n_best must be at most max_beam, got max_n_best {self.max_n_best} and max_beam {self.max_beam}"
            )

    @property
    def limits(self) -> dict[str, int | float]:
        """The limits that a client may want to know."""
        names = (
            *("max_lines", "max_line_chars", "max_chars", "max_beam", "max_n_best", "max_length", "max_source_tokens"),
            *(
                "max_attention_lines",
                "max_terms",
                "max_body_bytes",
                "max_file_bytes",
                "max_job_lines",
                "deadline_seconds",
            ),
        )
        return {name: getattr(self, name) for name in names}


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
