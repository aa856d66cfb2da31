"""Lines on the terminal, and a sign that something moves while torch is loaded."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from glassformer.errors import printable


def show(*words: str) -> None:
    """Print a line on standard output that may hold text of others: its control characters are shown as escapes."""
    print(*map(printable, words))


def say(line: str) -> None:
    """Show a line on standard error."""
    print(printable(line), file=sys.stderr)


@contextmanager
def loading() -> Iterator[None]:
    """Show on a terminal that something moves while torch is loaded, which takes seconds."""
    from rich.console import Console

    from glassformer.meter import can_move

    console = Console(stderr=True)
    with console.status("loading torch") if can_move(console) else nullcontext():
        yield
