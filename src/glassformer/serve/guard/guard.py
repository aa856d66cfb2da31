"""Check every request before it reaches a route, as an ASGI application around the others.

The guard refuses hosts, origins, headers and bodies that are not allowed, asks for the key, ends what its client has
left, adds the headers of safety, and writes the log. It counts a body as it arrives, and hands it on whole.
"""

import asyncio
import time

from glassformer.serve.config import ServeConfig
from glassformer.serve.guard.asgi import Application, Message, Receive, Scope, Send
from glassformer.serve.guard.credentials import challenge, given_key, may_have_key_in_body
from glassformer.serve.guard.hosts import Hosts
from glassformer.serve.guard.limits import check_encoding, read_body, read_headers
from glassformer.serve.guard.paths import ALWAYS, JOBS, LIBRE, LIVE, PAGES, SIGN_IN, SIGN_OUT
from glassformer.serve.guard.sending import Sending
from glassformer.serve.guard.sign_in import SignIn
from glassformer.serve.guard.visits import LEFT, Visit, known_method, log_error, log_visit
from glassformer.serve.keys import KeyFile
from glassformer.serve.meters import Meters
from glassformer.serve.workers.messages import Refusal

ENDING = 1.0
"""Seconds that a route may go on once its answer is sent."""


class Guard:
    """The application around the routes."""

    def __init__(self, inner: Application, config: ServeConfig, keys: KeyFile | None, meters: Meters) -> None:
        self._inner = inner
        self._config = config
        self._keys = keys
        self._sign_in = None if keys is None else SignIn(config, keys)
        self._meters = meters
        self._hosts = Hosts(config)
        self.draining = False
        self.working = 0
        """Number of requests that are under way, those about the server's health apart."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        visit, began = Visit(key=str((scope.get("client") or ("", 0))[0])), time.monotonic()
        scope.setdefault("state", {})["visit"] = visit
        sending = Sending(send, visit, self._config.slow_seconds, self._hosts.answer_headers(scope))
        counts = scope["path"] not in ALWAYS
        self.working += counts
        try:
            await self._handle(scope, receive, sending, visit)
        finally:
            self.working -= counts
            visit.status = visit.status or LEFT
            visit.route, seconds = getattr(scope.get("route"), "path", visit.route), time.monotonic() - began
            self._meters.answered(visit.route, known_method(scope["method"]), visit.status, seconds, visit.chars)
            log_visit(visit, scope["method"], seconds, with_text=self._config.log_text)

    async def _handle(self, scope: Scope, receive: Receive, send: Sending, visit: Visit) -> None:
        headers: dict[str, str] = {}
        try:
            headers = read_headers(scope, self._config)
            self._hosts.check_host(headers)
            if self._hosts.is_preflight(scope, headers):
                await send.whole(204, b"", {"access-control-max-age": "600"})
                return
            self._hosts.check_origin(scope, headers)
            if self.draining and scope["path"] not in ALWAYS:
                raise Refusal("stopping", "the server is about to end", retry_after=5)
            check_encoding(headers)
            if await self._is_about_signing_in(scope, headers, receive, send, visit):
                return
            is_key_in_body = may_have_key_in_body(scope, headers)
            if not is_key_in_body:  # a body of megabytes is read of those who have a key
                self._check_key(scope, headers, b"", visit)
            body = await self._body(scope, headers, receive, visit)
            if is_key_in_body:
                self._check_key(scope, headers, body, visit)
        except Refusal as failure:
            await send.failure(failure, challenge(headers) if failure.code == "unauthorized" else {})
            return
        except ConnectionAbortedError:
            return
        await self._unless_left(scope, body, receive, send)

    async def _unless_left(self, scope: Scope, body: bytes, receive: Receive, send: Sending) -> None:
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
        if (
            not answering.cancelled()
            and (error := answering.exception())
            and not isinstance(error, ConnectionAbortedError)
        ):
            log_error(error)

    async def _body(self, scope: Scope, headers: dict[str, str], receive: Receive, visit: Visit) -> bytes:
        config = self._config
        most = config.max_file_bytes if scope["path"].startswith(JOBS) else config.max_body_bytes
        return await read_body(headers, receive, visit, most=most, seconds=config.slow_seconds)

    async def _is_about_signing_in(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Sending, visit: Visit
    ) -> bool:
        """Return whether somebody signs in or out, or has to before there is a page for them, and answer that."""
        if self._sign_in is None:
            return False
        path = scope["path"]
        if path in (SIGN_IN, SIGN_OUT):
            visit.route = path
            await self._sign_in.answer(scope, headers, receive, send, visit)
            return True
        if path in PAGES and self._name_of(scope, headers, given_key(headers, b"")) is None:
            visit.route = path
            await self._sign_in.ask(scope, headers, send)
            return True
        return False

    def _check_key(self, scope: Scope, headers: dict[str, str], body: bytes, visit: Visit) -> None:
        """Raise Refusal where keys are needed and none of them was given."""
        if self._keys is None or scope["path"] == LIVE:
            return
        given = given_key(headers, body)
        name = self._name_of(scope, headers, given)
        if name is None:
            raise Refusal(
                "forbidden" if scope["path"] in LIBRE and "authorization" not in headers else "unauthorized",
                f"{'this API key was not accepted' if given else 'this needs an API key'}: "
                "ask whoever runs the server for one",
            )
        visit.key = name

    def _name_of(self, scope: Scope, headers: dict[str, str], given: str | None) -> str | None:
        """Return the name of the key that was given, or by which its sender has signed in."""
        if self._keys is None or self._sign_in is None:
            return None
        if given:
            return self._keys.name_of(given)
        return self._sign_in.name_of(scope, headers)
