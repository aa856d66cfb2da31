"""Progress of long work: a bar on a terminal's standard error, elsewhere a line now and then."""

import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

SECONDS = 10
"""Seconds between lines."""


def can_move(console: Console) -> bool:
    """Return whether a bar can move there: on a terminal, unless TERM says that it can only print."""
    return console.is_terminal and not console.is_dumb_terminal


class Meter:
    """A display of count, rate and, where the end is known, the time left.

    It is a bar where standard error is a terminal. Elsewhere `say`, where it is given, is called every ten seconds.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        *,
        total: int | None = None,
        before: int = 0,
        transient: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`before` of the `total` were done earlier. A `transient` bar vanishes when the work is done."""
        self._what, self._unit, self._total, self._before, self._say = what, unit, total, before, say
        self._progress: Progress | None = None
        console = Console(stderr=True)
        if can_move(console):
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
            facts = TextColumn("{task.fields[facts]}")
            self._progress = Progress(*columns, facts, console=console, transient=transient)
            self._task = self._progress.add_task(what, total=None, facts="")

    def __enter__(self) -> "Meter":
        self._began = self._last = time.monotonic()
        if self._progress is not None:
            self._progress.start()
            self._draw(self._share(self._before), "")
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, share: float | None = None) -> None:
        """Show that `done` units are done; where the total is unknown, `share` may say which share that is."""
        now = time.monotonic()
        share = self._share(done) if share is None else share
        seconds = now - self._began

        def facts() -> str:
            return progress_facts(done, done - self._before, seconds, self._unit, self._total, share)

        if self._progress is not None:
            self._draw(share, facts())
        elif self._say is not None and now - self._last >= SECONDS:
            self._last = now
            self._say(f"{self._what}: {facts()}")

    def _draw(self, share: float | None, facts: str) -> None:
        assert self._progress is not None
        self._progress.update(self._task, total=None if share is None else 1.0, completed=share, facts=facts)

    def _share(self, done: int) -> float | None:
        return None if self._total is None else done / max(self._total, 1)


def progress_facts(
    done: int, new: int, seconds: float, unit: str, total: int | None, share: float | None = None
) -> str:
    """Return what is done, how fast, and where `total` or `share` is known the time left, as text.

    `new` of the `done` units took these `seconds`.
    """
    speed = new / max(seconds, 1e-9)
    facts = f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}"
    facts += f", {speed:,.0f} {unit}/s" if speed >= 10 else f", {speed:.2g} {unit}/s"
    left = None
    if total is not None and done < total:
        left = (total - done) / speed
    elif total is None and share is not None and 0 < share < 1:
        left = seconds * (1 - share) / share
    return facts if left is None else f"{facts}, {timedelta(seconds=round(left))} left"


def format_duration(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds: 1:02:03, or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
