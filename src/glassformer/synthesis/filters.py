"""The filters: which of the written pairs are worth training on."""

import math
import statistics
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from glassformer.data.held_out import HeldOut
from glassformer.pairs.files import Pair
from glassformer.scoring.scores import sentence_chrf
from glassformer.synthesis.config import SynthesisConfig
from glassformer.synthesis.stages import Counts
from glassformer.synthesis.text import digest_of
from glassformer.synthesis.written import read_written
from glassformer.text.tokenizer import UNKNOWN

EMPTY, COPY, UNKNOWNS, LENGTH, SCORE, AGREEMENT, HELD_OUT, REPEATED = (
    *("empty", "copies", "with unknown tokens", "of unusual length", "of a low score", "not coming back"),
    *("held out", "repeated"),
)
"""Reasons to leave a pair out, in the order in which they are looked at."""
SHORT = 5
"""Characters that are added to each side, so that short lines, whose lengths differ most, aren't judged by them."""


@dataclass(frozen=True)
class WrittenPair:
    """A pair of which a run has written one side."""

    source: str
    target: str
    score: float
    """Score of what was written, in nats a token."""
    agreement: float
    """The chrF of the text's way back against the text, 0 to 100; 100 where there was none."""

    @property
    def stretch(self) -> float:
        """The logarithm of the ratio of the target's length to the source's, in characters."""
        return math.log((len(self.target) + SHORT) / (len(self.source) + SHORT))


def read_pairs(config: SynthesisConfig, text: Path, written: Path, returned: Path | None) -> Iterator[WrittenPair]:
    """Yield the pairs that the files of the stages have, `returned` line by line what `written` has."""
    back: Iterable[tuple[float, str] | None] = repeat(None)
    if returned is not None:
        back = ((score, line) for _, score, line in read_written(written, returned, 1))
    rows = read_written(text, written, config.search.n_best)
    for (line, score, translation), way_back in zip(rows, back, strict=False):  # `repeat` has no end
        agreement = 100.0 if way_back is None else sentence_chrf(way_back[1], line)
        source, target = (line, translation) if config.writes == "target" else (translation, line)
        yield WrittenPair(source, target, score, agreement)


class PairFilter:
    """Decides which pairs stay. It has read all of them once, for what is unusual shows only beside the others.

    That needs no agreement, which takes longest to compute: its quartiles are those of the pairs that are judged.
    """

    def __init__(self, config: SynthesisConfig, pairs: Iterable[WrittenPair], held_out: HeldOut | None = None) -> None:
        """Leave out the pairs whose text is that of a held-out pair (`held_out`), beside those of the settings."""
        self._config, self._held_out = config, held_out
        stretches, scores = array("f"), array("f")
        for pair in pairs:
            if pair.source.strip() and pair.target.strip():
                stretches.append(pair.stretch)
                scores.append(pair.score)
        self._usual = statistics.median(stretches) if stretches else 0.0
        self._quartiles = {"scores": scores, "agreement": array("f")}
        self._seen: set[bytes] = set()
        reasons = (EMPTY, COPY, UNKNOWNS, LENGTH, SCORE, AGREEMENT, HELD_OUT, REPEATED)
        self._count = dict.fromkeys(reasons if held_out else (one for one in reasons if one != HELD_OUT), 0)
        self._read = 0

    def is_new(self, pair: Pair) -> bool:
        """Return whether this pair comes for the first time, among real ones and written ones that stay."""
        before = len(self._seen)
        self._seen.add(digest_of(*pair))
        return len(self._seen) > before

    def keeps(self, pair: WrittenPair) -> bool:
        """Return whether a written pair stays, and count it."""
        self._read += 1
        reason = self._reason(pair)
        if reason != EMPTY:
            self._quartiles["agreement"].append(pair.agreement)
        if reason is None:
            return True
        self._count[reason] += 1
        return False

    def _reason(self, pair: WrittenPair) -> str | None:
        config = self._config
        source, target = pair.source.strip(), pair.target.strip()
        if not source or not target:
            return EMPTY
        if source == target and not config.keep_copies:
            return COPY
        given, written = (source, target) if config.given == "source" else (target, source)
        if UNKNOWN in written and UNKNOWN not in given:
            return UNKNOWNS
        if abs(pair.stretch - self._usual) > math.log(config.length_factor):
            return LENGTH
        if config.min_score is not None and pair.score < config.min_score:
            return SCORE
        if pair.agreement < config.min_agreement:
            return AGREEMENT
        if self._held_out is not None and self._held_out.includes(config.given_of((pair.source, pair.target))):
            return HELD_OUT
        return None if self.is_new((pair.source, pair.target)) else REPEATED

    @property
    def counts(self) -> Counts:
        """The counts of the pairs that were left out and of those that stay, and the quartiles of what was judged."""
        left = self._read - sum(self._count.values())
        counts: Counts = {"written pairs": {"read": self._read, **self._count, "left": left}}
        for name, values in self._quartiles.items():
            if len(values) > 1 and (name == "scores" or self._config.round_trip is not None):
                names = ("a quarter below", "half below", "three quarters below")
                counts[name] = dict(zip(names, statistics.quantiles(values, n=4), strict=True))
        return counts
