"""`glassformer runs`: list the runs in a folder, or compare two."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from glassformer.errors import ConfigError
from glassformer.settings.checks import Device, Flag
from glassformer.terminal import loading

FOLDER = Path("runs")


@dataclass(frozen=True, kw_only=True)
class RunsFlags:
    """List the runs in and below a folder, the last changed first, or compare two runs.

    A run is `training` while a process is at it, `unfinished` if it was stopped (`glassformer train --resume` continues
    it), `done`, `imported`, or `damaged`. Score and loss (nats per token) are those of the weights in the folder, on
    the validation pairs. A terminal gets a table of as many columns as fit; elsewhere all columns are printed,
    separated by tabs, below a line of their names.

    With --compare: the settings that differ, how the trainings went, and BLEU and chrF on the test sets that both have
    been scored on (`glassformer evaluate --save`), with sacreBLEU's paired bootstrap resampling.
    """

    folder: Annotated[Path, Flag(positional=True)] | None = None
    """Where to search, four folders deep; hidden folders are passed over. A run folder lists itself. Left out: runs."""
    compare: Annotated[tuple[Path, Path], Flag("RUN")] | None = None
    """Two run folders to compare."""
    picture: Path | None = None
    """With --compare: picture to draw, their losses and scores over each other (PNG, extra `plots`)."""
    pairs: tuple[Path, ...] = ()
    """With --compare: pairs that both translate to be scored, in place of those that they have been scored on: a file
    of sources and one of references, or one file of both sides."""
    columns: Annotated[tuple[str, str], Flag("NAME")] | None = None
    """With --pairs: the source's and the reference's column of a table, by name or number; of a TMX file the two
    languages."""
    device: Device = "auto"
    """With --pairs: where to compute: auto, cpu, cuda or mps."""


def list_runs(flags: RunsFlags) -> int:
    """Print the runs below a folder, or two beside each other."""
    if flags.compare is not None:
        return _compare(flags, flags.compare)
    if flags.picture is not None or flags.pairs or flags.columns is not None or flags.device != "auto":
        raise ConfigError("--picture, --pairs, --columns and --device are for two runs: name them with --compare")
    from glassformer.run.listing import advice, as_lines, as_table, find_runs

    runs = find_runs(flags.folder or FOLDER)
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(as_table(runs, console.width))
    for line in advice(runs) if sys.stdout.isatty() else as_lines(runs):
        print(line)
    return 0


def _compare(flags: RunsFlags, both: tuple[Path, Path]) -> int:
    """Print two runs beside each other, and draw their curves if wanted."""
    from glassformer.files import check_apart
    from glassformer.pairs.files import PairFiles
    from glassformer.pictures import check_picture, load_matplotlib
    from glassformer.run.config import own_files
    from glassformer.run.curves import draw_comparison

    if flags.folder is not None:
        raise ConfigError(f"--compare takes two run folders, and no folder to search: leave out {flags.folder}")
    if flags.picture is not None:
        check_picture(flags.picture)
        for run in both:
            check_apart({"--picture": flags.picture}, {"--pairs": flags.pairs} | own_files(run))
        load_matplotlib("curves")
    if not flags.pairs and flags.columns is not None:
        raise ConfigError("--columns are those of --pairs: give both")
    if not flags.pairs and flags.device != "auto":
        raise ConfigError("--device is where --pairs are translated: give both")
    pairs = PairFiles.of(flags.pairs, "--pairs", flags.columns) if flags.pairs else None
    if pairs is not None:
        pairs.check()
    with loading():
        from glassformer.insight.comparison import compare_runs
    for line in compare_runs(*both, pairs, device=flags.device).lines():
        print(line)
    if flags.picture is not None:
        draw_comparison(both, flags.picture)
        print(f"{flags.picture}: their losses and scores")
    return 0
