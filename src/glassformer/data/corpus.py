"""Arrays of token ids on disk, memory-mapped, so that a corpus may be larger than memory."""

from array import array
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.data.encode import EncodedPairs, PairCounts
from glassformer.decoding import check_regular
from glassformer.errors import DataError, RunError

AT_ONCE = 1 << 22
"""Token ids, or lengths, that are looked at in one go."""


class OffsetLengths:
    """The lengths of sequences, looked up in the offsets at which they begin: they take no memory of their own."""

    def __init__(self, offsets: Int[Tensor, " sequences_and_1"]) -> None:
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: slice | list[int]) -> Int[Tensor, " part"]:
        return self._offsets[1:][index] - self._offsets[:-1][index]


class Ragged:
    """Sequences of different lengths in two memory-mapped files: all ids, and where each sequence begins."""

    def __init__(self, stem: Path) -> None:
        """Map the files; RunError unless each sequence begins where the one before ends, and the last with the ids."""
        self._ids_file, offsets_file = stem.with_suffix(".ids"), stem.with_suffix(".offsets")
        self.ids = _map(self._ids_file, torch.int32, 4)
        self.offsets = _map(offsets_file, torch.int64, 8)
        self.lengths = OffsetLengths(self.offsets)
        parts = (self.lengths[first : first + AT_ONCE] for first in range(0, len(self), AT_ONCE))
        rises = len(self) and self.offsets[0] == 0 and all(part.min() > 0 for part in parts)
        if not rises or self.offsets[-1] != len(self.ids):
            raise damaged(offsets_file, "its offsets are not those of the sequences")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Int[Tensor, " length"]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def check_ids(self, vocab_size: int) -> None:
        """Raise RunError unless all ids are those of a vocabulary of this size. It reads the whole file."""
        for ids in self.ids.split(AT_ONCE):
            low, high = (int(end) for end in ids.aminmax())
            if low < 0 or high >= vocab_size:
                raise damaged(self._ids_file, f"the vocabulary has {vocab_size:,} ids, got {low if low < 0 else high}")


class Corpus:
    """Source and target token ids of every pair; each sequence ends with `</s>`."""

    def __init__(self, folder: Path) -> None:
        self.source = Ragged(folder / "source")
        self.target = Ragged(folder / "target")
        if len(self.source) != len(self.target):
            raise damaged(folder, f"it has {len(self.source):,} sources and {len(self.target):,} targets")

    def __len__(self) -> int:
        return len(self.source)


def write_corpus(encoded: Iterable[EncodedPairs], folder: Path) -> PairCounts:
    """Write pairs that a `PairEncoder` has encoded into `folder`, in their order; return what became of all pairs.

    Raises DataError where none was kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts = PairCounts()
    with _Writer(folder / "source") as source, _Writer(folder / "target") as target:
        for block in encoded:
            counts += block.counts
            source.append(block.source, block.source_lengths)
            target.append(block.target, block.target_lengths)
    if not counts.kept:
        advice = ": raise max_tokens, or split the long lines" if counts.too_long else ""
        raise DataError(f"no pair is left: {counts}{advice}")
    return counts


class _Writer:
    """Writes sequences, in their order, to the two files of a `Ragged`."""

    def __init__(self, stem: Path) -> None:
        paths = stem.with_suffix(".ids"), stem.with_suffix(".offsets")
        for path in paths:  # not truncated: the old file may be mapped into memory, or linked elsewhere
            path.unlink(missing_ok=True)
        self._ids, self._offsets = (path.open("wb") for path in paths)
        self._written = 0

    def __enter__(self) -> "_Writer":
        array("q", [0]).tofile(self._offsets)
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._offsets.close()

    def append(self, ids: bytes, lengths: bytes) -> None:
        """Write sequences, given as all their ids and the length of each (int32)."""
        self._ids.write(ids)
        offsets = array("q", accumulate(array("i", lengths), initial=self._written))
        offsets[1:].tofile(self._offsets)
        self._written = offsets[-1]


def damaged(path: Path, reason: str) -> RunError:
    """Return the error for what was prepared for a training and can't be used any more."""
    return RunError(
        f"{path} is damaged ({reason}): copy it again from where it was whole, or train anew with --overwrite"
    )


def _map(path: Path, dtype: torch.dtype, bytes_each: int) -> Tensor:
    check_regular(path)
    size, rest = divmod(path.stat().st_size, bytes_each)
    if rest or not size:
        raise damaged(path, "it was cut short")
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype)
