"""`glassformer align`: which word of a line each word of its translation stands for."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.alignment.links import Link, Symmetrization, pharaoh, symmetrize
from glassformer.errors import ConfigError
from glassformer.files import check_apart, check_writable, replacing
from glassformer.pairs.files import Pair, PairFiles, columns_of_each
from glassformer.run.config import own_files
from glassformer.settings.checks import Choice, Flag
from glassformer.terminal import loading, say
from glassformer.text.words import Word, split_words

if TYPE_CHECKING:
    from glassformer.alignment.attention import AttentionAligner

FORMATS = ("pharaoh", "jsonl")
Aligned = tuple[Sequence[Word], Sequence[Word], Sequence[Link]]
"""The words of a source and of its target, and their links."""


@dataclass(frozen=True, kw_only=True)
class AlignFlags:
    """Align the words of pairs: which word of the source each word of the target stands for.

    Without a run folder the alignment is learned from the pairs alone, by statistics. With a run folder it is read from
    the model's attention to the source while the model reads the target. The first use chooses the heads that agree
    best with the statistics, and keeps the choice in the run folder. Words are separated by white space. In scripts
    without spaces a word is a letter, or with a run folder a token.
    """

    run: Annotated[Path | None, Flag(positional=True)] = None
    """A run folder, whose attention aligns. Left out: no model is needed."""
    source: Path | None = None
    """Sources, one a line; without --target a file of both sides, as `glassformer train` reads them."""
    target: Path | None = None
    """Targets, one a line."""
    columns: Annotated[tuple[str, str], Flag("NAME")] | None = None
    """The source's and the target's column of a table, by name or number; of a TMX file the two languages."""
    output: Path | None = None
    """File to write; it appears when it is complete. Left out: standard output."""
    format: Annotated[str, Choice(*FORMATS)] = "pharaoh"
    """pharaoh: a line of links such as 0-0 1-2, source before target, counted from 0; jsonl: a line of JSON with the
    words, their links and probabilities."""
    probabilities: bool = False
    """Put the probability behind each link: 0-0:0.985."""
    symmetrize: Annotated[Symmetrization | None, Flag("METHOD")] = None
    """Join the links of both directions by this method: grow-diag-final-and (Koehn et al. 2003), which is the default,
    intersection, union, forward or backward. A run folder needs --reverse for it."""
    reverse: Path | None = None
    """A run folder of the other direction, whose attention explains the source's words by the target's."""
    pieces: bool = False
    """Align the tokens of the run's vocabularies in place of words."""
    data: tuple[Path, ...] = ()
    """Pairs to learn from: a file of sources and one of targets, or one file of both sides. Without a run folder they
    are added to those to align; with one, heads are chosen by them, anew if they were chosen before. Left out: the
    pairs to align."""
    device: Annotated[str, Flag("DEVICE")] = "auto"
    """Where a run computes: auto, cpu, cuda or mps."""
    precision: Annotated[str, Flag("TYPE")] = "auto"
    """float32, bfloat16, float16, int8, or auto: what is fastest here (int8 on recent CPUs)."""


def align(flags: AlignFlags) -> int:
    """Write a line of links for each pair."""
    if flags.source is None:
        raise ConfigError("align needs --source, and --target unless one file has both sides")
    if flags.run is None:
        for name in ("reverse", "pieces", "device", "precision"):
            if getattr(flags, name) != getattr(AlignFlags, name):
                raise ConfigError(f"--{name} is for a run folder: name one before all flags, or leave it out")
    if flags.run is not None and flags.symmetrize is not None and flags.reverse is None:
        raise ConfigError("--symmetrize joins two directions: give --reverse, a run of the other one, or leave it out")
    of_pairs, of_data = columns_of_each(flags.columns, flags.target is None, len(flags.data) == 1)
    pairs = PairFiles(flags.source, flags.target, of_pairs)
    data = PairFiles.of(flags.data, "--data", of_data) if flags.data else None
    for files in filter(None, (pairs, data)):
        files.check()
    if flags.output == Path("-"):
        raise ConfigError("--output must be a file, got -: leave it out for standard output")
    if flags.output is not None:
        check_writable(flags.output)
    own = [own_files(run) for run in (flags.run, flags.reverse) if run is not None]
    given = {"--source": flags.source, "--target": flags.target, "--data": flags.data}
    for read in (given, *own):
        check_apart({"--output": flags.output}, read)
    with loading():
        from glassformer.device import tame_memory

    tame_memory()
    lines = _lines(flags, _aligned(flags, pairs, data))
    if flags.output is None:
        for line in lines:
            print(line)
    else:
        with replacing(flags.output) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
    return 0


def _aligned(flags: AlignFlags, pairs: PairFiles, data: PairFiles | None) -> Iterator[Aligned]:
    if flags.run is None:
        return _by_statistics(pairs, data, flags.symmetrize or "grow-diag-final-and")
    return _by_attention(flags, flags.run, pairs, data)


def _by_statistics(pairs: PairFiles, data: PairFiles | None, method: Symmetrization) -> Iterator[Aligned]:
    """Yield the alignments that the pairs teach."""
    from glassformer.alignment.aligner import Aligner, check_lengths

    given = list(pairs)
    check_lengths(*_sides(given))
    sources, targets = _sides([*given, *(data or ())])
    say(f"learning an alignment from {len(sources):,} pairs")
    aligner = Aligner.train(sources, targets)
    for chunk in _chunks(given):
        links = aligner.align(*_sides(chunk), method)
        for (source, target), of_pair in zip(chunk, links, strict=True):
            yield split_words(source), split_words(target), of_pair


def _by_attention(flags: AlignFlags, run: Path, pairs: PairFiles, data: PairFiles | None) -> Iterator[Aligned]:
    """Yield the alignments that the attention of a run gives, or of two runs."""
    from glassformer.generation.direction import SWAPPED, prefers_swapped

    aligner = open_aligner(run, data or pairs, flags.device, flags.precision, anew=data is not None)
    if prefers_swapped(aligner.translator, pairs):
        say(f"{run}: {SWAPPED}")
    backward = None
    if flags.reverse is not None:
        turned = _Turned(data or pairs)
        backward = open_aligner(flags.reverse, turned, flags.device, flags.precision, anew=data is not None)
        if prefers_swapped(backward.translator, _Turned(pairs)):
            say(f"{flags.reverse}: {SWAPPED}")
    for chunk in _chunks(pairs):
        sources, targets = _sides(chunk)
        alignments = aligner.align(sources, targets, pieces=flags.pieces)
        if backward is None:
            yield from ((one.source, one.target, one.links) for one in alignments)
            continue
        words = [one.target for one in alignments], [one.source for one in alignments]
        for one, other in zip(alignments, backward.align_words(targets, sources, *words), strict=True):
            turned_links = [Link(link.target, link.source, link.probability) for link in other.links]
            yield one.source, one.target, symmetrize(one.links, turned_links, flags.symmetrize or "grow-diag-final-and")


def open_aligner(
    run: Path, pairs: Iterable[Pair], device: str, precision: str, *, anew: bool = False
) -> "AttentionAligner":
    """Return the aligner of a run; its heads are chosen by these pairs, unless that was done before, and kept."""
    from glassformer.alignment.attention import AttentionAligner
    from glassformer.alignment.choice import choose_heads
    from glassformer.alignment.heads import read_aligning_heads, write_heads
    from glassformer.generation.translator import Translator

    translator = Translator.load(run, device, precision)
    heads = None if anew else read_aligning_heads(run, translator.engine.config)
    if heads is None:
        say(f"{run}: choosing the heads that align best")
        heads = choose_heads(translator, *_sides(list(pairs)))
        write_heads(run, heads)
        say(f"{run}: {heads}")
    return AttentionAligner(translator, heads)


class _Turned:
    """Pairs with source and target exchanged."""

    def __init__(self, pairs: PairFiles) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[Pair]:
        return ((target, source) for source, target in self._pairs)


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    from glassformer.generation.stream import LINES_AT_ONCE

    chunk = list[Pair]()
    for pair in pairs:
        chunk.append(pair)
        if len(chunk) == LINES_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _sides(pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
    return [source for source, _ in pairs], [target for _, target in pairs]


def _lines(flags: AlignFlags, aligned: Iterable[Aligned]) -> Iterator[str]:
    for source, target, links in aligned:
        if flags.format == "pharaoh":
            yield pharaoh(links, probabilities=flags.probabilities)
            continue
        sides = {"source": [word.text for word in source], "target": [word.text for word in target]}
        yield json.dumps({**sides, "links": [list(link) for link in links]}, ensure_ascii=False)
