"""The pairs that are held out for validation: chosen by source and seed alone, wherever they stand in the files."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from glassformer.errors import DataError

MOST_HELD_OUT = 1000
"""Most pairs that are held out."""


@dataclass(frozen=True)
class HeldOut:
    """The held-out pairs: those whose source has one of these ranks (see `source_rank`)."""

    seed: int = 0
    ranks: Sequence[int] = ()

    @cached_property
    def _set(self) -> frozenset[int]:
        return frozenset(self.ranks)

    def includes(self, source: str) -> bool:
        """Return whether the pairs with this source are held out."""
        return bool(self.ranks) and source_rank(source, self.seed) in self._set


def is_usable(source: str, target: str) -> bool:
    """Return whether both sides of a pair have text: others are neither trained on nor scored."""
    return bool(source.strip() and target.strip())


def choose_held_out(lowest: Mapping[int, int], total: int, count: int, seed: int, name: str) -> HeldOut:
    """Choose at most `count` of `total` pairs for validation, so that at least one is left for training.

    `lowest` maps at least the `count` lowest ranks of the sources to the number of pairs that have each. All pairs with
    the same source fall on the same side, so that validation sees new sources. A source too frequent to fit stays in
    training. Raises DataError, which names the files, where no source fits.
    """
    chosen, left = [], min(count, total - 1)
    for number, low in enumerate(sorted(lowest)):
        if number >= count and chosen:
            break
        if lowest[low] <= left:
            chosen.append(low)
            left -= lowest[low]
    if not chosen:
        raise DataError(
            f"{name} has too few pairs with different sources to hold some out for validation: "
            "give --valid-source (and --valid-target)"
        )
    return HeldOut(seed, chosen)


def hold_out(sources: Iterable[str], seed: int, name: str) -> HeldOut:
    """Choose the pairs that are held out of those with these sources, one each. Raises what `choose_held_out` does."""
    lowest: Counter[int] = Counter()
    total = 0
    for source in sources:
        total += 1
        lowest[source_rank(source, seed)] += 1
        if len(lowest) > 2 * MOST_HELD_OUT:
            for high in sorted(lowest)[MOST_HELD_OUT:]:
                del lowest[high]
    return choose_held_out(lowest, total, count_held_out(total), seed, name)


def count_held_out(total: int) -> int:
    """Return how many of so many pairs are held out at the most: a twentieth."""
    return min(MOST_HELD_OUT, max(1, total // 20))


def source_rank(source: str, seed: int) -> int:
    """Return a number of 64 bits that looks random and depends on nothing but the source and the seed."""
    digest = hashlib.blake2b(source.encode(), digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
