"""Every setting and limit of the server, with its default. One flag each on the command line. Loads no FastAPI."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from glassformer.checks import BatchTokens, Count, Device, Flag, Natural, Number, Positive, Threads, Whole
from glassformer.docstrings import with_fields
from glassformer.errors import ConfigError
from glassformer.generation.config import HYPOTHESES

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
    """The address to listen on. Another than this machine's own needs --keys."""
    port: Port = 8000
    """The port to listen on; 0 takes a free one."""
    workers: Copies = 1
    """Processes for each run, each with a copy of its model. One uses all cores."""
    languages: Annotated[tuple[str, ...], Flag("RUN=SOURCE-TARGET")] = ()
    """Codes of a run's languages, such as runs/news=en-de, in place of those that it was trained with. Codes that have
    a hyphen of their own are joined by a colon: en:pt-BR."""
    device: Annotated[Device, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: Annotated[str, Flag("TYPE")] = "auto"
    """float32, bfloat16, float16, int8, or auto: what is fastest here (int8 on recent CPUs)."""
    threads: Threads | None = None
    """CPU threads of each process. Left out: torch's choice."""

    keys: Path | None = None
    """File of API keys. With it every request needs a key, but those for the page at / and for /health/live."""
    new_key: Annotated[str, Flag("NAME")] | None = None
    """Make a key of this name, add it to the file --keys, print it once, and end."""
    allow_host: Annotated[tuple[str, ...], Flag("NAME")] = ()
    """Names by which the server may be called, besides localhost and addresses in numbers. Other names are refused:
    that keeps a web page from reaching it by a name of its own."""
    cors_origin: Annotated[tuple[str, ...], Flag("ORIGIN")] = ()
    """Origins whose pages may use the server, such as https://example.org. Left out: none but its own."""
    log_text: bool = False
    """Write the text of requests to the log too."""

    max_body_bytes: Bytes = 1 << 20
    """Largest body of a request."""
    max_file_bytes: Bytes = 8 << 20
    """Largest file of a job, with the form around it."""
    max_lines: Count = 128
    """Most lines of a request."""
    max_line_chars: Count = 5_000
    """Most characters of a line."""
    max_chars: Count = 50_000
    """Most characters of a request."""
    max_beam: Annotated[int, HYPOTHESES] = 10
    """Widest beam."""
    max_n_best: Annotated[int, HYPOTHESES] = 5
    """Most translations of a line."""
    max_length: Annotated[int, Whole(at_least=1, limit=4096)] = 256
    """Longest translation, in tokens."""
    max_source_tokens: Annotated[int, Whole(at_least=2, limit=4096)] = 1024
    """Longest line, in tokens with </s>."""
    max_attention_lines: Count = 8
    """Most lines of a request that wants attention."""
    max_queue: Count = 100
    """Most requests of a run that wait or are worked on; then comes 503."""
    max_chars_per_minute: Natural = 1_000_000
    """Most characters a minute for each key, or without keys for each client's address; 0: any number."""
    max_connections: Count = 512
    """Most connections at a time."""
    max_headers: Count = 100
    """Most header fields of a request."""
    max_header_bytes: Annotated[int, Whole(at_least=256, limit=1 << 20)] = 8192
    """Longest header field; all together have at most eight times that."""
    max_jobs: Count = 20
    """Most jobs at a time, done ones whose result was not removed among them."""
    max_job_lines: Count = 100_000
    """Most lines of a job."""
    job_minutes: Positive = 60.0
    """Minutes that the result of a job is kept."""
    deadline_seconds: Seconds = 30.0
    """Longest time that a translation may take. The search looks at it at each step."""
    slow_seconds: Seconds = 60.0
    """Longest time that a client may take to send a request, or to read a part of an answer."""
    keep_alive_seconds: Seconds = 5.0
    """How long a connection without a request stays open."""
    drain_seconds: Seconds = 25.0
    """How long what is under way may take once the server is to end."""
    gather_ms: Annotated[float, Number(at_least=0, limit=1_000)] = 3.0
    """How long a batch waits for a further request after each that came; in all five times that, or if that is more,
    a 25th of the time that the batch before it took, up to 0.1 s."""
    batch_tokens: BatchTokens = 4096
    """Most source tokens, times the beam, in a batch, padding included."""
    share_batches: bool = False
    """Let requests share batches even where the last bits of their numbers then depend on each other: in all
    precisions but int8 with the extra fast, where they share batches anyway."""

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
                f"host must be an address of this machine alone, such as 127.0.0.1, got {self.host}: to be reached "
                "from elsewhere it needs `keys`; make one with glassformer serve --keys keys.json --new-key NAME"
            )
        if self.max_n_best > self.max_beam:
            raise ConfigError(
                f"max_n_best must be at most max_beam, got max_n_best {self.max_n_best} and max_beam {self.max_beam}"
            )

    @property
    def limits(self) -> dict[str, int | float]:
        """The limits that a client may want to know."""
        names = (
            *("max_lines", "max_line_chars", "max_chars", "max_beam", "max_n_best", "max_length", "max_source_tokens"),
            *("max_attention_lines", "max_body_bytes", "max_file_bytes", "max_job_lines", "deadline_seconds"),
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
