"""Pairs of text from files: two parallel ones, or one of tab-separated values, a table or a translation memory."""

import codecs
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, time
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from glassformer.decoding import decode_message
from glassformer.errors import ConfigError, DataError
from glassformer.pairs import kinds
from glassformer.pairs.columns import ColumnChooser, text_columns
from glassformer.pairs.kinds import is_stream, kind_of, peek_lines
from glassformer.pairs.lines import LONGEST_LINE, RawLines, decode_line, too_long
from glassformer.pairs.memories import units
from glassformer.pairs.tables import FOLLOWING, inner_gaps, rows
from glassformer.settings.checks import check_settings

Pair = tuple[str, str]

BLOCK_BYTES, MOST_BLOCK_BYTES = 1 << 19, 1 << 26
"""Bytes of sources in a block, about 9,000 sentences, and most bytes of their targets. The digest of the content
depends on both (`scan_pairs`)."""


def columns_of_each(columns: tuple[str, str] | None, *are_one_file: bool) -> list[tuple[str, str] | None]:
    """Return the columns for each of several pairs of files: only one file of both sides takes them.

    Where none is one file, all get them, and refuse them.

    >>> columns_of_each(("en", "de"), True, False), columns_of_each(("en", "de"), False)
    ([('en', 'de'), None], [('en', 'de')])
    """
    return [columns if is_one or not any(are_one_file) else None for is_one in are_one_file]


@dataclass(frozen=True)
class PairFiles:
    """The files that hold pairs: line n of `source` belongs to line n of `target`.

    Without `target`, `source` has both sides. It is a file of tab-separated values, whose first two columns are the
    pair, a column of ids or scores before them left out. Or it is a table with named columns (TSV or CSV with a header,
    JSON lines, parquet, xlsx), or a translation memory (TMX, XLIFF, PO). Text is UTF-8, or UTF-16 with its mark, and
    may be packed with gzip, bzip2, xz or zstandard.

    >>> path = Path(tempfile.mkdtemp()) / "pairs.csv"
    >>> _ = path.write_text("id,en,de\\n1,one,eins\\n2,two,zwei\\n")
    >>> list(PairFiles(path)), list(PairFiles(path, columns=("de", "en")))
    ([('one', 'eins'), ('two', 'zwei')], [('eins', 'one'), ('zwei', 'two')])
    """

    source: Path
    target: Path | None = None
    columns: tuple[str, str] | None = None
    """The source's and the target's column, by name or by number from 1; of a TMX file the two languages. Left out, the
    names say it, or there are only two."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.target is not None and self.columns is not None:
            raise ConfigError("columns are for one file of both sides, got two files: leave them out")

    @classmethod
    def of(cls, paths: Sequence[Path], flag: str, columns: tuple[str, str] | None = None) -> "PairFiles":
        """Return the pairs of one or two paths, which a `flag` was given; raise ConfigError for another number."""
        if len(paths) not in (1, 2):
            raise ConfigError(
                f"{flag} takes a file of sources and one of targets, or one file of both sides, got {len(paths)} files"
            )
        return cls(paths[0], paths[1] if len(paths) == 2 else None, columns)

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [path for path in (self.source, self.target) if path is not None]

    @property
    def name(self) -> str:
        """The file of both sides, or of the sources, in words."""
        return str(self.source)

    def check(self) -> None:
        """Raise DataError where a file is missing, holds no pairs, or can't be read several times, as training does."""
        for path in self.paths:
            if is_stream(path):
                raise DataError(f"{path} is a pipe or device, and is read several times: save it to a file first")
            kind_of(path)

    def __iter__(self) -> Iterator[Pair]:
        for block in self.blocks():
            yield from zip(*block.pairs(), strict=True)

    def blocks(self, say: Callable[[str], object] = lambda said: None) -> "Iterator[PairBlock]":
        """Yield all lines in order, in blocks of about `BLOCK_BYTES` of sources: a corpus may be larger than memory.

        `say` is called with what was taken for the pair, where there was a choice. Raises DataError where a file can't
        be read, or the files have different numbers of lines; ImportError, which names the extra, where a library that
        reads the format is missing.
        """
        kind, pair_in = kind_of(self.source), (0, 1)
        if self.target is not None:
            for path, its_kind in ((self.source, kind), (self.target, kind_of(self.target))):
                if its_kind not in kinds.LINES:
                    raise DataError(f"{path} is a {its_kind} file, which has both sides: give it alone")
        else:
            columns = ColumnChooser(self.source, self.columns, say)
            lines = peek_lines(self.source, 1 + FOLLOWING) if kind == kinds.TEXT else []
            first_row, *following = [line.split("\t") for line in lines] or [[""]]
            is_title = columns.is_title([first_row, *filter(any, following)])
            if len(first_row) == 2 and len(following) < FOLLOWING:  # too few to tell a header from a first pair
                following = []
            if kind != kinds.TEXT or self.columns is not None or is_title or columns.is_header(first_row, following):
                yield from self._table_blocks(kind, columns)
                return
            pair_in = text_columns([first_row, *following])
            if len(first_row) > 2:
                which = "the first two" if pair_in == (0, 1) else " and ".join(str(number + 1) for number in pair_in)
                say(f"{self.source}: {which} of {len(first_row)} columns are the pair (--columns takes others)")
        with ExitStack() as stack:
            source = stack.enter_context(RawLines(self.source))
            target = None if self.target is None else stack.enter_context(RawLines(self.target))
            first, ahead, have_tabs = 1, list[bytes](), False
            while lines := ahead or source.take_bytes(BLOCK_BYTES):
                if first == 1:
                    have_tabs = all(b"\t" in line for line in lines[: 1 + FOLLOWING])
                beside = lines if target is None else target.take(len(lines), MOST_BLOCK_BYTES)
                if not beside:
                    raise self._unequal(first - 1 + len(lines) + source.count_rest(), first - 1)
                # Of targets that are long, fewer make a block.
                lines, ahead = lines[: len(beside)], lines[len(beside) :]
                targets = b"" if target is None else b"".join(beside)
                yield PairBlock(self, first, len(lines), source.share(), b"".join(lines), targets, pair_in)
                first += len(lines)
            if target is not None and (rest := target.count_rest()):
                raise self._unequal(first - 1, first - 1 + rest)
            if target is not None and have_tabs:
                say(f"{self.source}: its lines have tabs. If they are pairs, give this file alone")

    def _table_blocks(self, kind: str, columns: ColumnChooser) -> "Iterator[PairBlock]":
        """Yield the pairs of a table or a translation memory, as lines of two parallel files.

        Rows between two others that are empty become an empty pair: what stands around them isn't neighbouring.
        """
        read = units if kind in (kinds.TMX, kinds.XLIFF, kinds.PO) else rows
        sides: tuple[list[bytes], list[bytes]] = [], []
        size, beside, first = 0, 0, 1
        as_parallel = PairFiles(self.source, self.source)
        for cells in inner_gaps(read(self.source, kind, columns)):
            for side, cell in zip(sides, cells or ("", ""), strict=True):
                text = re.sub(r"[\r\n]+", " ", self._cell_text(cell))
                side.append(f"{text}\n".encode(errors="replace"))  # half a surrogate pair, which JSON allows
                if len(side[-1]) > LONGEST_LINE + 1:
                    place = f"{self.source}, a text of pair {first + len(side) - 1:,}"
                    raise too_long(place, "is it a text, and not a whole file?")
            size, beside = size + len(sides[0][-1]), beside + len(sides[1][-1])
            if size >= BLOCK_BYTES or beside >= MOST_BLOCK_BYTES:
                yield PairBlock(as_parallel, first, len(sides[0]), 0.0, b"".join(sides[0]), b"".join(sides[1]))
                size, beside, first = 0, 0, first + len(sides[0])
                for side in sides:
                    side.clear()
        if sides[0]:
            yield PairBlock(as_parallel, first, len(sides[0]), 1.0, b"".join(sides[0]), b"".join(sides[1]))

    def _cell_text(self, cell: Any) -> str:
        """Return what stands in a cell as text."""
        if isinstance(cell, bytes):
            try:
                return cell.decode()
            except UnicodeDecodeError:
                raise DataError(f"{self.source} has a column of bytes that aren't UTF-8, text was expected") from None
        if isinstance(cell, datetime) and cell.time() == time():
            return cell.date().isoformat()
        return "" if cell is None else str(cell)

    def _unequal(self, sources: int, targets: int) -> DataError:
        return DataError(
            f"source and target must have the same number of lines: {self.source} has {sources}, "
            f"{self.target} has {targets}: line n of one must be the translation of line n of the other"
        )


@dataclass(frozen=True)
class PairBlock:
    """Neighbouring lines of pair files, as the bytes that stand there."""

    files: PairFiles
    first: int
    """Number of the first line, from 1."""
    lines: int
    share: float
    """Share of the source file that has been read with this block, from 0 to 1; 0 before the end of a table."""
    source: bytes
    target: bytes
    """Empty where the files are one TSV file."""
    pair_in: tuple[int, int] = (0, 1)
    """The numbers, from 0, of the two columns of such a file."""
    repeated: bool = False
    """The block came before, as a file with a weight is read several times."""

    def pairs(self) -> tuple[list[str], list[str]]:
        """Return the sources and the targets, without line ends; an empty line is an empty pair.

        Raises DataError, which names the first wrong line.
        """
        try:
            sources = _decode(self.source, self.first)
            if self.files.target is not None:
                return sources, _decode(self.target, self.first)
            left, right = self.pair_in
            rows = [line.split("\t", right + 1) if line else [""] * (right + 1) for line in sources]
            return [row[left] for row in rows], [row[right] for row in rows]
        except (UnicodeDecodeError, IndexError):
            self._raise_first_error()

    def _raise_first_error(self) -> NoReturn:
        """Raise DataError for the first line that is wrong."""
        files = self.files
        sides = zip_longest(io.BytesIO(self.source), io.BytesIO(self.target), fillvalue=b"")
        for number, (source, target) in enumerate(sides, start=self.first):
            line = decode_line(source, number, str(files.source))
            tabs = line.count("\t")
            if files.target is not None:
                decode_line(target, number, str(files.target))
            elif line and not tabs:
                raise DataError(
                    f"{files.source}, line {number}: expected source<tab>target, found no tab; "
                    "where sources and targets are two parallel files, give both"
                )
            elif line and tabs < self.pair_in[1]:
                raise DataError(
                    f"{files.source}, line {number}: it has {tabs + 1} columns, and column "
                    f"{self.pair_in[1] + 1} is the target: is a tab missing? --columns takes others"
                )
        raise AssertionError("a block that can't be read has a line that can't be read")

    def to_parts(self) -> list[bytes]:
        """Return the block as bytes from which `from_parts` makes it in another process."""
        files = [str(self.files.source), None if self.files.target is None else str(self.files.target)]
        header = [files, self.first, self.lines, self.share, self.pair_in, self.repeated]
        return [json.dumps(header).encode(), self.source, self.target]

    @classmethod
    def from_parts(cls, parts: list[bytes]) -> "PairBlock":
        """Make the block whose `to_parts` these are."""
        header, source, target = parts
        (left, right), first, lines, share, pair_in, repeated = decode_message(header)
        files = PairFiles(Path(left), None if right is None else Path(right))
        return cls(files, first, lines, share, source, target, tuple(pair_in), repeated)


def _decode(raw: bytes, first: int) -> list[str]:
    """Return what `decode_line` makes of each line, all at once; `first` is the number of the first line."""
    if first == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    lines = raw.decode().removesuffix("\n").split("\n")
    return [line.rstrip("\r") for line in lines] if b"\r" in raw else lines
