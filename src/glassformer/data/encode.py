"""Encoding pairs of text as bytes of token ids, and counting them. Loads no torch: worker processes do this."""

import json
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import NamedTuple

from glassformer.data.held_out import HeldOut, is_usable
from glassformer.data.neighbours import rows_of_neighbours
from glassformer.decoding import decode_message
from glassformer.pairs.files import Pair, PairBlock
from glassformer.settings.checks import LONGEST
from glassformer.text.joining import join_sentences
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import EOS, UNK, Tokenizer


@dataclass
class PairCounts:
    """Number of pairs read and kept, of those left out for each reason, of those that were joined, and of tokens."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    too_long: int = 0
    bad_ratio: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    source_unknown: int = 0
    """Source tokens that the vocabulary doesn't know."""
    target_unknown: int = 0
    joined: int = 0
    """Further pairs, each made of neighbouring ones."""

    def __str__(self) -> str:
        dropped = [
            f"{count:,} {what}"
            for count, what in (
                (self.empty, "empty"),
                (self.too_long, "too long"),
                (self.bad_ratio, "length ratio"),
            )
            if count
        ]
        left_out = f", left out {', '.join(dropped)}" if dropped else ""
        joined = f", and {self.joined:,} of joined neighbours" if self.joined else ""
        return (
            f"{self.kept:,} of {self.read:,} pairs{left_out}{joined}; "
            f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens"
        )

    def __add__(self, other: "PairCounts") -> "PairCounts":
        theirs = asdict(other)
        return PairCounts(**{name: value + theirs[name] for name, value in asdict(self).items()})

    def to_json(self) -> dict[str, int]:
        return asdict(self)


class EncodedPairs(NamedTuple):
    """Pairs as bytes: for each side all ids, `</s>` included, and the length of each sequence, both int32."""

    figures: bytes
    """JSON of the counts, of the pairs that were held out, and of the places of those that were left out."""
    source: bytes
    source_lengths: bytes
    target: bytes
    target_lengths: bytes

    @property
    def counts(self) -> PairCounts:
        return PairCounts(**decode_message(self.figures)[0])

    @property
    def held_out(self) -> list[Pair]:
        return [(source, target) for source, target in decode_message(self.figures)[1]]

    @property
    def left_out(self) -> list[int]:
        """Return the places of the pairs that were left out, among those that were read."""
        return decode_message(self.figures)[2]


@dataclass(frozen=True)
class PairEncoder:
    """Work for `map_in_order`: encodes a block with the tokenizers in two files.

    It leaves out pairs with an empty side, pairs with a side of more than `max_tokens` tokens (`</s>` counted), and
    pairs whose lengths differ by more than the factor `max_ratio`. Pairs held out for validation (see `HeldOut`) are
    returned as text. After those of a block come pairs of up to `join_lines` neighbouring lines, joined.
    """

    source: str
    target: str
    max_tokens: int = LONGEST
    max_ratio: float = float("inf")
    seed: int = 0
    ranks: Sequence[int] = ()
    join_lines: int = 1

    def __call__(self, parts: list[bytes]) -> list[bytes]:
        block = PairBlock.from_parts(parts)
        return list(self.encode(*block.pairs(), repeated=block.repeated, first=block.first))

    def encode(
        self, sources: Sequence[str], targets: Sequence[str], *, repeated: bool = False, first: int = 1
    ) -> EncodedPairs:
        """Encode sources and their targets, except those that are left out or held out.

        Of lines that are `repeated`, which came before, none are held out a second time. `first` is the number of the
        first line: which neighbours are joined depends on it and the seed alone.
        """
        numbers: Sequence[int] = range(len(sources))
        held = [self._held_out.includes(source) for source in sources] if self.ranks else []
        held_out: list[Pair] = []
        if any(held):
            held_out = [] if repeated else list(compress(zip(sources, targets, strict=True), held))
            left = [not it for it in held]
            sources, targets = list(compress(sources, left)), list(compress(targets, left))
            numbers = list(compress(numbers, left))
        counts = PairCounts(read=len(sources))
        kept_sources: list[list[int]] = []
        kept_targets: list[list[int]] = []
        places: list[int] = []
        left_out: list[int] = []
        ids = self._tokenizers[0].encode(sources), self._tokenizers[1].encode(targets)
        for place, (*texts, source, target) in enumerate(zip(sources, targets, *ids, strict=True)):
            # White space alone may have ids, and says nothing.
            lengths = (len(source), len(target)) if is_usable(*texts) else (0, 0)
            if self._passes(*lengths, counts):
                source.append(EOS)
                target.append(EOS)
                kept_sources.append(source)
                kept_targets.append(target)
                places.append(place)
            else:
                left_out.append(place)
        if self.join_lines > 1:
            lengths = [max(len(source), len(target)) for source, target in zip(kept_sources, kept_targets, strict=True)]
            rows = rows_of_neighbours(
                [numbers[place] for place in places],
                lengths,
                most_lines=self.join_lines,
                most_tokens=self.max_tokens,
                draw=random.Random(self.seed << 40 | first),
            )
            joined = [places[begin:end] for begin, end in rows]
            for source, target in self._joined(sources, targets, joined):
                kept_sources.append(source)
                kept_targets.append(target)
                counts.joined += 1
        sides = [part for kept in (kept_sources, kept_targets) for part in _as_bytes(kept)]
        counts.source_tokens, counts.target_tokens = len(sides[0]) // 4, len(sides[2]) // 4
        counts.source_unknown, counts.target_unknown = (
            sum(ids.count(UNK) for ids in kept) for kept in (kept_sources, kept_targets)
        )
        return EncodedPairs(json.dumps([counts.to_json(), held_out, left_out]).encode(), *sides)

    def _joined(
        self, sources: Sequence[str], targets: Sequence[str], rows: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the ids, with `</s>`, of the lines at each row of places, joined; of those that aren't too long."""
        texts = ([join_sentences([side[place] for place in row]) for row in rows] for side in (sources, targets))
        sides = (tokenizer.encode(joined) for tokenizer, joined in zip(self._tokenizers, texts, strict=True))
        for source, target in zip(*sides, strict=True):
            if max(len(source), len(target)) < self.max_tokens:
                yield [*source, EOS], [*target, EOS]

    def _passes(self, source: int, target: int, counts: PairCounts) -> bool:
        """Return whether a pair of these lengths (without `</s>`) is kept, and count it under its reason."""
        if not source or not target:
            counts.empty += 1
        elif max(source, target) + 1 > self.max_tokens:
            counts.too_long += 1
        elif max(source, target) > self.max_ratio * min(source, target):
            counts.bad_ratio += 1
        else:
            counts.kept += 1
            return True
        return False

    @cached_property
    def _tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        source = load_tokenizer(Path(self.source))
        return source, source if self.target == self.source else load_tokenizer(Path(self.target))

    @cached_property
    def _held_out(self) -> HeldOut:
        return HeldOut(self.seed, self.ranks)


def _as_bytes(sequences: list[list[int]]) -> tuple[bytes, bytes]:
    """Return all ids, and the length of each sequence, as int32."""
    return array("i", chain.from_iterable(sequences)).tobytes(), array("i", map(len, sequences)).tobytes()
