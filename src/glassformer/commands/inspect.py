"""`glassformer inspect`: a page of the attention of one translation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from glassformer.generation.config import Hypotheses
from glassformer.settings.checks import Flag
from glassformer.terminal import loading, say


@dataclass(frozen=True, kw_only=True)
class InspectFlags:
    """Write a page that shows where a run looks while it translates.

    One HTML file that needs no network: the encoder's attention, the decoder's to its own text and to the source, every
    head of every layer, token by token, for several hypotheses of the beam. Roles and importance of the heads are on it
    once `glassformer heads` has studied the run.
    """

    run: Annotated[Path, Flag(positional=True)]
    """The run folder."""
    source: Annotated[str, Flag(bare=True)]
    """The line to translate."""
    target: str | None = None
    """A translation to show, in place of the run's own."""
    out: Annotated[Path, Flag("FILE")] = Path("attention.html")
    """The page to write."""
    hypotheses: Hypotheses = 3
    """Number of translations to compare, best first."""
    device: Annotated[str, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""


def inspect_run(flags: InspectFlags) -> int:
    """Write the page."""
    from glassformer.files import check_apart, check_writable, names_file
    from glassformer.run.config import own_files

    if names_file(flags.source):
        say(f"{flags.source} is a file, and its name is translated: give a line of it")
    check_writable(flags.out)
    check_apart({"--out": flags.out}, own_files(flags.run))
    with loading():
        from glassformer.device import tame_memory
        from glassformer.page.inspection import inspect

    tame_memory()
    page = inspect(flags.run, flags.source, flags.target, hypotheses=flags.hypotheses, device=flags.device)
    page.save(flags.out)
    print(f"{flags.out}: open it in a browser")
    return 0
