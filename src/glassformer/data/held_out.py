"""Which pairs are held out for validation: chosen by their sources and a seed, wherever they stand."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from glassformer.errors import DataError


@dataclass(frozen=True)
class HeldOut:
    """The pairs whose source has one of the `chosen` ranks are held out, the others are for training."""

    seed: int = 0
    ranks: Sequence[int] = ()

    @cached_property
    def _chosen(self) -> frozenset[int]:
        return frozenset(self.ranks)

    def includes(self, source: str) -> bool:
        """Whether the pairs with this source are held out."""
        return bool(self.ranks) and source_rank(source, self.seed) in self._chosen


def choose_held_out(lowest: Mapping[int, int], total: int, count: int, seed: int, path: Path) -> HeldOut:
    """Choose at most `count` of `total` pairs for validation; one at least is left for training.

    `lowest` are the `count` or more lowest ranks of their sources, and how many pairs have each. All pairs with the
    same source fall on the same side, so that validation sees new sources; a source that is too frequent to fit stays
    in training. DataError names the `path` if no source fits.
    """
    chosen, left = [], min(count, total - 1)
    for low in sorted(lowest)[:count]:
        if lowest[low] <= left:
            chosen.append(low)
            left -= lowest[low]
    if not chosen:
        raise DataError(
            f"{path} has too few pairs with different sources to hold some out for validation: "
            "give --valid-source (and --valid-target)"
        )
    return HeldOut(seed, chosen)


def source_rank(source: str, seed: int) -> int:
    """A number that looks random and depends on nothing but the source and the seed."""
    digest = hashlib.blake2b(source.encode(), digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
