"""Visits: the facts about a request, and its line in the log."""

import json
import logging
import secrets
import traceback
from dataclasses import dataclass, field

from glassformer.errors import printable

LEFT = 499
"""The status, in log and metrics, of a request whose client has left before there was an answer."""
METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH")
log = logging.getLogger("glassformer.serve")


@dataclass
class Visit:
    """Keep what is known of a request, for its log line and its limits. A route finds it in the scope's state."""

    id: str = field(default_factory=lambda: secrets.token_hex(6))
    key: str = ""
    """Name of its key; the client's address where there is none, or as long as it isn't known."""
    route: str = "other"
    """The route that answers it, of which there are so many: not its path."""
    chars: int = 0
    lines: int = 0
    text: list[str] = field(default_factory=list)
    status: int = 0
    received: int = 0
    sent: int = 0


def known_method(method: str) -> str:
    """Return a method, or "other" for one that the log and the metrics don't name."""
    return method if method in METHODS else "other"


def log_visit(visit: Visit, method: str, seconds: float, *, with_text: bool) -> None:
    """Write one line about a request: sizes and durations, and its text only if that is wanted."""
    words = (
        f"id={visit.id} method={known_method(method)} route={visit.route} status={visit.status} "
        f"lines={visit.lines} chars={visit.chars} bytes_in={visit.received} bytes_out={visit.sent} "
        f"ms={1000 * seconds:.1f} key={printable(visit.key)}"
    )
    text = f" text={json.dumps(visit.text, ensure_ascii=False)}" if with_text and visit.text else ""
    log.info("%s", words + printable(text))


def log_error(error: BaseException) -> None:
    """Write where an error came, without its message, which may hold text."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s", f"{type(error).__name__}:\n{where}")
