"""Limits of a request: the size of its header fields, and its body as it arrives."""

import asyncio

from glassformer.serve.config import ServeConfig
from glassformer.serve.guard.asgi import Receive, Scope
from glassformer.serve.guard.visits import Visit
from glassformer.serve.workers.messages import Refusal

SINGLE = ("host", "content-length", "content-type", "authorization", "origin")
"""Header fields that may be given once."""


def read_headers(scope: Scope, config: ServeConfig) -> dict[str, str]:
    """Return the header fields by their names; Refusal for too many, too long ones, or two where one may be."""
    fields = scope["headers"]
    if len(fields) > config.max_headers:
        raise Refusal("headers", f"a request may have at most {config.max_headers} header fields")
    sizes = [len(name) + len(value) for name, value in fields]
    if max(sizes, default=0) > config.max_header_bytes or sum(sizes) > 8 * config.max_header_bytes:
        raise Refusal("headers", f"a header field may have at most {config.max_header_bytes:,} bytes")
    found: dict[str, str] = {}
    for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields):
        if name in found and name in SINGLE:
            raise Refusal("invalid", f"the header field {name} may be given once")
        found[name] = value
    return found


def check_encoding(headers: dict[str, str]) -> None:
    """Raise Refusal for a packed body: a small one may become a very large one."""
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refusal("encoding", "a body must be sent as it is, without Content-Encoding")


async def read_body(headers: dict[str, str], receive: Receive, visit: Visit, *, most: int, seconds: float) -> bytes:
    """Return the body, which is counted as it arrives; Refusal for one that is too large or too slow.

    Raises ConnectionAbortedError where the client leaves before it is whole.
    """
    told = headers.get("content-length", "0")
    if len(told) > 15 or (told.isdecimal() and int(told) > most):
        raise Refusal("too_large", f"a body may have at most {most:,} bytes")
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionAbortedError
                parts.append(message.get("body", b""))
                visit.received += len(parts[-1])
                if visit.received > most:
                    raise Refusal("too_large", f"a body may have at most {most:,} bytes")
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise Refusal("slow", f"the request took longer than {seconds:g} s to arrive") from None
