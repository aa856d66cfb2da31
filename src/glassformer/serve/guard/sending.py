"""Send answers: with the header fields of safety, and to a client that reads. A failure becomes an answer too."""

import asyncio
import json

from glassformer.serve.guard.asgi import Message, Send
from glassformer.serve.guard.visits import Visit
from glassformer.serve.workers.messages import Refusal

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


class Sending:
    """Sends an answer: with the header fields of safety, and to a client that reads."""

    def __init__(self, send: Send, visit: Visit, seconds: float, headers: dict[str, str]) -> None:
        self._send = send
        self._visit = visit
        self._seconds = seconds
        self._headers = headers
        self.finished = False

    async def __call__(self, message: Message) -> None:
        """Send a part of an answer; ConnectionAbortedError where the client doesn't take it."""
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
            raise ConnectionAbortedError from None

    async def failure(self, failure: Refusal, headers: dict[str, str]) -> None:
        """Send what a request failed with before it reached a route, and close the connection."""
        more = {"content-type": "application/json", "connection": "close"} | failure_headers(failure) | headers
        body = json.dumps({"error": str(failure), "code": failure.code}).encode()
        await self.whole(STATUS[failure.code], body, more)

    async def whole(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a whole answer."""
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        fields += [] if status == 204 else [(b"content-length", str(len(body)).encode())]
        await self({"type": "http.response.start", "status": status, "headers": fields})
        await self({"type": "http.response.body", "body": body})


def failure_headers(failure: Refusal) -> dict[str, str]:
    """Return the header fields that go with a failure."""
    return {} if failure.retry_after is None else {"retry-after": str(failure.retry_after)}
