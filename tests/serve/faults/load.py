"""A server under load whose worker is killed, and one that is told to end: what becomes of each request."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from service import GOOD, Served, get, post, read_answer, translate

CLIENTS = 16
PAUSE = 0.2
"""Seconds after which a client that was refused tries again."""
LIMIT = 30.0
"""Seconds within which every request has an answer, and a worker that was lost another in its place."""
ANSWERS = {200: None, 503: ("worker_lost", "starting", "stopping")}


@dataclass
class Load:
    """Clients that send one request after the other over connections that stay open."""

    port: int
    ended: bool = False
    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """How often each answer came, by its status and code."""
    refused: int = 0
    """Number of connections that were not taken, or closed before a request was sent on them."""
    wrong: list[str] = field(default_factory=list)
    told: float | None = None
    """When the server was told to end."""

    async def work(self) -> None:
        """Let the clients work until `ended`, or until the server is gone."""
        await asyncio.gather(*(self._work(number) for number in range(CLIENTS)))

    async def _work(self, number: int) -> None:
        one = post("/translate", json.dumps(GOOD | {"q": "the cat sat on the mat " * (1 + number % 4)}).encode())
        while not self.ended:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except ConnectionError:
                self.refused += 1
                return
            while not self.ended and await self._ask(reader, writer, one):
                pass
            writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bool:
        """Send a request, and return whether its connection is still good for another."""
        began = time.monotonic()
        writer.write(request)
        self.sent += 1
        try:
            async with asyncio.timeout(LIMIT):
                status, body, closes = await read_answer(reader)
        except TimeoutError:
            self.wrong.append(f"a request hung for {LIMIT:g} s")
            return False
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self._note_lost(began, error)
            return False
        code = json.loads(body).get("code") if status != 200 else None
        if status not in ANSWERS or (ANSWERS[status] and code not in ANSWERS[status]):
            self.wrong.append(f"a request was answered with {status}: {body[:200]!r}")
        self.answers[f"{status} {code}" if code else str(status)] += 1
        if status != 200:
            await asyncio.sleep(PAUSE)
        return not closes

    def _note_lost(self, began: float, error: Exception) -> None:
        """Note a connection that ended without an answer.

        A server that ends closes connections on which nothing is under way; what a client sends at that moment was
        never accepted. What was sent before the server was told to end was, and so was what has half an answer.
        """
        half = isinstance(error, asyncio.IncompleteReadError) and error.partial
        if self.told is None or began < self.told or half:
            self.wrong.append(f"a request that was accepted had no answer: {type(error).__name__}")
        else:
            self.refused += 1

    def __str__(self) -> str:
        answers = ", ".join(f"{answer} {count}" for answer, count in sorted(self.answers.items()))
        return f"{self.sent} requests (answers: {answers}; {self.refused} not taken), {len(self.wrong)} wrong"


async def kill_worker(server: Served, times: int) -> Load:
    """Kill the worker under load so many times; each time the server must translate again."""
    _, expected = await translate(server.port)
    load = Load(server.port)
    working = asyncio.create_task(load.work())
    for _ in range(times):
        await asyncio.sleep(0.5)
        (worker,) = server.children()
        os.kill(worker, signal.SIGKILL)
        until = time.monotonic() + LIMIT
        while (await get(server.port, "/health/ready"))[0] == 200 and time.monotonic() < until:
            await asyncio.sleep(0.01)
        while (await get(server.port, "/health/ready"))[0] != 200 and time.monotonic() < until:
            await asyncio.sleep(0.05)
        if (answer := await translate(server.port)) != (200, expected):
            load.wrong.append(f"with another worker it answers {answer}")
    load.ended = True
    await working
    if times and not load.answers["503 worker_lost"]:
        load.wrong.append("no request was under way when the worker was killed")
    return load


async def end(server: Served) -> Load:
    """End the server under load by SIGTERM: what it has accepted is answered, and its status is 0."""
    load = Load(server.port)
    working = asyncio.create_task(load.work())
    await asyncio.sleep(0.5)
    load.told = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    await working
    if (code := await asyncio.to_thread(server.process.wait, LIMIT)) != 0:
        load.wrong.append(f"it ended with {code}")
    if not load.answers["200"]:
        load.wrong.append("no request was answered at all")
    return load
