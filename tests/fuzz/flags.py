"""Every flag of every command with wrong values; drawn from the dataclasses, so that a new flag is among them."""

from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from lab import TINY
from targets import Input

from glassformer.cli import COMMANDS

BASES = {
    "train": ("--source p.tsv --out new --tokenizer char --max-updates 1", "p.tsv"),
    "check": ("p.csv", "p.csv"),
    "runs": (".", "run"),
    "translate": ("run abc", "run lines.txt"),
    "evaluate": ("run --source p.csv --beam 1", "run p.csv"),
    "inspect": ("run abc --out page.html", "run"),
    "heads": ("run --data p.csv --sentences 3", "run p.csv"),
    "import": ("--from marian --out new", "marian"),
    "export": ("run --to huggingface --out new", "run"),
}
"""Arguments that work, and the names in the lab that they need. A pruning and the demonstration train for minutes."""
ENDLESS = {"max_epochs", "max_minutes", "max_updates"}
"""Flags of which a large value is right, and never ends."""
VALUES = [
    *("", " ", "x", "0", "-1", "1.5", "1e9", "1000000000", "1000000000000000000", "9" * 401, "nan", "inf", "1e400"),
    *(
        "\x1b[31m",
        "\u202eabc",
        "a\udcff",
        "x" * 1_000_000,
        "../nowhere",
        "nowhere",
        ".",
        "run",
        "p.csv",
        "folder",
        "--",
    ),
]
READ, WRITTEN = [*VALUES, "/dev/zero", "/dev/null"], [*VALUES, "pipe"]
"""For files that are written no device: a fault might replace it for the whole machine."""


@dataclass(frozen=True)
class Flags:
    """The flags of a command."""

    command: str

    @property
    def name(self) -> str:
        """The name in the table of counts."""
        return f"{self.command} flags"

    def inputs(self, lab: Path) -> st.SearchStrategy[Input]:
        """Return a strategy that draws the command with one or two flags of wrong values."""
        base, needs = BASES[self.command]
        given = [self.command, *base.split(), *(TINY if self.command == "train" else ())]
        arguments = list(COMMANDS[self.command].arguments.values())

        @st.composite
        def drawn(draw: st.DrawFn) -> Input:
            argument = draw(st.sampled_from(arguments))
            values = WRITTEN if argument.name in ("out", "output") else READ
            if argument.name in ENDLESS:
                values = [value for value in values if not value.startswith(("1", "9"))]
            words = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
            argv = (given[0], *words, *given[2:]) if argument.mark.positional else (*given, argument.flag, *words)
            return Input(self.name, argv, tuple(needs.split()), "pipe", "pipe")

        return drawn()


FLAGS = [Flags(command) for command in BASES]
