"""Pieces that several commands share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from glassformer.errors import ConfigError, printable
from glassformer.files import remove_unfinished


def check_new_folder(path: Path) -> None:
    """Raise ConfigError unless `path` may become a folder to write: nothing is there, or an empty folder.

    What a process that was killed was making there is removed.
    """
    remove_unfinished(path.parent, path.name)
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise ConfigError(f"--out {path} is already there: give a new name, or remove it first")


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
