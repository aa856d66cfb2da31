"""A worker: it owns a model, and gathers batches for it.

`requests` makes tasks of what clients ask for. The worker's threads compute, each a batch or a step at a time, and
share out torch's threads as `glassformer.generation.batches` does. `process` is the program that runs one.
"""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from glassformer.errors import ArgumentError, ConfigError, GlassformerError
from glassformer.generation.batches import MOST_WORKERS, batch_limits, search_batch
from glassformer.generation.config import SearchConfig
from glassformer.generation.kernels import passes
from glassformer.generation.translator import Translator
from glassformer.serve.workers import messages
from glassformer.serve.workers.batching import Client, Line, Lines, Steps, Task, Turns
from glassformer.serve.workers.messages import Refusal
from glassformer.serve.workers.requests import RequestReader, Send, measured_as

SLICE = 0.05
"""Seconds that a task which goes step by step may compute before it is another's turn."""
MOST_WAITS = 5
"""A batch waits for further requests at most so many times `gather_seconds`, or longer after one that took long."""
WAITED_SHARE, LONGEST_WAIT = 1 / 25, 0.1
"""It may wait this share of the time that the batch before it took, and never longer than these seconds.

That batch's clients ask again one after the other, and thirty of them need longer than a few waits.
"""


class Worker:
    """Does what messages ask for, and sends what comes of it."""

    def __init__(self, translator: Translator, settings: messages.Settings, send: Send) -> None:
        self._translator = translator
        self._settings = settings
        self._send = send
        self._reader = RequestReader(translator, settings, send)
        self._tasks: dict[int, Task] = {}
        self._turns = Turns(self._limits, shares=settings.share_batches or is_exact(translator))
        self._changed = threading.Condition()
        self._idle = 0
        self._batch_seconds = 0.0  # of the last batch

    def start(self) -> None:
        """Start the threads that compute."""
        threads = torch.get_num_threads()
        count = min(threads, MOST_WORKERS) if self._translator.device.type == "cpu" else 1
        for _ in range(count):
            threading.Thread(target=self._compute, args=(max(1, threads // count),), daemon=True).start()

    def receive(self, message: messages.ToWorker) -> None:
        """Take a request on, or give one up."""
        if isinstance(message, messages.Cancel):
            with self._changed:
                if task := self._tasks.get(message.id):
                    task.client.has_left = True
                    self._changed.notify_all()
            return
        try:
            task = self._reader.task_of(message, Client(time.monotonic() + message.seconds))
        except Refusal as failure:
            self._send(messages.Refused(message.id, failure.code, str(failure)))
            return
        if isinstance(task, Lines) and not task.missing:
            task = task.following()
        with self._changed:
            self._tasks[message.id] = task
            self._turns.add(task)
            self._changed.notify_all()

    def _compute(self, threads: int) -> None:
        """Work on what waits, a batch or a slice of steps at a time, with so many of torch's threads."""
        torch.set_num_threads(threads)
        answered = 0.0
        while True:
            work = self._next(answered)
            if isinstance(work, Steps):
                self._advance(work, time.monotonic() + SLICE)
                answered = 0.0
            elif work:
                self._search(work)
                answered = time.monotonic()

    def _next(self, answered: float) -> list[Line] | Steps | None:
        """Wait for something to do, and return it; the thread's batch was answered at this time, 0 if it had none."""
        with self._changed:
            self._idle += 1
            while not self._turns:
                self._changed.wait()
            while self._turns.may_grow(self._idle):
                now, until = time.monotonic(), self._gathers_until(answered)
                if now >= until:
                    break
                self._changed.wait(until - now)
            for task in self._turns.drop(time.monotonic()):
                self._give_up(task)
            work = self._turns.take(self._idle)
            self._idle -= 1
            return work

    def _gathers_until(self, answered: float) -> float:
        """Return until when the next batch waits for further requests.

        Those whose batch was just answered may ask again. A few requests that have waited for long must not become a
        small batch meanwhile, which would take a quarter of a large one's time.
        """
        gather, turns = self._settings.gather_seconds, self._turns
        if not gather:
            return 0.0
        most = max(MOST_WAITS * gather, min(WAITED_SHARE * self._batch_seconds, LONGEST_WAIT))
        if turns.last <= answered:
            return answered + most
        return min(turns.last + gather, max(turns.first, answered) + most)

    def _search(self, batch: Sequence[Line]) -> None:
        config, began = batch[0].task.config, time.monotonic()
        generator = torch.Generator(self._translator.device)
        prefixes = [line.prefix for line in batch] if any(line.prefix for line in batch) else None

        def abandoned() -> set[int]:
            now = time.monotonic()
            return {b for b, line in enumerate(batch) if line.task.client.is_gone(now)}

        engine = self._translator.engine
        try:
            found = search_batch(engine, [line.ids for line in batch], prefixes, config, generator, abandoned=abandoned)
        except GlassformerError as error:  # numbers that overflowed
            for task in {id(line.task): line.task for line in batch}.values():
                self._refuse(task, "failed", str(error))
            return
        now = time.monotonic()
        self._batch_seconds = now - began
        requests = len({id(line.task) for line in batch})
        self._send(measured_as([line.ids for line in batch], found, now - began, requests))
        for line, best in zip(batch, found, strict=True):
            task = line.task
            if task.client.is_gone(now):
                self._give_up(task)
                continue
            task.found[line.number] = best
            with self._changed:
                task.missing -= 1
                is_last = not task.missing
            if is_last:
                self._finish(task)

    def _finish(self, task: Lines) -> None:
        """Answer a request whose lines are all translated, or let what remains of it wait for its turn."""
        with self._changed:
            if task.id not in self._tasks:
                return
            self._tasks[task.id] = rest = task.following()
            if task.rest_waits:
                self._turns.add(rest)
                self._changed.notify_all()
        if not task.rest_waits:
            self._advance(rest, math.inf)

    def _advance(self, task: Steps, until: float) -> None:
        """Work on a task step by step until this time, and then let it wait for its next turn."""
        try:
            while True:
                next(task.steps)
                now = time.monotonic()
                if task.client.is_gone(now):
                    self._give_up(task)
                    return
                if now >= until:
                    with self._changed:
                        self._turns.add(task)
                    return
        except StopIteration as done:
            self._answer(task, done.value)
        except Refusal as failure:
            self._refuse(task, failure.code, str(failure))
        except (ConfigError, ArgumentError) as error:  # a layer that the model lacks, or too many weights for a page
            self._refuse(task, "invalid", str(error))
        except GlassformerError as error:  # numbers that overflowed
            self._refuse(task, "failed", str(error))

    def _give_up(self, task: Task) -> None:
        if isinstance(task, Steps):
            task.steps.close()
        if task.client.has_left:
            self._refuse(task, "cancelled", "nobody waits for it")
        else:
            self._refuse(task, "deadline", "the time for it is up: ask for less at once, or for a smaller beam")

    def _answer(self, task: Task, rows: list[dict[str, Any]]) -> None:
        if self._tasks.pop(task.id, None):
            self._send(messages.Answer(task.id, rows))

    def _refuse(self, task: Task, code: str, error: str) -> None:
        task.client.has_left = True  # its other lines are searched for nobody
        if self._tasks.pop(task.id, None):
            self._send(messages.Refused(task.id, code, error))

    def _limits(self, config: SearchConfig) -> tuple[int, int]:
        return batch_limits(config, self._translator.engine.config.target_vocab_size)


def is_exact(translator: Translator) -> bool:
    """Return whether a line's numbers are the same to the last bit whatever else is in its batch."""
    return translator.precision.int8 and passes.compiled() is not None
