"""`glassformer runs`: list the runs in a folder."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from glassformer.checks import Flag


@dataclass(frozen=True, kw_only=True)
class RunsFlags:
    """List the runs in and below a folder, the last changed first.

    A run is `training` while a process is at it, `unfinished` if it was stopped (`glassformer train --resume` continues
    it), `done`, `imported`, or `damaged`. The score is the best of its validations, the loss that of the last one, in
    nats per token. A terminal gets a table of as many columns as fit; elsewhere all columns are printed, separated by
    tabs, below a line of their names.
    """

    folder: Annotated[Path, Flag(positional=True)] = Path("runs")
    """Where to search, four folders deep; hidden folders are passed over. A run folder lists itself."""


def list_runs(flags: RunsFlags) -> int:
    """Print the runs below a folder."""
    from glassformer.run.listing import advice, as_lines, as_table, find_runs

    runs = find_runs(flags.folder)
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(as_table(runs, console.width))
    for line in advice(runs) if sys.stdout.isatty() else as_lines(runs):
        print(line)
    return 0
