"""The server's side of the workers of one run: who gets a request, who has died, who takes too long. Loads no torch."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from itertools import count
from typing import Any

from msgspec import Struct

from glassformer.errors import GlassformerError
from glassformer.serve.workers import messages
from glassformer.serve.workers.messages import (
    Answer,
    Broken,
    Cancel,
    Event,
    Measured,
    Ready,
    Refusal,
    Refused,
    Settings,
)

PROGRAM = ("-P", "-m", "glassformer.serve.workers.process")
"""Python's arguments for a worker."""
GRACE = 30.0
"""Seconds after its time is up by which a worker must have given up a request. Then it hangs, and is replaced."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before a worker that was lost is started again; they double each time until one is ready."""
LOST = Refused(0, "worker_lost", "the process that worked on it was lost, and is being replaced: try again")
ENDING = Refused(0, "stopping", "the server ends, and could not wait for it any longer")


class Pool:
    """The workers of a run."""

    def __init__(
        self,
        settings: Settings,
        *,
        queue: int,
        or_one: bool = False,
        measured: Callable[[Measured], None] = lambda batch: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Plan the workers; at most `queue` requests wait or are worked on at a time.

        With `or_one` a run that isn't computed on a CPU has one worker.
        """
        self.settings = settings
        self._queue = queue
        self._measured = measured
        self._lost = lost
        self._numbers = count(1)
        self._or_one = or_one
        self._workers = [_Worker(self) for _ in range(settings.workers)]
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the workers and wait until each is ready; GlassformerError says why one can't be."""
        waiting = self._workers
        if self._or_one:
            first, *waiting = self._workers
            if (await first.start()).device != "cpu":
                self._workers, waiting = [first], []
        await asyncio.gather(*(worker.start() for worker in waiting))
        self._keepers = [asyncio.create_task(self._keep(worker)) for worker in self._workers]

    async def stop(self) -> None:
        """End the workers."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    def give_up(self) -> None:
        """Refuse all that waits or is worked on, because the server ends."""
        for worker in self._workers:
            for coming in worker.waiting.values():
                coming.put_nowait(ENDING)

    @property
    def ready(self) -> Ready | None:
        """Return what a worker told as it became ready; None while none is."""
        return next((worker.ready for worker in self._workers if worker.ready is not None), None)

    @property
    def pending(self) -> int:
        """Number of requests that wait or are worked on."""
        return sum(len(worker.waiting) for worker in self._workers)

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers that are ready."""
        return [worker.pid for worker in self._workers if worker.ready is not None and worker.pid is not None]

    async def ask(self, kind: type[messages.Request], seconds: float, **fields: Any) -> list[dict[str, Any]]:
        """Let a worker do something within so many seconds, and return the answer; Refusal where it isn't done."""
        async with aclosing(self.follow(kind, seconds, **fields)) as coming:
            async for message in coming:
                if isinstance(message, Answer):
                    return message.value
        raise AssertionError("a request ends with an answer or a Refusal")

    async def follow(
        self, kind: type[messages.Request], seconds: float, **fields: Any
    ) -> AsyncGenerator[Event | Answer]:
        """Yield what happens on the way to an answer, and the answer."""
        worker, until = self._choose(), time.monotonic() + seconds
        number = next(self._numbers)
        coming: asyncio.Queue[Event | Answer | Refused] = asyncio.Queue()
        worker.take(number, until, coming, kind(id=number, seconds=seconds, **fields))
        try:
            while True:
                try:
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        message = await coming.get()
                except TimeoutError:
                    raise Refusal("deadline", f"it took longer than {seconds:g} s: ask for less at once") from None
                if isinstance(message, Refused):
                    raise Refusal(message.code, message.error)
                yield message
                if isinstance(message, Answer):
                    return
        finally:
            worker.leave(number)

    def check_room(self) -> None:
        """Raise Refusal where no worker is ready, or enough requests wait already."""
        if self.ready is None:
            raise Refusal("starting", "no worker of this run is ready yet", retry_after=1)
        if self.pending >= self._queue:
            raise Refusal("busy", f"{self._queue} requests wait already: try again later", retry_after=1)

    def _choose(self) -> "_Worker":
        """Return the ready worker that has least to do; Refusal where there is none, or enough waits already."""
        self.check_room()
        ready = [worker for worker in self._workers if worker.ready is not None]
        return min(ready, key=lambda worker: len(worker.waiting))

    async def _keep(self, worker: "_Worker") -> None:
        """Watch over a worker, and start another in its place where it is lost."""
        pause = FIRST_PAUSE
        while True:
            await worker.watch()
            self._lost()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            with suppress(GlassformerError, OSError):
                await worker.start()
                pause = FIRST_PAUSE

    def note(self, batch: Measured) -> None:
        """Hand on what a batch came to."""
        self._measured(batch)


class _Worker:
    """A worker process, and what is expected of it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.ready: Ready | None = None
        self.waiting: dict[int, asyncio.Queue[Any]] = {}
        self._owed: dict[int, float] = {}
        """Until when the process must have ended each request, whether anybody still waits or not."""

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return self._process.pid if self._process else None

    async def start(self) -> Ready:
        """Start the process and wait until it is ready; GlassformerError says why it can't be."""
        path = os.pathsep.join(part for part in sys.path if part)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, *PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C on the terminal reaches the server alone
        )
        self._send(self._pool.settings)
        try:
            message = await self._read()
        except BaseException:
            await self.stop()
            raise
        if not isinstance(message, Ready):
            await self.stop()
            raise GlassformerError(
                message.error if isinstance(message, Broken) else "a worker ended while it loaded its model"
            )
        self._reader = asyncio.create_task(self._listen())
        self.ready = message
        return message

    async def stop(self) -> None:
        """End the process."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def watch(self) -> None:
        """Return when the process has ended; end it where it hangs."""
        assert self._reader is not None
        while not self._reader.done():
            await asyncio.wait([self._reader], timeout=1.0)
            if self._owed and min(self._owed.values()) + GRACE < time.monotonic() and self._process is not None:
                with suppress(ProcessLookupError):
                    self._process.kill()
        await self.stop()

    def take(self, number: int, until: float, coming: "asyncio.Queue[Any]", message: Struct) -> None:
        """Give the process a request, whose messages go into the queue."""
        self._send(message)  # first: what can't be sent must not be waited for
        self.waiting[number] = coming
        self._owed[number] = until

    def leave(self, number: int) -> None:
        """Wait no longer for a request."""
        del self.waiting[number]
        if number in self._owed:
            self._send(Cancel(number))

    async def _listen(self) -> None:
        """Hand on the process's messages until it ends."""
        try:
            while (message := await self._read()) is not None:
                if isinstance(message, Measured):
                    self._pool.note(message)
                    continue
                if isinstance(message, Answer | Refused):
                    self._owed.pop(message.id, None)
                if isinstance(message, Event | Answer | Refused) and message.id in self.waiting:
                    self.waiting[message.id].put_nowait(message)
        finally:
            self.ready = None
            self._owed.clear()
            for coming in self.waiting.values():
                coming.put_nowait(LOST)

    async def _read(self) -> messages.FromWorker | None:
        """Return the process's next message; None where it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            head = await self._process.stdout.readexactly(messages.HEAD.size)
            content = await self._process.stdout.readexactly(*messages.HEAD.unpack(head))
        except asyncio.IncompleteReadError:
            return None
        return messages.from_worker.decode(content)

    def _send(self, message: Struct) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(ConnectionError, RuntimeError):  # it has ended: `_listen` tells those who wait
            self._process.stdin.write(messages.frame(message))
