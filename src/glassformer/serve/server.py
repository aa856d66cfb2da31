"""Running the application with uvicorn: the socket, slow and too many clients, signals, and the end."""

import asyncio
import errno
import json
import logging
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassformer.errors import ConfigError, shown
from glassformer.serve.app import Server
from glassformer.serve.config import ServeConfig
from glassformer.serve.guard.visits import log
from glassformer.serve.languages import ServedRun

LAST_WORDS = 2
"""Seconds in which what is given up can be answered, and then again in which connections can end."""
MANY = {"error": "there are too many connections: try again later", "code": "busy"}


def run_server(config: ServeConfig, runs: Sequence[ServedRun]) -> None:
    """Serve until a signal comes, and what is under way is done."""
    write_log()
    listening = listen(config.host, config.port)
    with listening:
        asyncio.run(serve(config, runs, listening))


async def serve(config: ServeConfig, runs: Sequence[ServedRun], listening: socket.socket) -> None:
    """Start the workers, and serve on this socket until it is to end."""
    server = Server(config, runs)
    web = WebServer(server)
    try:
        with web.capture_signals():
            say_hello(config, runs, listening)
            starting = asyncio.create_task(server.start())
            serving = asyncio.create_task(web.serve_on(listening))
            await asyncio.wait((starting, serving), return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.exception():
                web.should_exit = True
                await serving
            elif starting.done():
                print("ready", file=sys.stderr, flush=True)
            await serving
            starting.cancel()
            await asyncio.wait((starting,))
        if not starting.cancelled() and (error := starting.exception()):
            raise error
    finally:
        await server.stop()


def write_log() -> None:
    """Let the log of requests go to standard error, with the time; and nothing of libraries, which may hold text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.getLogger().setLevel(logging.CRITICAL)  # uvicorn's, asyncio's, python_multipart's


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; ConfigError where it can't be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no name of a host"
        raise ConfigError(f"host must be an address of this machine, got {shown(host)} ({reason})") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        reasons = {
            errno.EADDRINUSE: f"port must be a free one, got {port}: stop what listens there, or choose another",
            errno.EADDRNOTAVAIL: f"host must be an address of this machine, got {host}",
            errno.EACCES: f"port must be one that this user may use, got {port}: choose one from 1024 on",
        }
        if error.errno not in reasons:
            raise
        raise ConfigError(reasons[error.errno]) from None
    return listening


def say_hello(config: ServeConfig, runs: Sequence[ServedRun], listening: socket.socket) -> None:
    """Print where the server is, what it serves, and what is needed to use it."""
    bare = config.host.strip("[]")
    host = f"[{bare}]" if ":" in bare else bare
    print(f"http://{host}:{listening.getsockname()[1]}", flush=True)
    for run in runs:
        if run.source:
            print(f"  {run.name} translates {run.source} to {run.target}.")
        else:
            print(f"  {run.name} doesn't say its languages. Clients of LibreTranslate can't use it without them:")
            print(f"    name them with --languages {run.folder}=SOURCE-TARGET")
    if config.keys is not None:
        print("  People sign in there with a key, and programs send theirs with each request.")
    print("The models are loading. Ctrl-C ends the server.", flush=True)


class WebServer(uvicorn.Server):
    """uvicorn's server, which finishes what is under way before it ends, and then ends well."""

    def __init__(self, server: Server) -> None:
        config = server.config
        self._served = server
        self._drain_until: float | None = None
        keep_alive: Any = config.keep_alive_seconds  # declared as int, and handed to asyncio, which takes fractions
        super().__init__(
            uvicorn.Config(
                server.guard,
                http=_protocol(config),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=keep_alive,
                timeout_graceful_shutdown=LAST_WORDS,
                h11_max_incomplete_event_size=8 * config.max_header_bytes,
            )
        )

    async def serve_on(self, listening: socket.socket) -> None:
        """Serve on this socket until `should_exit`."""
        await self._serve([listening])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take no new work from now on; a second signal ends what is under way too."""
        now = time.monotonic()
        if self._drain_until is None:
            self._served.guard.draining = True
            self._drain_until = now + self._served.config.drain_seconds
        else:
            self._drain_until = min(self._drain_until, now)

    async def on_tick(self, counter: int) -> bool:
        """Return whether it is time to end: once nothing is under way, or that takes too long.

        Nobody waits for jobs here: while the server ends nobody could fetch their results, which end with it.
        """
        if await super().on_tick(counter):
            return True
        if self._drain_until is None:
            return False
        late = time.monotonic() - self._drain_until
        if late >= 0:
            self._served.give_up()
        return not self._served.guard.working or late >= LAST_WORDS


def _protocol(config: ServeConfig) -> type[H11Protocol]:
    """Return the protocol of a connection, with this server's limits."""

    class Patient(H11Protocol):
        """A connection whose client may take so long to send the head of a request."""

        _slow: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= config.max_connections:
                transport.write(as_answer(503, MANY))
                transport.close()
                return
            super().connection_made(transport)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            if self.transport is not None:
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport is None:
                return
            super().data_received(data)
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self._wait_for_head()
            else:
                self._stop_waiting()

        def send_400_response(self, msg: str) -> None:
            error = sys.exception()
            status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
            code = "headers" if status == 431 else "invalid"
            self.transport.write(as_answer(status, {"error": "this is no request of HTTP/1.1", "code": code}))
            self.transport.close()

        def _wait_for_head(self) -> None:
            if self._slow is None:
                self._slow = self.loop.call_later(config.slow_seconds, self._too_slow)

        def _stop_waiting(self) -> None:
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None

        def _too_slow(self) -> None:
            if not self.transport.is_closing():
                failure = {"error": "the request took too long to arrive", "code": "slow"}
                self.transport.write(as_answer(408, failure))
                self.transport.close()

    return Patient


def as_answer(status: int, body: dict[str, str]) -> bytes:
    """Return an answer as bytes, for a connection that uvicorn can't answer."""
    content = json.dumps(body).encode()
    fields = f"content-type: application/json\r\ncontent-length: {len(content)}\r\nconnection: close\r\n"
    return f"HTTP/1.1 {status} \r\n{fields}\r\n".encode() + content
