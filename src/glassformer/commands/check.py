"""`glassformer check`: what pairs of text are like, before any training."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from glassformer.settings.checks import Choice, Flag, Positive
from glassformer.terminal import loading, show
from glassformer.training.config import TASKS, TrainConfig

if TYPE_CHECKING:
    from glassformer.data.facts import Finding, PairFacts, SideFacts

BAR = 24
"""Columns of the longest bar of a histogram."""


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """Say what pairs of text are like, and what looks wrong with them.

    Also says which settings `glassformer train` would choose. Nothing is trained or written. Takes the files as `train`
    does.
    """

    source: Annotated[tuple[Path, ...], Flag(positional=True)]
    """The pairs, or their sources. Several files are mixed; a.tsv:3 is read three times."""
    target: tuple[Path, ...] | None = None
    """Targets, line by line the counterparts of the sources."""
    columns: Annotated[tuple[str, str], Flag("NAME")] | None = None
    """The source's and the target's column of a table, by name or number; of a TMX file the two languages."""
    valid_source: tuple[Path, ...] | None = None
    """Validation pairs, or their sources."""
    valid_target: tuple[Path, ...] | None = None
    """Validation targets."""
    max_minutes: Positive | None = None
    """Limit of the training in minutes, on which some settings depend."""
    task: Annotated[str, Choice(*TASKS)] | None = None
    """The task of the training, which has settings of its own."""


def check_pairs(flags: CheckFlags) -> int:
    """Print the facts about the pairs, and how `glassformer train` would take them."""
    config = TrainConfig(
        source=flags.source,
        target=flags.target,
        columns=flags.columns,
        valid_source=flags.valid_source,
        valid_target=flags.valid_target,
        max_minutes=flags.max_minutes,
        task=flags.task,
        out=Path("run"),
    )
    for pairs in filter(None, (config.pairs, config.valid_pairs)):
        pairs.check()
    with loading():
        from glassformer.data.facts import describe_pairs, shortened
        from glassformer.data.preparation import Preparation
        from glassformer.pairs.mixture import unweighted
        from glassformer.training.automatic import settle
        from glassformer.training.prepare import data_settings

    preparation = Preparation.from_files(data_settings(config), show)
    facts = describe_pairs(unweighted(config.pairs))
    show(f"{config.pairs.name}: {facts.pairs:,} {'pair' if facts.pairs == 1 else 'pairs'}, for example")
    for source, target in islice(filter(any, preparation.training.sample), 3):
        show(f"  {shortened(source)} -> {shortened(target)}")
    if facts.gaps:
        places = "1 place" if facts.gaps == 1 else f"{facts.gaps:,} places"
        show(f"  and {places} without a pair, such as empty lines or units that aren't translated")
    for line in (*_side_lines(facts), "", *_findings(facts)):
        show(line)
    if config.valid_pairs is not None:
        valid = list(config.valid_pairs)
        show(_overlap(unweighted(config.pairs), valid))
    show("glassformer train would say:")
    training = preparation.training
    settled = settle(config, training.with_text, describe_pairs(training.usable_sample()), show)
    print("and prepare:", flush=True)
    with TemporaryDirectory() as folder:
        say = partial(show, " ")
        prepared = replace(preparation, settings=data_settings(settled), say=say)
        prepared.make(Path(folder) / "prepared", settled.model_config)
    return 0


def _side_lines(facts: "PairFacts") -> Iterator[str]:
    """Yield a table of both sides, and the histogram of their lengths."""
    sides = facts.source, facts.target
    yield ""
    yield f"{'':22}{'source':>24}{'target':>28}"
    rows = {
        "characters a line": [f"{side.characters:.1f}, at most {side.longest:,}" for side in sides],
        "words a line": [f"{side.words:.1f}" for side in sides],
        "different words": [f"{side.distinct_words:,}" for side in sides],
        "different characters": [f"{side.distinct_characters:,}" for side in sides],
        "script": [side.script or "none" for side in sides],
    }
    for name, (left, right) in rows.items():
        yield f"{name:22}{left:>24}{right:>28}"
    yield "lines by characters"
    for n in range(max(len(side.histogram) for side in sides)):
        label = "0" if n == 0 else "1" if n == 1 else f"{1 << n - 1} to {(1 << n) - 1}"
        bars = [_bar(side, n) for side in sides]
        yield f"  {label:>14}  {bars[0]:<28}{bars[1]}".rstrip()


def _bar(side: "SideFacts", n: int) -> str:
    count = side.histogram[n] if n < len(side.histogram) else 0
    width = round(BAR * count / max(1, *side.histogram))
    return "█" * width or ("▏" if count else "")


def _findings(facts: "PairFacts") -> Iterator[str]:
    """Yield a line for each way in which pairs look wrong."""
    for what, finding in facts.findings.items():
        if finding.count:
            yield f"{what}: {finding.count:,} {'pair' if finding.count == 1 else 'pairs'}, {_first(finding)}"
    if not any(finding.count for finding in facts.findings.values()):
        yield "no pair is empty, repeated, a copy of its source, or the wrong way round"


def _first(finding: "Finding") -> str:
    return f"{'' if finding.count == 1 else 'the first '}number {finding.number:,}: {finding.example}"


def _overlap(pairs: Iterable[tuple[str, str]], valid: Sequence[tuple[str, str]]) -> str:
    """Say how many validation sources are training sources too, of the pairs that have text on both sides."""
    from glassformer.data.held_out import is_usable

    known = {source for source, target in pairs if is_usable(source, target)}
    scored = [(number, source) for number, (source, target) in enumerate(valid, start=1) if is_usable(source, target)]
    common = [number for number, source in scored if source in known]
    if not common:
        return f"none of the {len(scored):,} validation sources is among those to train on"
    return (
        f"{len(common):,} of the {len(scored):,} validation sources {'is' if len(common) == 1 else 'are'} among those "
        f"to train on (the first is number {common[0]:,}): their scores say little about text that is new"
    )
