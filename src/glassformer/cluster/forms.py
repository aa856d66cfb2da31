"""The forms of files: text, JSON lines and parquet. Each is read in blocks, and written from the blocks' outputs.

Loads no torch: processes that only count rows or put files together are started for it, again and again.
"""

import hashlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

from glassformer.cluster.lines import Piece, Problem, count_lines, decoded, open_text, pieces_of_lines, raw_lines
from glassformer.cluster.storage import Storage
from glassformer.decoding import decode_anything
from glassformer.errors import DataError
from glassformer.files import PACKED_ENDINGS
from glassformer.generation.config import SearchConfig
from glassformer.pairs.lines import readable

if TYPE_CHECKING:
    from glassformer.generation.translator import Translation

LIKELY = ("text", "source")
"""Columns to translate where a table has several of text."""
TRANSLATION, SCORE = "translation", "score"
"""Columns that are added."""
ROWS_TOGETHER = 1 << 16
"""Rows of a group in a parquet file."""


class Form(ABC):
    """A form of files: how the rows of one are counted, read in pieces, decoded, and written with their translations.

    What `texts` can't read is empty and a problem; its translation is empty too.
    """

    name: str

    @abstractmethod
    def survey(
        self, storage: Storage, file: str, column: str | None, *, scores: bool = False
    ) -> tuple[int, str, str | None]:
        """Return the number of rows of a file, a digest of its content, and the column to translate."""

    @abstractmethod
    def pieces(self, storage: Storage, file: str, size: int) -> Iterator[Piece]:
        """Yield the rows of a file, `size` at a time."""

    @abstractmethod
    def texts(self, piece: Piece, first: int, column: str | None) -> tuple[list[str], list[Problem]]:
        """Return the text of each row, "" where there is none, and the rows that are not as they should be."""

    @abstractmethod
    def output(
        self, piece: Piece, found: "Sequence[Sequence[Translation]]", first: int, config: SearchConfig, *, scores: bool
    ) -> bytes:
        """Return the output for a piece."""

    def join(self, outputs: Iterable[bytes], file: Any) -> None:
        """Write the outputs of all pieces of a file as one file."""
        for output in outputs:
            file.write(output)


class Text(Form):
    """Text, a row on each line; the output is what `translate_file` writes."""

    name = "text"

    def survey(
        self, storage: Storage, file: str, column: str | None, *, scores: bool = False
    ) -> tuple[int, str, str | None]:
        """Return the number of lines, a digest of them, and no column: the lines are what is translated."""
        digest = hashlib.blake2b(digest_size=16)
        with readable(Path(file)), storage.open(file) as opened:
            rows = count_lines(open_text(opened), digest)
        return rows, digest.hexdigest(), None

    def pieces(self, storage: Storage, file: str, size: int) -> Iterator[Piece]:
        """Yield the lines of a file, `size` at a time."""
        with readable(Path(file)), storage.open(file) as opened:
            yield from pieces_of_lines(open_text(opened), size)

    def texts(self, piece: Piece, first: int, column: str | None) -> tuple[list[str], list[Problem]]:
        """Return the lines."""
        return decoded(raw_lines(piece), first, piece.too_long)

    def output(
        self, piece: Piece, found: "Sequence[Sequence[Translation]]", first: int, config: SearchConfig, *, scores: bool
    ) -> bytes:
        """Return a line for each translation."""
        from glassformer.generation.files import chunk_lines

        return chunk_lines(found, first, config, scores=scores)


class JsonLines(Text):
    """An object on each line; its output is the same object with its translation as the last field.

    All other bytes of the line stay. A line that is no object, or has no text, gives an empty translation.
    """

    name = "JSON lines"

    def survey(
        self, storage: Storage, file: str, column: str | None, *, scores: bool = False
    ) -> tuple[int, str, str | None]:
        """Return the number of lines, a digest of them, and the field to translate: the first lines show which."""
        rows, digest, _ = super().survey(storage, file, column)
        with readable(Path(file)), storage.open(file) as opened:
            lines, _ = super().texts(next(pieces_of_lines(open_text(opened), 100)), 1, None)
        for value in filter(None, map(_object, lines)):
            texts = [name for name, cell in value.items() if isinstance(cell, str) or (cell is None and name == column)]
            return rows, digest, choose_column(file, list(value), texts, column, scores=scores)
        if rows:
            raise DataError(f"{file} has no object on its first lines: JSON lines have one on each")
        return rows, digest, column

    def texts(self, piece: Piece, first: int, column: str | None) -> tuple[list[str], list[Problem]]:
        """Return the field of each object."""
        lines, problems = super().texts(piece, first, None)
        broken, cells = {problem.row for problem in problems}, list[bytes | None]()
        for number, line in enumerate(lines, start=first):
            value = _object(line)
            cell = "" if value is None else value.get(str(column))
            if number not in broken and (value is None or not isinstance(cell, str | None)):
                what = "it is no object of JSON" if value is None else f"its {column} is no text"
                problems.append(Problem(number, what))
            text = cell if isinstance(cell, str) else ""
            cells.append(None if cell is None else text.encode(errors="surrogatepass"))
        texts, more = decoded(cells, first, ())
        return texts, problems + more

    def output(
        self, piece: Piece, found: "Sequence[Sequence[Translation]]", first: int, config: SearchConfig, *, scores: bool
    ) -> bytes:
        """Return a line for each object."""
        lines, _ = super().texts(piece, first, None)
        return "".join(
            f"{_with_fields(line, added(best[0], scores=scores))}\n" for line, best in zip(lines, found, strict=True)
        ).encode()


class Parquet(Form):
    """A table in parquet; its output has the same columns and the translation, empty where there is no text."""

    name = "parquet"

    def survey(
        self, storage: Storage, file: str, column: str | None, *, scores: bool = False
    ) -> tuple[int, str, str | None]:
        """Return the number of rows, a digest of what the file says about its parts, and the column to translate."""
        with _arrow(file), storage.open_anywhere(file) as opened:
            size = opened.size()
            opened.seek(max(0, size - 8))
            footer = 8 + int.from_bytes(opened.read(4), "little")
            opened.seek(max(0, size - footer))
            digest = hashlib.blake2b(opened.read(footer), digest_size=16)
            opened.seek(0)
            parquet = pyarrow.parquet.ParquetFile(opened)
            texts = [field.name for field in parquet.schema_arrow if is_text(field.type)]
            chosen = choose_column(file, parquet.schema_arrow.names, texts, column, scores=scores)
            return parquet.metadata.num_rows, digest.hexdigest(), chosen

    def pieces(self, storage: Storage, file: str, size: int) -> Iterator[Piece]:
        """Yield the rows of a file, `size` at a time, each piece as an Arrow stream."""
        with _arrow(file), storage.open_anywhere(file) as opened:
            parquet = pyarrow.parquet.ParquetFile(opened)
            waiting = parquet.schema_arrow.empty_table()
            for batch in parquet.iter_batches(batch_size=size):
                waiting = pyarrow.concat_tables([waiting, pyarrow.Table.from_batches([batch])])
                if waiting.num_rows >= size:
                    yield Piece(size, _to_stream(waiting.slice(0, size)))
                    waiting = waiting.slice(size)
            if waiting.num_rows or not parquet.metadata.num_rows:
                yield Piece(waiting.num_rows, _to_stream(waiting))

    def texts(self, piece: Piece, first: int, column: str | None) -> tuple[list[str], list[Problem]]:
        """Return the cells of the column."""
        cells = _from_stream(piece.content).column(str(column))
        if pyarrow.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type)
        return decoded(cells.cast(pyarrow.large_binary()).to_pylist(), first, piece.too_long)

    def output(
        self, piece: Piece, found: "Sequence[Sequence[Translation]]", first: int, config: SearchConfig, *, scores: bool
    ) -> bytes:
        """Return the rows with the columns that are added, as an Arrow stream."""
        table = _from_stream(piece.content)
        rows = [added(best[0], scores=scores) for best in found]
        table = table.append_column(TRANSLATION, pyarrow.array([row[TRANSLATION] for row in rows], pyarrow.string()))
        if scores:
            table = table.append_column(SCORE, pyarrow.array([row[SCORE] for row in rows], pyarrow.float64()))
        return _to_stream(table)

    def join(self, outputs: Iterable[bytes], file: Any) -> None:
        """Write the rows of all pieces as one table, in groups of many rows."""
        tables = map(_from_stream, outputs)
        head = next(tables, None)
        if head is None:
            return
        with pyarrow.parquet.ParquetWriter(file, head.schema) as writer:
            together = [head]
            for table in tables:
                if sum(one.num_rows for one in together) >= ROWS_TOGETHER:
                    writer.write_table(pyarrow.concat_tables(together))
                    together = []
                together.append(table)
            writer.write_table(pyarrow.concat_tables(together))


FORMS: dict[str, Form] = {form.name: form for form in (Text(), JsonLines(), Parquet())}


def form_of(file: str) -> Form:
    """Return the form of a file, which the ending of its name says: of any other than these it is text.

    >>> [form_of(name).name for name in ("a.txt.gz", "b.jsonl", "c.parquet")]
    ['text', 'JSON lines', 'parquet']
    """
    ending = Path(output_name(file)).suffix.lower()
    return FORMS[{".jsonl": JsonLines.name, ".ndjson": JsonLines.name, ".parquet": Parquet.name}.get(ending, Text.name)]


def output_name(file: str) -> str:
    """Return the name of the translation of a file: its own, without the ending of a packed one.

    >>> output_name("a.txt.gz"), output_name("b.parquet")
    ('a.txt', 'b.parquet')
    """
    path = Path(file)
    return path.stem if path.suffix.lower() in PACKED_ENDINGS else path.name


def added(best: "Translation", *, scores: bool) -> dict[str, Any]:
    """Return the columns that are added to a row."""
    return {TRANSLATION: best.text, **({SCORE: round(best.score, 4)} if scores else {})}


def choose_column(
    file: str, names: Sequence[str], texts: Sequence[str], asked: str | None, *, scores: bool = False
) -> str:
    """Return the column to translate: the one that was asked for, the only one of text, or one of a likely name.

    DataError where there is none, or it would not be clear which, or the table has a translation already, or with
    `scores` a score.
    """
    if taken := [name for name in ((TRANSLATION, SCORE) if scores else (TRANSLATION,)) if name in names]:
        raise DataError(f"{file} has a column {taken[0]} already, which is to be added: rename it")
    if asked is not None:
        if asked in texts:
            return asked
        what = f"column {asked} of text" if asked in names else f"column {asked}"
        raise DataError(f"{file} has no {what}, it has {', '.join(names)}: choose another with --column")
    likely = [name for name in LIKELY if name in texts] if len(texts) > 1 else list(texts)
    if not likely:
        raise DataError(f"{file} has the columns {', '.join(names)}: say which to translate with --column")
    return likely[0]


def is_text(kind: Any) -> bool:
    """Return whether this type of Arrow is text."""
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _object(line: str) -> dict[str, Any] | None:
    """Return the object on a line of JSON, or None."""
    try:
        value = decode_anything(line.encode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _with_fields(line: str, fields: dict[str, Any]) -> str:
    """Return the object on a line with more fields at its end; where there is none, these alone."""
    more = json.dumps(fields, ensure_ascii=False)
    if (value := _object(line)) is None:
        return more
    return f"{line.rstrip()[:-1]}{', ' if value else ''}{more[1:]}"


@contextmanager
def _arrow(file: str) -> Iterator[None]:
    """Turn the errors of reading a table into DataError."""
    try:
        with readable(Path(file)):
            yield
    except pyarrow.ArrowException as error:
        raise DataError(f"{file} is a parquet file that is damaged or incomplete ({error}): get it again") from None


def _to_stream(table: pyarrow.Table) -> bytes:
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _from_stream(content: bytes) -> pyarrow.Table:
    return pyarrow.ipc.open_stream(content).read_all()
