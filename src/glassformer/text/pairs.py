"""Pairs of text from files: two parallel files, or one of tab-separated values; plain or .gz; UTF-8."""

import codecs
import gzip
import hashlib
import heapq
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from glassformer.errors import DataError

Pair = tuple[str, str]


@dataclass(frozen=True)
class PairFiles:
    """Where pairs are: line n of `source` belongs to line n of `target`; without `target`, `source` is a TSV file
    whose first two columns are the pair (further columns are ignored)."""

    source: Path
    target: Path | None = None

    def check(self) -> None:
        """Raise DataError unless the files can be read several times, as training does."""
        for path in (self.source, self.target):
            if path is not None and path.exists() and not path.is_file() and not path.is_dir():
                raise DataError(f"{path} is a pipe or device, and is read several times: save it to a file first")

    def __iter__(self) -> Iterator[Pair]:
        return self._tsv() if self.target is None else self._parallel(self.target)

    def _parallel(self, target: Path) -> Iterator[Pair]:
        left, right = read_lines(self.source), read_lines(target)
        for count, (source, translation) in enumerate(zip_longest(left, right)):
            if source is None or translation is None:
                n_source = count + (0 if source is None else 1 + sum(1 for _ in left))
                n_target = count + (0 if translation is None else 1 + sum(1 for _ in right))
                raise DataError(
                    f"source and target must have as many lines as each other: {self.source} has {n_source}, "
                    f"{target} has {n_target}"
                )
            yield source, translation

    def _tsv(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.source), start=1):
            columns = line.split("\t")
            if len(columns) < 2:
                raise DataError(
                    f"{self.source}, line {number}: expected source<tab>target, found no tab; "
                    "for two parallel files give the target file as well"
                )
            yield columns[0], columns[1]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file (.gz is unpacked), without their ends; only a newline ends a line."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if path.is_dir():
        raise DataError(f"{path} is a folder, a text file was expected")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield decode_line(raw, number, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from None
    except PermissionError:
        raise DataError(f"{path}: permission denied") from None


def decode_line(raw: bytes, number: int, name: str) -> str:
    """One line of bytes as text without its end; `number` and `name` say where it stands if it isn't UTF-8."""
    if number == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1}); "
            "convert it, for example with: iconv -f latin1 -t utf-8"
        ) from None


@dataclass(frozen=True)
class Part:
    """The pairs of some files on one side of a split that `hold_out` made."""

    files: PairFiles
    seed: int
    chosen: frozenset[int]
    held_out: bool

    def __iter__(self) -> Iterator[Pair]:
        for source, target in self.files:
            if (_rank(source, self.seed) in self.chosen) == self.held_out:
                yield source, target


def hold_out(files: PairFiles, count: int, seed: int) -> tuple[Part, Part]:
    """Split pairs in two, chosen by the seed: those for training, and at most `count` others for validation.

    All pairs with the same source fall on the same side, so that validation sees new sources; a source that is too
    frequent to fit stays in training.
    """
    frequency: Counter[int] = Counter()  # of the `count` sources of lowest rank
    highest: list[int] = []  # their negated ranks, as a heap
    total = 0
    for source, _ in files:
        total += 1
        rank = _rank(source, seed)
        if rank not in frequency:
            if len(highest) < count:
                heapq.heappush(highest, -rank)
            elif rank < -highest[0]:
                del frequency[-heapq.heapreplace(highest, -rank)]
            else:
                continue
        frequency[rank] += 1
    chosen, left = [], min(count, total - 1)
    for rank in sorted(frequency):
        if frequency[rank] <= left:
            chosen.append(rank)
            left -= frequency[rank]
    if not chosen:
        raise DataError(
            f"{files.source} has too few pairs with different sources to hold some out for validation: "
            "give --valid-source (and --valid-target)"
        )
    split = frozenset(chosen)
    return Part(files, seed, split, held_out=False), Part(files, seed, split, held_out=True)


def _rank(source: str, seed: int) -> int:
    """A number that looks random and depends on nothing but the source and the seed."""
    digest = hashlib.blake2b(source.encode(), digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
