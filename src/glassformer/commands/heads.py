"""`glassformer heads`: what each attention head of a run does."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.errors import DataError, RunError
from glassformer.files import check_writable
from glassformer.pairs.files import PairFiles
from glassformer.pictures import can_draw
from glassformer.run.config import read_config
from glassformer.run.names import HEADS, HEADS_PICTURE
from glassformer.settings.checks import Count, Flag
from glassformer.terminal import loading, say

if TYPE_CHECKING:
    from glassformer.alignment.heads import AligningHeads
    from glassformer.generation.translator import Translator

MOST_PAIRS = 3000
"""Most pairs by which heads that align are looked for, where the run keeps no choice."""


@dataclass(frozen=True, kw_only=True)
class HeadsFlags:
    """Show what each attention head of a run does on your sentences.

    Each head has its own line: how much the loss rises without it, how sure and how spread its weights are, on which
    relative position they mostly fall, and its role. The roles positional, syntactic and rare words follow the criteria
    of Voita et al. 2019; a head with the role end rests on the end of the sentence. Below stand the heads that align
    best: those that `glassformer align` has chosen for the run, or else those that align best on these sentences. The
    command writes heads.json and, with matplotlib, heads.png into the run folder.
    """

    run: Annotated[Path, Flag(positional=True)]
    """The run folder."""
    data: tuple[Path, ...]
    """The sentences: a file of sources and one of targets, or one file of both sides."""
    columns: Annotated[tuple[str, str], Flag("NAME")] | None = None
    """The source's and the target's column of a table, by name or number; of a TMX file the two languages."""
    sentences: Count = 500
    """Number of sentences to study; rare tokens are counted over all."""
    trees: Path | None = None
    """Dependency trees of sources among them, in CoNLL-U: which heads attend along nsubj, obj, amod, advmod? Their text
    must be that of the sentences, in any order."""
    device: Annotated[str, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""


def study_heads(flags: HeadsFlags) -> int:
    """Print the table of heads; leave it in the run folder, with its picture."""
    read_config(flags.run)
    pairs = PairFiles.of(flags.data, "--data", flags.columns)
    pairs.check()
    check_writable(flags.run / HEADS)
    drawn = can_draw()
    if drawn:
        check_writable(flags.run / HEADS_PICTURE)
    with loading():
        from glassformer.device import pick_device, tame_memory
        from glassformer.generation.direction import SWAPPED, prefers_swapped
        from glassformer.generation.translator import Translator
        from glassformer.insight.chart import draw_heads
        from glassformer.insight.heads import table_lines, write_heads
        from glassformer.insight.study import Sentences
        from glassformer.insight.study import study_heads as study
        from glassformer.insight.syntax import Treebank
        from glassformer.run.folder import load_run

    tame_memory()
    run = load_run(flags.run, pick_device(flags.device))
    translator = Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, "float32")
    if prefers_swapped(translator, pairs):
        say(f"{flags.run}: {SWAPPED}")
    trees = None if flags.trees is None else Treebank(flags.trees)
    heads = study(run, Sentences.from_pairs(run, pairs, flags.sentences, trees))
    write_heads(flags.run, heads)
    if drawn:
        draw_heads(heads, flags.run / HEADS_PICTURE)
    for line in table_lines(heads):  # last: whoever reads it may close the pipe, which ends the command
        print(line)
    if (aligning := _aligning(flags.run, translator, pairs)) is not None:
        print(f"aligns best: {aligning}")
    if drawn:
        print(f"{flags.run / HEADS_PICTURE}: their picture")
    return 0


def _aligning(run: Path, translator: "Translator", pairs: PairFiles) -> "AligningHeads | None":
    """Return the heads that align best, as the run folder keeps them or as pairs tell; None, and why, without any."""
    from glassformer.alignment.choice import choose_heads
    from glassformer.alignment.heads import read_aligning_heads
    from glassformer.data.held_out import is_usable

    if (kept := read_aligning_heads(run, translator.engine.config)) is not None:
        return kept
    some = list(islice((pair for pair in pairs if is_usable(*pair)), MOST_PAIRS))
    try:
        return choose_heads(translator, [source for source, _ in some], [target for _, target in some])
    except (DataError, RunError) as error:
        say(f"which heads align best can't be told: {error}")
        return None
