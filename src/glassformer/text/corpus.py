"""Pairs of text as arrays of token ids on disk, memory-mapped, so that a corpus may be larger than memory."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.errors import DataError
from glassformer.text.pairs import Pair
from glassformer.text.tokenizer import EOS, Tokenizer


@dataclass
class Counts:
    """What became of the pairs of a file."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    too_long: int = 0
    bad_ratio: int = 0
    source_tokens: int = 0
    target_tokens: int = 0

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
        return (
            f"{self.kept:,} of {self.read:,} pairs{left_out}; "
            f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens"
        )

    def to_json(self) -> dict[str, int]:
        return asdict(self)


class Ragged:
    """Sequences of different length in two memory-mapped files: all ids, and where each sequence begins."""

    def __init__(self, stem: Path) -> None:
        self.ids = _map(stem.with_suffix(".ids"), torch.int32, 4)
        self.offsets = _map(stem.with_suffix(".offsets"), torch.int64, 8)
        self.lengths = self.offsets.diff()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Int[Tensor, " length"]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


class Corpus:
    """Source and target token ids of every pair, each ended by `</s>`."""

    def __init__(self, folder: Path) -> None:
        self.source = Ragged(folder / "source")
        self.target = Ragged(folder / "target")

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def prepare(
        cls,
        pairs: Iterable[Pair],
        folder: Path,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        max_tokens: int,
        max_ratio: float,
        progress: Callable[[int], None] = lambda pairs_read: None,
    ) -> tuple["Corpus", Counts]:
        """Tokenise `pairs` into `folder` and say what became of them.

        Left out are pairs with an empty side, with a side of more than `max_tokens` tokens (`</s>` counted), and
        those whose two lengths differ by more than the factor `max_ratio`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        counts = Counts()
        with _Writer(folder / "source") as source, _Writer(folder / "target") as target:
            iterator = iter(pairs)
            while chunk := list(islice(iterator, 4096)):
                sources = source_tokenizer.encode([pair[0] for pair in chunk])
                targets = target_tokenizer.encode([pair[1] for pair in chunk])
                for left, right in zip(sources, targets, strict=True):
                    if _passes(len(left), len(right), max_tokens, max_ratio, counts):
                        source.append([*left, EOS])
                        target.append([*right, EOS])
                progress(len(chunk))
        if not counts.kept:
            raise DataError(f"no pair is left: {counts}")
        counts.source_tokens, counts.target_tokens = source.written, target.written
        return cls(folder), counts


def _passes(source: int, target: int, max_tokens: int, max_ratio: float, counts: Counts) -> bool:
    """Whether a pair of these lengths (without `</s>`) is kept; counts why not."""
    counts.read += 1
    if not source or not target:
        counts.empty += 1
    elif max(source, target) + 1 > max_tokens:
        counts.too_long += 1
    elif max(source, target) > max_ratio * min(source, target):
        counts.bad_ratio += 1
    else:
        counts.kept += 1
        return True
    return False


class _Writer:
    """Appends sequences to the two files of a `Ragged`."""

    def __init__(self, stem: Path) -> None:
        paths = stem.with_suffix(".ids"), stem.with_suffix(".offsets")
        for path in paths:
            path.unlink(missing_ok=True)  # not truncated: an earlier file may be mapped into memory
        self._ids, self._offsets = (path.open("wb") for path in paths)
        self.written = 0

    def __enter__(self) -> "_Writer":
        array("q", [0]).tofile(self._offsets)
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._offsets.close()

    def append(self, ids: list[int]) -> None:
        array("i", ids).tofile(self._ids)
        self.written += len(ids)
        array("q", [self.written]).tofile(self._offsets)


def _map(path: Path, dtype: torch.dtype, bytes_each: int) -> Tensor:
    size = path.stat().st_size // bytes_each
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype)
