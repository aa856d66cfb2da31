"""A run to serve, a server in this process, and a client that calls the application without a socket."""

import asyncio
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.serve.app import Server
from glassformer.serve.config import ServeConfig
from glassformer.serve.languages import open_runs
from glassformer.serve.server import WebServer, listen
from glassformer.serve.workers.messages import (
    Alternatives,
    Answer,
    Check,
    Event,
    Ready,
    Refusal,
    Stream,
    Translate,
    TranslateTagged,
)
from glassformer.text.tokenizer import SubwordTokenizer

LENGTH = 24
"""Longest translation of the server: those of a random model are always the longest."""
TEXT = ["the cat sat on the mat", "a dog and a cat", "on a log", "the dog sat", "Grüße an die Katze"] * 3


@pytest.fixture(scope="session")
def run(random_run, tmp_path_factory) -> Path:
    """A random run of subwords from English to German."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    tokenizer = SubwordTokenizer.train(TEXT, kind="bpe", vocab_size=60, seed=1)
    random_run(folder, tokenizer, tokenizer, shared=True)
    return folder


@dataclass
class Reply:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What its JSON says."""
        return json.loads(self.body)


@dataclass
class Live:
    """A server at work."""

    port: int
    server: Server
    loop: asyncio.AbstractEventLoop
    web: WebServer

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        kind = {"content-type": "application/json"} if isinstance(body, dict | list) else {}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, kind | given)
        got = connection.getresponse()
        reply = Reply(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        connection.close()
        return reply

    def do(self, act: Callable[[], Any]) -> Any:
        """Do something in the server's own thread."""

        async def done() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(10)


def run_live(config: ServeConfig) -> Iterator[Live]:
    """Run a server in a thread."""
    listening = listen("127.0.0.1", 0)
    ready = threading.Event()
    made: dict[str, Any] = {}

    async def main() -> None:
        server = Server(config, open_runs(config.run, config.languages))
        web = WebServer(server)
        made.update(server=server, web=web, loop=asyncio.get_running_loop())
        try:
            await server.start()
            serving = asyncio.create_task(web.serve_on(listening))
            while not web.started:
                await asyncio.sleep(0.01)
            ready.set()
            await serving
        finally:
            ready.set()
            await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(60)
    port = listening.getsockname()[1]
    try:
        yield Live(port, made["server"], made["loop"], made["web"])
    finally:
        made["web"].should_exit = True
        thread.join(30)
        listening.close()
    assert not thread.is_alive()


@contextmanager
def run_beside(live: Live, **settings: Any) -> Iterator[Live]:
    """Run another server with other settings, and the same workers: to start those takes seconds."""
    config = replace(live.server.config, **settings)
    server = Server(config, open_runs(config.run, config.languages))
    server.pools.update(live.server.pools)
    server.service.pools.update(live.server.pools)
    web = WebServer(server)
    with listen("127.0.0.1", 0) as listening:
        serving = asyncio.run_coroutine_threadsafe(web.serve_on(listening), live.loop)
        while not web.started:
            time.sleep(0.01)
        try:
            yield Live(listening.getsockname()[1], server, live.loop, web)
        finally:
            web.should_exit = True
            serving.result(30)


@pytest.fixture(scope="session")
def live(run) -> Iterator[Live]:
    """A server with one worker, on a free port of this machine."""
    settings = dict(workers=1, precision="float32", share_batches=True, threads=2, gather_ms=30.0, max_length=LENGTH)
    yield from run_live(ServeConfig(run=(run,), **settings))


@pytest.fixture(scope="session")
def served() -> Callable[[ServeConfig], AbstractContextManager[Live]]:
    """Runs a server of one's own."""
    return contextmanager(run_live)


@pytest.fixture(scope="session")
def beside() -> Callable[..., AbstractContextManager[Live]]:
    """Runs a server with other settings beside one that is at work."""
    return run_beside


# Without sockets and workers


class Echo:
    """Stands for a pool: a line's translation is the line in capitals."""

    ready: Ready | None = Ready("cpu", "float32", 7, False)
    pending = 0
    processes = (1,)
    has_room = True

    def check_room(self) -> None:
        if not self.has_room:
            raise Refusal("busy", "no room", retry_after=1)

    def __init__(self) -> None:
        self.asked: list[tuple[type, dict[str, Any]]] = []
        self.gate: asyncio.Event | None = None
        self.left = 0

    async def follow(self, kind: type, seconds: float, **fields: Any):
        self.asked.append((kind, fields))
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if kind is Stream:
            yield Event(1, "start", {"source_pieces": [fields["line"], "</s>"]})
            yield Event(1, "piece", {"piece": "A", "probability": 0.5, "text": "A"})
        yield Answer(1, self.answer(kind, fields))

    async def ask(self, kind: type, seconds: float, **fields: Any) -> list[dict[str, Any]]:
        return [message async for message in self.follow(kind, seconds, **fields)][-1].value

    def answer(self, kind: type, fields: dict[str, Any]) -> list[dict[str, Any]]:
        if kind is Check:
            return []
        if kind is Alternatives:
            return [{"piece": "x", "probability": 1.0, "text": "x"}]
        if kind is TranslateTagged:
            return [echo_of(line, n in fields["linked"]) for n, line in enumerate(fields["lines"])]
        assert kind in (Stream, Translate)
        lines = fields.get("lines", [fields.get("line")])
        count = fields.get("n_best", 1)
        return [
            {
                "translations": [
                    {"text": line.upper() + "'" * n, "score": -1.0, "probability": 0.5} for n in range(count)
                ]
            }
            for line in lines
        ]


def echo_of(line: str, is_linked: bool) -> dict[str, Any]:
    """A line's words in capitals, from the last to the first, each linked to its own."""
    words = line.split()
    links = [[n, len(words) - 1 - n, 1.0] for n in range(len(words))] if is_linked else []
    source, target = (
        [list(match.span()) for match in re.finditer(r"\S+", text)] for text in (line, " ".join(words[::-1]))
    )
    return {"text": " ".join(words[::-1]).upper(), "source": source, "target": target, "links": links}


@dataclass
class Client:
    """Calls an application as a web server would."""

    server: Server
    pool: Echo
    sent: list[dict[str, Any]] = field(default_factory=list)

    def __call__(
        self, method: str, path: str, body: Any = None, *, parts: list[bytes] | None = None, **headers: str
    ) -> Reply:
        """Return the answer to a request, whose body may come in parts."""
        return asyncio.run(self.call(method, path, body, parts=parts, **headers))

    async def call(
        self, method: str, path: str, body: Any = None, *, parts: list[bytes] | None = None, **headers: str
    ) -> Reply:
        """The same, inside a loop."""
        fields = {"host": "localhost:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, dict | list):
            fields.setdefault("content-type", "application/json")
            body = json.dumps(body).encode()
        parts = [body or b""] if parts is None else list(parts)
        path, _, query = path.partition("?")
        scope = {
            **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"},
            **{"method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode()},
            **{"headers": [(n.encode(), v.encode("latin-1")) for n, v in fields.items() if v], "root_path": ""},
            **{"scheme": "http", "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8000), "state": {}},
        }
        done, sent = asyncio.Event(), list[Any]()

        async def receive() -> dict[str, Any]:
            if parts:
                part = parts.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(parts)}
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                done.set()

        await self.server.guard(scope, receive, send)
        start, *bodies = sent
        names = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
        return Reply(start["status"], names, b"".join(one.get("body", b"") for one in bodies))


def make_client(run: Path, settings: dict[str, Any]) -> Client:
    """Make a client of an application with these settings, whose workers are an echo."""
    config = ServeConfig(run=(run,), **settings)
    return with_echo(Server(config, open_runs(config.run, config.languages)))


def with_echo(server: Server) -> Client:
    """Make a client of an application."""
    pool = Echo()
    server.service.pools["tiny"] = server.pools["tiny"] = pool
    return Client(server, pool)


@pytest.fixture
def new_client(run, unchecked) -> Callable[..., Client]:
    """Makes a client of an application with these settings that nobody has used before."""
    return lambda **settings: make_client(run, settings)


@pytest.fixture(scope="session")
def servers() -> dict[str, Server]:
    """The applications that were made, by their settings: to make one takes longer than most of what is asked of it."""
    return {}


@pytest.fixture
def client(run, unchecked, servers) -> Callable[..., Client]:
    """Makes a client of an application with these settings, which others may have used, too: its counters have run."""

    def make(**settings: Any) -> Client:
        name = repr(settings)
        if name not in servers:
            servers[name] = make_client(run, settings).server
        return with_echo(servers[name])

    return make
