"""Pairs of text from two parallel files, or from one file of tab-separated values; plain or .gz; UTF-8."""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import NoReturn

from glassformer.errors import ConfigError, DataError

Pair = tuple[str, str]

BLOCK_BYTES = 1 << 19
"""Bytes of sources in a block, about 9,000 sentences. The digest of the content depends on it (`scan_pairs`)."""


@dataclass(frozen=True)
class PairFiles:
    """The files that hold pairs: line n of `source` belongs to line n of `target`.

    Without `target`, `source` is a TSV file whose first two columns are the pair; further columns are ignored.
    """

    source: Path
    target: Path | None = None

    @classmethod
    def of(cls, paths: Sequence[Path], flag: str) -> "PairFiles":
        """Make it of the one or two paths that a command's `flag` was given; raise ConfigError for another number."""
        if len(paths) not in (1, 2):
            raise ConfigError(
                f"{flag} takes a file of sources and one of targets, or one TSV file, got {len(paths)} files"
            )
        return cls(*paths)

    def check(self) -> None:
        """Raise DataError where a file can't be read several times, as training does."""
        for path in (self.source, self.target):
            if path is not None and path.exists() and not path.is_file() and not path.is_dir():
                raise DataError(f"{path} is a pipe or device, and is read several times: save it to a file first")

    def __iter__(self) -> Iterator[Pair]:
        for block in self.blocks():
            yield from zip(*block.pairs(), strict=True)

    def blocks(self) -> "Iterator[PairBlock]":
        """Yield all lines in order, in blocks of about `BLOCK_BYTES` of sources: a corpus may be larger than memory.

        Raises DataError where a file can't be read, or the files have different numbers of lines.
        """
        with ExitStack() as stack:
            source = stack.enter_context(_RawLines(self.source))
            target = None if self.target is None else stack.enter_context(_RawLines(self.target))
            first = 1
            while lines := source.take_bytes(BLOCK_BYTES):
                beside = [] if target is None else target.take(len(lines))
                if target is not None and len(beside) < len(lines):
                    counts = first - 1 + len(lines) + source.count_rest(), first - 1 + len(beside)
                    raise self._unequal(*counts)
                yield PairBlock(self, first, len(lines), source.share(), b"".join(lines), b"".join(beside))
                first += len(lines)
            if target is not None and (rest := target.count_rest()):
                raise self._unequal(first - 1, first - 1 + rest)

    def _unequal(self, sources: int, targets: int) -> DataError:
        return DataError(
            f"source and target must have as many lines as each other: {self.source} has {sources}, "
            f"{self.target} has {targets}"
        )


@dataclass(frozen=True)
class PairBlock:
    """Neighbouring lines of pair files, as the bytes that stand there."""

    files: PairFiles
    first: int
    """Number of the first line, from 1."""
    lines: int
    share: float
    """Share of the source file that has been read with this block, from 0 to 1."""
    source: bytes
    target: bytes
    """Empty where the files are one TSV file."""

    def pairs(self) -> tuple[list[str], list[str]]:
        """Return the sources and the targets, without line ends; raise DataError, which names the first wrong line."""
        try:
            sources = _decode(self.source, self.first)
            if self.files.target is not None:
                return sources, _decode(self.target, self.first)
            columns = [line.split("\t", 2) for line in sources]
            return [row[0] for row in columns], [row[1] for row in columns]
        except (UnicodeDecodeError, IndexError):
            self._raise_first_error()

    def _raise_first_error(self) -> NoReturn:
        """Raise DataError for the first line that is wrong."""
        files = self.files
        sides = zip_longest(io.BytesIO(self.source), io.BytesIO(self.target), fillvalue=b"")
        for number, (source, target) in enumerate(sides, start=self.first):
            line = decode_line(source, number, str(files.source))
            if files.target is not None:
                decode_line(target, number, str(files.target))
            elif "\t" not in line:
                raise DataError(
                    f"{files.source}, line {number}: expected source<tab>target, found no tab; "
                    "for two parallel files give the target file as well"
                )
        raise AssertionError("a block that can't be read has a line that can't be read")

    def to_parts(self) -> list[bytes]:
        """Return the block as bytes from which `from_parts` makes it in another process."""
        files = [str(self.files.source), None if self.files.target is None else str(self.files.target)]
        return [json.dumps([files, self.first, self.lines, self.share]).encode(), self.source, self.target]

    @classmethod
    def from_parts(cls, parts: list[bytes]) -> "PairBlock":
        """Make the block whose `to_parts` these are."""
        header, source, target = parts
        (left, right), first, lines, share = json.loads(header)
        files = PairFiles(Path(left), None if right is None else Path(right))
        return cls(files, first, lines, share, source, target)


class _RawLines:
    """The lines of a text file as bytes, .gz unpacked, read many at a time: one by one would take twice as long."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "_RawLines":
        with _readable(self._path):
            self._packed = self._path.open("rb")
        self._size = max(1, self._path.stat().st_size)
        self._file = _unpacked(self._packed, self._path)
        return self

    def __exit__(self, *_: object) -> None:
        self._packed.close()

    def take_bytes(self, size: int) -> list[bytes]:
        """Return as many further lines as have at least `size` bytes, or what is left."""
        with _readable(self._path):
            return self._file.readlines(size)

    def take(self, count: int) -> list[bytes]:
        """Return `count` further lines, or what is left."""
        with _readable(self._path):
            return list(islice(self._file, count))

    def count_rest(self) -> int:
        """Read the rest and return how many lines it has."""
        with _readable(self._path):
            return sum(1 for _ in self._file)

    def share(self) -> float:
        """Return the share of the file that has been read."""
        return min(1.0, self._packed.tell() / self._size)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file (.gz is unpacked) without their ends. Only a newline ends a line."""
    with _readable(path), path.open("rb") as packed:
        for number, raw in enumerate(_unpacked(packed, path), start=1):
            yield decode_line(raw, number, str(path))


def decode_line(raw: bytes, number: int, name: str) -> str:
    """Return one line as text without its end; `name` and `number` say in the DataError where it stands."""
    if number == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1}); "
            "convert it, for example with: iconv -f latin1 -t utf-8"
        ) from None


def _decode(raw: bytes, first: int) -> list[str]:
    """Return what `decode_line` makes of each line, all at once; `first` is the number of the first line."""
    if first == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    lines = raw.decode().removesuffix("\n").split("\n")
    return [line.rstrip("\r") for line in lines] if b"\r" in raw else lines


def _unpacked(packed: io.BufferedReader, path: Path) -> io.BufferedReader:
    if path.suffix != ".gz":
        return packed
    return io.BufferedReader(gzip.GzipFile(fileobj=packed), 1 << 17)  # without a buffer: half as fast


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the errors of opening and reading a file into DataError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, a text file was expected") from None
    except PermissionError:
        raise DataError(f"{path}: permission denied") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from None
