"""The queue of a worker: requests take turns, and lines of several requests share a batch.

Whoever has waited longest is next. Its longest line begins a batch, and each request that searches alike adds one line
of about that length after the other, until the batch is full. Whoever got in goes to the end of the queue. So a
document can't keep a short line waiting for more than the batches that are under way.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from glassformer.generation.config import SearchConfig
from glassformer.generation.search import Hypothesis

NEAR, ALWAYS_NEAR = 2.0, 8
"""Lengths of a batch's lines differ from the first one's by at most this factor, or this many tokens."""

Rows = Generator[None, None, list[dict[str, Any]]]
"""Work that goes step by step and returns the rows of an answer."""


@dataclass(frozen=True)
class Line:
    """A line to search a translation for."""

    task: "Lines"
    number: int
    """Its place in the request."""
    ids: list[int]
    prefix: list[int]


@dataclass(eq=False)
class Client:
    """Whoever waits for a request."""

    until: float
    """When it stops waiting, on the clock `time.monotonic`."""
    has_left: bool = False

    def is_gone(self, now: float) -> bool:
        """Return whether it waits no more."""
        return self.has_left or now >= self.until


@dataclass(eq=False)
class Task:
    """A request that is not done."""

    id: int
    client: Client


@dataclass(eq=False)
class Steps(Task):
    """A request that is worked on step by step: a stream, alternatives, or what remains to do for translated lines."""

    steps: Rows = field(kw_only=True)


@dataclass(eq=False, kw_only=True)
class Lines(Task):
    """A request for translations of lines."""

    config: SearchConfig
    waiting: list[Line] = field(default_factory=list)
    """The lines that no batch has taken, shortest first."""
    missing: int = 0
    """Number of lines that have no translation."""
    alone: bool = False
    """Its batches hold no lines of others."""
    found: list[list[Hypothesis]]
    """Hold what was found for each line."""
    rest: Rows
    """Make the answer, once nothing is missing."""
    rest_waits: bool
    """Let the answer, which takes longer, wait for its turn; else it is made right after the last batch."""

    def put(self, lines: list[Line]) -> None:
        """Add the lines to search for."""
        self.waiting = sorted(lines, key=_length)
        self.missing = len(lines)

    def following(self) -> Steps:
        """Return what remains to be done once nothing is missing."""
        return Steps(self.id, self.client, steps=self.rest)

    def pop_longest(self) -> Line:
        """Take out the longest line that waits."""
        return self.waiting.pop()

    def pop_near(self, length: int) -> Line | None:
        """Take out the longest waiting line that is about so long; None where there is none."""
        least, most = min(length / NEAR, length - ALWAYS_NEAR), max(length * NEAR, length + ALWAYS_NEAR)
        place = bisect_left(self.waiting, most + 1, key=_length) - 1
        if place < 0 or len(self.waiting[place].ids) < least:
            return None
        return self.waiting.pop(place)


class Turns:
    """The tasks that wait for their turn."""

    def __init__(self, limits: Callable[[SearchConfig], tuple[int, int]], *, shares: bool) -> None:
        """`limits` gives the most padded tokens and the most lines of a batch; with `shares` requests share batches."""
        self._limits = limits
        self._shares = shares
        self._tasks: deque[Task] = deque()
        self.first = self.last = 0.0
        """Keep when the first of the tasks that wait came, and the last one."""

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Task) -> None:
        """Put a task at the end of the queue."""
        self.last = time.monotonic()
        if not self._tasks:
            self.first = self.last
        self._tasks.append(task)

    def may_grow(self, idle: int = 1) -> bool:
        """Return whether further requests could join the batches that are next, one for each of the `idle` threads."""
        head = self._tasks[0] if self._tasks else None
        if not self._shares or not isinstance(head, Lines) or head.alone:
            return False
        most_tokens, most_lines = self._limits(head.config)
        lines = [line for task in self._sharing(head) for line in task.waiting]
        return len(lines) < idle * most_lines and sum(map(_length, lines)) < idle * most_tokens

    def drop(self, now: float) -> list[Task]:
        """Take out the tasks that nobody waits for, and return them."""
        over = [task for task in self._tasks if task.client.is_gone(now)]
        if over:
            self._tasks = deque(task for task in self._tasks if not task.client.is_gone(now))
        return over

    def take(self, idle: int = 1) -> list[Line] | Steps | None:
        """Return the next batch, or the next task that goes step by step; None where nothing waits.

        So many threads are `idle`: they share out what there is.
        """
        if not self._tasks:
            return None
        head = self._tasks.popleft()
        self.first = self.last if self._tasks else 0.0
        if isinstance(head, Steps):
            return head
        assert isinstance(head, Lines)
        sharing = [head, *self._sharing(head)]
        batch = self._fill(sharing, idle)
        served = {id(line.task) for line in batch}
        behind = [task for task in sharing if id(task) in served and task.waiting]
        self._tasks = deque([*(task for task in self._tasks if id(task) not in served), *behind])
        return batch

    def _sharing(self, head: Lines) -> Iterator[Lines]:
        """Yield the tasks in the queue whose lines may be in one batch with those of `head`."""
        if not self._shares or head.alone:
            return
        for task in self._tasks:
            if isinstance(task, Lines) and not task.alone and task.waiting and task.config == head.config:
                yield task

    def _fill(self, sharing: list[Lines], idle: int) -> list[Line]:
        """Take lines of these tasks, of which the first begins, in turns until the batch is full."""
        most_tokens, most_lines = self._limits(sharing[0].config)
        waiting = sum(len(task.waiting) for task in sharing)
        most_lines = max(1, min(most_lines, -(-waiting // max(1, idle))))
        batch = [sharing[0].pop_longest()]
        first = longest = len(batch[0].ids)
        open_ = deque([*sharing[1:], sharing[0]])
        while open_ and len(batch) < most_lines:
            task = open_.popleft()
            line = task.pop_near(first)
            if line is None:
                continue
            if max(longest, len(line.ids)) * (len(batch) + 1) > most_tokens:
                task.waiting.insert(bisect_left(task.waiting, len(line.ids), key=_length), line)
                continue
            batch.append(line)
            longest = max(longest, len(line.ids))
            open_.append(task)
        return batch


def _length(line: Line) -> int:
    return len(line.ids)
