"""Progress of long work: a bar on a terminal's standard error, elsewhere a line now and then."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

SECONDS = 10
"""Seconds between lines."""
BARS = {120: 24, 90: 12, 72: 8}
"""Columns of the bar on a terminal of at least so many; a narrower one has none, but more facts."""
ELAPSED = len("00:00:00")


def can_move(console: Console) -> bool:
    """Return whether a bar can move there: on a terminal, unless TERM says that it can only print.

    FORCE_COLOR, which notebooks set, asks rich for colours where there is no terminal; a bar can't move there.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


class Bar:
    """A bar that moves on a terminal, with the time since it began and the facts that fit beside it."""

    def __init__(self, what: str, console: Console, *, transient: bool = False) -> None:
        """`what` is done. A `transient` bar vanishes when it is stopped."""
        self._console = console
        size = next((size for least, size in BARS.items() if console.width >= least), 0)
        bar = [BarColumn(bar_width=size)] if size else []
        columns = [TextColumn("{task.description}"), *bar, TimeElapsedColumn()]
        facts = TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._progress = Progress(*columns, facts, console=console, transient=transient)
        self._task = self._progress.add_task(what, total=None, facts="")
        self._taken = len(what) + size + ELAPSED + len(columns)

    def start(self) -> None:
        """Show the bar."""
        self._progress.start()

    def stop(self) -> None:
        """Leave the bar as it is, or remove it."""
        self._progress.stop()

    def draw(self, share: float | None, facts: Sequence[str], between: str) -> None:
        """Show that this share is done, if it is known, and the first of the facts."""
        text = fitting(facts, self._console.width - self._taken, between)
        self._progress.update(self._task, total=None if share is None else 1.0, completed=share, facts=text)


def fitting(facts: Sequence[str], width: int, between: str) -> str:
    """Return the first facts that fit into so many columns, with `between` them.

    >>> fitting(["2:03 left", "loss 1.25"], 20, ", "), fitting(["2:03 left", "loss 1.25"], 19, ", ")
    ('2:03 left, loss 1.25', '2:03 left')
    """
    count = len(facts)
    while count and len(between.join(facts[:count])) > width:
        count -= 1
    return between.join(facts[:count])


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
        console = Console(stderr=True, soft_wrap=True)
        self._bar = Bar(what, console, transient=transient) if can_move(console) else None

    def __enter__(self) -> "Meter":
        self._began = self._last = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._bar.draw(self._share(self._before), (), ", ")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, share: float | None = None, more: Sequence[str] = ()) -> None:
        """Show that `done` units are done, and `more` facts.

        Where the total is unknown, `share` may say which share that is.
        """
        now = time.monotonic()
        share = self._share(done) if share is None else share
        seconds = now - self._began

        def facts() -> list[str]:
            return [*progress_facts(done, done - self._before, seconds, self._unit, self._total, share), *more]

        if self._bar is not None:
            self._bar.draw(share, facts(), ", ")
        elif self._say is not None and now - self._last >= SECONDS:
            self._last = now
            self._say(f"{self._what}: {', '.join(facts())}")

    def _share(self, done: int) -> float | None:
        return None if self._total is None else done / max(self._total, 1)


def progress_facts(
    done: int, new: int, seconds: float, unit: str, total: int | None, share: float | None = None
) -> list[str]:
    """Return as texts what is done, where `total` or `share` is known the time left, and how fast it goes.

    `new` of the `done` units took these `seconds`.
    """
    speed = new / max(seconds, 1e-9)
    count = f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}"
    rate = f"{speed:,.0f} {unit}/s" if speed >= 10 else f"{speed:.2g} {unit}/s"
    left = None
    if total is not None and done < total:
        left = (total - done) / speed
    elif total is None and share is not None and 0 < share < 1:
        left = seconds * (1 - share) / share
    return [count, *([] if left is None else [f"{timedelta(seconds=round(left))} left"]), rate]


def format_duration(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds: 1:02:03, or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
