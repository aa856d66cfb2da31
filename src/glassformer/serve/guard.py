"""Check every request before it reaches a route, as an ASGI application around the others.

The guard refuses hosts, origins, headers and bodies that are not allowed, asks for the key, ends what its client has
left, adds the headers of safety, and writes the log. It counts a body as it arrives, and hands it on whole.
"""

import asyncio
import base64
import ipaddress
import json
import logging
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from glassformer.decoding import decode_json
from glassformer.errors import printable
from glassformer.serve.config import ServeConfig
from glassformer.serve.keys import KeyFile
from glassformer.serve.meters import Meters
from glassformer.serve.workers.messages import Failure

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LIVE, READY, JOBS = "/health/live", "/health/ready", "/v1/jobs"
STATIC = "/static/"
"""Begins the paths of the page's own files. Like the page they hold nothing secret: it asks for the key itself."""
LIBRE = ("/translate", "/languages", "/frontend/settings")
"""Paths whose clients expect 403 where a key is missing, as LibreTranslate answers."""
ALWAYS = (LIVE, READY, "/health", "/metrics")
"""Paths that are answered while the server ends."""
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFETY = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
"""Headers of every answer that doesn't set them itself."""
STATUS = {
    **dict.fromkeys(("invalid", "unknown_run", "unknown_language", "too_many_lines", "too_long"), 400),
    **{"unauthorized": 401, "forbidden": 403, "not_found": 404, "wrong_method": 405, "slow": 408, "too_large": 413},
    **{"encoding": 415, "headers": 431, "too_many": 429, "failed": 500},
    **dict.fromkeys(("busy", "deadline", "worker_lost", "stopping", "starting", "cancelled"), 503),
}
"""The status of each code of `schemas.Failure`."""
ENDING = 1.0
"""Seconds that a route may go on once its answer is sent."""
LEFT = 499
"""The status, in log and metrics, of a request whose client has left before there was an answer."""
MOST_KEY_CHARS = 256
_KEY_OF_FORM = re.compile(rb'name="api_key"\r\n\r\n([^\r\n]{1,256})\r\n')
log = logging.getLogger("glassformer.serve")


@dataclass
class Visit:
    """Keep what is known of a request, for its log line and its limits. A route finds it in the scope's state."""

    id: str = field(default_factory=lambda: secrets.token_hex(6))
    key: str = ""
    """Name of its key; without keys the client's address."""
    chars: int = 0
    lines: int = 0
    text: list[str] = field(default_factory=list)
    status: int = 0
    received: int = 0
    sent: int = 0


class Guard:
    """The application around the routes."""

    def __init__(self, inner: Application, config: ServeConfig, keys: KeyFile | None, meters: Meters) -> None:
        self._inner = inner
        self._config = config
        self._keys = keys
        self._meters = meters
        self._hosts = {"localhost", config.host.lower(), *(name.lower() for name in config.allow_host)}
        self.draining = False
        self.working = 0
        """Number of requests that are under way, those about the server's health apart."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        visit, began = Visit(), time.monotonic()
        scope.setdefault("state", {})["visit"] = visit
        sending = _Sending(send, visit, self._config.slow_seconds, self._answer_headers(scope))
        counts = scope["path"] not in ALWAYS
        self.working += counts
        try:
            await self._handle(scope, receive, sending, visit)
        finally:
            self.working -= counts
            visit.status = visit.status or LEFT
            route, seconds = getattr(scope.get("route"), "path", "other"), time.monotonic() - began
            self._meters.answered(route, _known_method(scope["method"]), visit.status, seconds, visit.chars)
            self._log(scope, route, visit, seconds)

    async def _handle(self, scope: Scope, receive: Receive, send: "_Sending", visit: Visit) -> None:
        try:
            headers = self._headers(scope)
            self._check_host(headers)
            if self._is_preflight(scope, headers):
                await send.whole(204, b"", {"access-control-max-age": "600"})
                return
            self._check_origin(scope, headers)
            if self.draining and scope["path"] not in ALWAYS:
                raise Failure("stopping", "the server is about to end", retry_after=5)
            self._check_encoding(headers)
            if not _may_have_key_in_body(scope, headers):  # a body of megabytes is read of those who have a key
                self._check_key(scope, headers, b"", visit)
            body = await self._body(scope, headers, receive, visit)
            if not visit.key:
                self._check_key(scope, headers, body, visit)
        except Failure as failure:
            await send.failure(failure, close=True)
            return
        except _Left:
            return
        await self._unless_left(scope, body, receive, send)

    async def _unless_left(self, scope: Scope, body: bytes, receive: Receive, send: "_Sending") -> None:
        """Let the route answer, and end it once its client has left."""
        leaving, parts = asyncio.Event(), [body]

        async def replay() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def wait_for_leaving() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            leaving.set()

        answering = asyncio.ensure_future(self._inner(scope, replay, send))
        watching = asyncio.ensure_future(wait_for_leaving())
        try:
            await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
            if send.finished:  # uvicorn says that the client has left once it has its answer, too
                await asyncio.wait((answering,), timeout=ENDING)
            answering.cancel()
            await asyncio.wait((answering,))
        finally:
            answering.cancel()
            watching.cancel()
        if not answering.cancelled() and (error := answering.exception()) and not isinstance(error, _Left):
            log_error(error)

    # What is checked

    def _headers(self, scope: Scope) -> dict[str, str]:
        """Return the header fields, each name once, of which there may be so many of such length."""
        config, fields = self._config, scope["headers"]
        if len(fields) > config.max_headers:
            raise Failure("headers", f"a request may have at most {config.max_headers} header fields")
        sizes = [len(name) + len(value) for name, value in fields]
        if max(sizes, default=0) > config.max_header_bytes or sum(sizes) > 8 * config.max_header_bytes:
            raise Failure("headers", f"a header field may have at most {config.max_header_bytes:,} bytes")
        found: dict[str, str] = {}
        for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields):
            if name in found and name in ("host", "content-length", "content-type", "authorization", "origin"):
                raise Failure("invalid", f"the header field {name} may be given once")
            found[name] = value
        return found

    def _check_host(self, headers: dict[str, str]) -> None:
        """Raise Failure unless the server was called by a name that is allowed, or by an address in numbers.

        A page of another site can make its own name lead here (DNS rebinding), but not a number.
        """
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name in self._hosts or (name and _is_address(name.strip("[]"))):
            return
        raise Failure("forbidden", "the server may not be called by this name: allow it with --allow-host NAME")

    def _is_preflight(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Return whether a browser asks, for a page whose origin is allowed, what that page may send."""
        return scope["method"] == "OPTIONS" and headers.get("origin") in self._config.cors_origin

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        """Raise Failure for a request that a page of another site lets a browser make."""
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site" and scope["method"] not in ("GET", "HEAD"):
                raise Failure("forbidden", "pages of other sites may not use the server")
            return
        if origin in self._config.cors_origin or _host_of(origin) == headers.get("host", "").lower():
            return
        raise Failure("forbidden", "pages of this origin may not use the server: allow it with --cors-origin ORIGIN")

    def _answer_headers(self, scope: Scope) -> dict[str, str]:
        """Return the header fields that an answer gets."""
        origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), "")
        if not self._config.cors_origin:
            return SAFETY
        allowed = {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": "authorization, content-type",
            "cross-origin-resource-policy": "cross-origin",
        }
        return SAFETY | {"vary": "origin"} | (allowed if origin in self._config.cors_origin else {})

    def _check_encoding(self, headers: dict[str, str]) -> None:
        """Raise Failure for a packed body: a small one may become a very large one."""
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise Failure("encoding", "a body must be sent as it is, without Content-Encoding")

    async def _body(self, scope: Scope, headers: dict[str, str], receive: Receive, visit: Visit) -> bytes:
        """Return the body, which is counted as it arrives."""
        is_file = scope["path"].startswith(JOBS)
        most = self._config.max_file_bytes if is_file else self._config.max_body_bytes
        told = headers.get("content-length", "0")
        if len(told) > 15 or (told.isdecimal() and int(told) > most):
            raise Failure("too_large", f"a body may have at most {most:,} bytes")
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._config.slow_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Left
                    parts.append(message.get("body", b""))
                    visit.received += len(parts[-1])
                    if visit.received > most:
                        raise Failure("too_large", f"a body may have at most {most:,} bytes")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Failure("slow", f"the request took longer than {self._config.slow_seconds:g} s to arrive") from None

    def _check_key(self, scope: Scope, headers: dict[str, str], body: bytes, visit: Visit) -> None:
        """Raise Failure where keys are needed and none of them was given."""
        client = scope.get("client") or ("", 0)
        visit.key = str(client[0])
        path = scope["path"]
        if self._keys is None or path in (LIVE, "/") or path.startswith(STATIC):
            return
        name = self._keys.name_of(_given_key(headers, body))
        if name is None:
            raise Failure(
                "forbidden" if path in LIBRE and "authorization" not in headers else "unauthorized",
                "this needs an API key: ask whoever runs the server for one",
            )
        visit.key = name

    def _log(self, scope: Scope, route: str, visit: Visit, seconds: float) -> None:
        """Write one line about a request: sizes and durations, and its text only if that is wanted."""
        words = (
            f"id={visit.id} method={_known_method(scope['method'])} route={route} status={visit.status} "
            f"lines={visit.lines} chars={visit.chars} bytes_in={visit.received} bytes_out={visit.sent} "
            f"ms={1000 * seconds:.1f} key={printable(visit.key)}"
        )
        text = f" text={json.dumps(visit.text, ensure_ascii=False)}" if self._config.log_text and visit.text else ""
        log.info("%s", words + printable(text))


class _Left(Exception):
    """The client has left."""


class _Sending:
    """Sends an answer: with the header fields of safety, and to a client that reads."""

    def __init__(self, send: Send, visit: Visit, seconds: float, headers: dict[str, str]) -> None:
        self._send = send
        self._visit = visit
        self._seconds = seconds
        self._headers = headers
        self.finished = False

    async def __call__(self, message: Message) -> None:
        """Send a part of an answer; `_Left` where the client doesn't take it."""
        if message["type"] == "http.response.start":
            self._visit.status = message["status"]
            own = {name.decode("latin-1").lower() for name, _ in message.get("headers", ())}
            added = self._headers | {"x-request-id": self._visit.id}
            fields = [(n.encode(), v.encode("latin-1", "replace")) for n, v in added.items() if n not in own]
            message["headers"] = [*message.get("headers", ()), *fields]
        else:
            self._visit.sent += len(message.get("body", b""))
            self.finished = not message.get("more_body")
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise _Left from None

    async def failure(self, failure: Failure, *, close: bool = False) -> None:
        """Send what a request failed with."""
        more = {"content-type": "application/json"} | failure_headers(failure)
        body = json.dumps({"error": str(failure), "code": failure.code}).encode()
        await self.whole(STATUS[failure.code], body, more | ({"connection": "close"} if close else {}))

    async def whole(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a whole answer."""
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        fields += [] if status == 204 else [(b"content-length", str(len(body)).encode())]
        await self({"type": "http.response.start", "status": status, "headers": fields})
        await self({"type": "http.response.body", "body": body})


def failure_headers(failure: Failure) -> dict[str, str]:
    """Return the header fields that go with a failure."""
    headers = {} if failure.retry_after is None else {"retry-after": str(failure.retry_after)}
    if failure.code == "unauthorized":
        headers["www-authenticate"] = 'Basic realm="glassformer: any name, and the key as password", charset="UTF-8"'
    return headers


def log_error(error: BaseException) -> None:
    """Write where an error came, without its message, which may hold text."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s", f"{type(error).__name__}:\n{where}")


def _may_have_key_in_body(scope: Scope, headers: dict[str, str]) -> bool:
    """Return whether a request may have its key where LibreTranslate's clients have it."""
    return scope["path"] in LIBRE and "authorization" not in headers


def _given_key(headers: dict[str, str], body: bytes) -> str | None:
    """Return the key of a request: in its Authorization header, or as LibreTranslate's clients send it, in the body."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()[:MOST_KEY_CHARS]
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(given, validate=True).decode().partition(":")[2][:MOST_KEY_CHARS]
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        found = _KEY_OF_FORM.search(body)
        return found[1].decode(errors="replace") if found else None
    with suppress(ValueError):
        if kind == "application/x-www-form-urlencoded":
            return dict(parse_qsl(body.decode(), max_num_fields=20)).get("api_key", "")[:MOST_KEY_CHARS]
        if kind == "application/json" and b'"api_key"' in body:
            found = decode_json(body, Any)
            key = found.get("api_key") if isinstance(found, dict) else None
            return key[:MOST_KEY_CHARS] if isinstance(key, str) else None
    return None


def _host_of(origin: str) -> str | None:
    """Return the host of an origin, with its port; None where it is no origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _known_method(method: str) -> str:
    return method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH") else "other"
