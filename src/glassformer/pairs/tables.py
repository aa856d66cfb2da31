"""Rows of tables: CSV and TSV with headers, JSON lines, parquet and Excel workbooks."""

import codecs
import csv
import io
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from glassformer.decoding import decode_anything
from glassformer.errors import DataError, printable, shown
from glassformer.pairs import kinds
from glassformer.pairs.columns import ColumnChooser
from glassformer.pairs.lines import (
    LONGEST_LINE,
    advice_on_encoding,
    as_utf_8,
    check_whole,
    open_lines,
    read_whole,
    readable,
    too_long,
    unpacked,
)

Row = tuple[Any, Any] | None
"""The two cells of a row that are the pair; None: the row is empty."""

DELIMITERS = ",;\t|"
FOLLOWING = 5
"""Rows below the first one that may tell that it is a header."""
SHEET_ROWS = 1 << 20
"""Rows of a sheet in Excel. A row of a file may say that it has a larger number."""
BROKEN_WORKBOOK = (
    *(OSError, ValueError, SyntaxError, TypeError, LookupError),  # openpyxl's, a ParseError of XML being a SyntaxError
    *(zipfile.BadZipFile, zlib.error, EOFError, RuntimeError),  # zipfile's
)
"""Errors in which damaged workbooks end, as far as `make fuzz` and the documentation of zipfile know them."""
JUDGED = 20
"""Lines that say what separates the cells of a CSV file, and rows that say whether empty ones stand between all."""
Keys = tuple[str, ...]
"""Keys of objects within one another that lead to a cell: those of translation.en are ("translation", "en")."""
DEEPEST, NEAR = 4, 2
"""Most objects around a cell that counts as a column, and most keys of one that is likely to be a text's."""
LONGEST_KEY = 200
"""Characters of a longer key, below which nothing is looked for: the names of columns repeat it."""
FEWEST = 4
"""Fewest rows with text that can say whether empty ones stand between all."""


def rows(path: Path, kind: str, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the source's and the target's cell of each row, None for an empty one.

    Raises DataError where the table can't be used.
    """
    read: dict[str, Callable[[Path, ColumnChooser], Iterator[Row]]] = {
        kinds.TEXT: _tsv_rows,
        kinds.CSV: _csv_rows,
        kinds.JSON: _json_rows,
        kinds.PARQUET: _parquet_rows,
        kinds.XLSX: _xlsx_rows,
    }
    with readable(path):
        yield from read[kind](path, columns)


def _tsv_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of a file of tab-separated values, in which quotes are characters as any other."""
    with open_text(path) as file:
        yield from _delimited(path, _numbered_rows(path, file, delimiter="\t", quoting=csv.QUOTE_NONE), columns)


def _csv_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of a CSV file, whose first lines say what separates its cells."""
    with open_text(path) as file:
        first = list(islice(file, JUDGED))
        if first and (said := _SEPARATOR_LINE.fullmatch(first[0])):
            delimiter, first[0] = said[1], "\n"
        else:
            delimiter = _delimiter(first)
        form = dict(delimiter=delimiter, skipinitialspace=_are_spaced(first, delimiter), strict=True)
        numbered = _numbered_rows(path, chain(first, file), **form)
        yield from _delimited(path, numbered, columns)


_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?[\r\n]*')
"""The first line that Excel reads and writes where something else than its own sign separates the cells."""
_QUOTED = re.compile(rf'(?m)(^|[{re.escape("".join(DELIMITERS))}])"[^"]*(?:""[^"]*)*(?:"|\Z)')
"""A quoted cell, which may have several lines, or the rest of the text where it has no end; and the sign before it."""
_QUOTATION = re.compile(r'\s"[^"]*"')
"""A quotation within a cell that is not quoted; a sign of inches stands after a number."""


def _delimiter(lines: Sequence[str]) -> str:
    """Return the sign that stands equally often, and most often, in most rows, outside of quotation marks."""
    bare = _QUOTED.sub(r"\1", "".join(lines))
    rows = [_QUOTATION.sub("", row) for row in re.split("\r\n|\r|\n", bare) if row.strip(" ")]

    def likeness(sign: str) -> tuple[int, int]:
        counts = Counter(row.count(sign) for row in rows)
        times, agreeing = max(
            ((times, agreeing) for times, agreeing in counts.items() if times), default=(0, 0), key=itemgetter(1)
        )
        return agreeing, times

    return max(DELIMITERS, key=likeness)


def _are_spaced(lines: Sequence[str], delimiter: str) -> bool:
    """Return whether there are quoted cells with a space before them."""
    sign = re.escape(delimiter)
    return re.search(rf'{sign} +"(?:[^"]|"")*"(?:{sign}|[\r\n]|\Z)', "".join(lines)) is not None


def _numbered_rows(path: Path, lines: Iterable[str], **form: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows, as the csv module reads this form, each with the number of its last line.

    DataError where the lines of a row, which quotes join, have more than LONGEST_LINE characters together.
    """
    length, begins = 0, 1

    def counted() -> Iterator[str]:
        nonlocal length
        for line in lines:
            length += len(line)
            if length > LONGEST_LINE:
                raise too_long(f"{path}, the row that begins at line {begins}", "is a quote left open?")
            yield line

    csv.field_size_limit(1 << 30)
    reader = csv.reader(counted(), **form)
    try:
        for row in reader:
            length, begins = 0, reader.line_num + 1
            yield reader.line_num, row
    except csv.Error as error:
        if reader.line_num > begins or str(error) == "unexpected end of data":
            raise DataError(
                f"{path}, line {begins}: a quote opens in this row, and its end is missing or wrong ({error}): close "
                "it, and write a quote within a quoted text twice"
            ) from None
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None


def _delimited(path: Path, numbered: Iterator[tuple[int, list[str]]], columns: ColumnChooser) -> Iterator[Row]:
    """Yield the pairs of rows that come with the numbers of their lines. The first may be a header."""
    begins, filled = list[tuple[int, list[str]]](), list[list[str]]()
    for number, row in numbered:
        if any(row):
            filled.append(row)
        if filled:
            begins.append((number, row))
        if len(filled) > FOLLOWING:
            break
    if not filled:
        return
    if columns.is_title(filled):
        columns.say_title(filled[0])
        begins = begins[[row for _, row in begins].index(filled[1]) :]
        filled = filled[1:]
    first, *following = filled
    if len(first) == 1 and following and len(following[0]) > 1:
        raise _alone(f"{path}, line {begins[0][0]}", first[0], len(following[0]))
    headed = columns.is_header(first, following)
    left, right = columns.choose(first) if headed else columns.choose_without_names(first)
    least = max(left, right) + 1
    for number, row in chain(begins[1:] if headed else begins, numbered):
        if not any(row):
            yield None
            continue
        if len(row) < least or any(row[len(first) :]):
            raise DataError(
                f"{path}, line {number}: it has {len(row)} cells, the first line {len(first)}: "
                "within a text a line break or separator needs quotes around it, or must go"
            )
        yield row[left], row[right]


def _json_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of objects, one a line, or all in one array."""
    with path.open("rb") as packed:
        content = as_utf_8(unpacked(packed))
        is_array = content.peek(kinds.LOOKED_AT).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        text = read_whole(content, path) if is_array else b""
    if is_array:
        yield from _objects(path, enumerate(_json_array(path, text), start=1), "item", columns)
        return
    with open_text(path) as file:
        yield from _objects(path, _json_lines(path, file), "line", columns)


def _json_lines(path: Path, file: Iterable[str]) -> Iterator[tuple[int, Any] | None]:
    """Yield the value of each line with its number, None for an empty line."""
    for number, line in enumerate(file, start=1):
        try:
            yield (number, decode_anything(line.encode())) if line.strip() else None
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; one object a line was expected") from None


def _json_array(path: Path, text: bytes) -> list[Any]:
    try:
        return decode_anything(text.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _objects(
    path: Path, numbered: Iterable[tuple[int, Any] | None], unit: str, columns: ColumnChooser
) -> Iterator[Row]:
    """Yield the rows of objects; the cells of those within an object, {"translation": {"en": ...}}, are its columns."""
    chosen: tuple[Keys, Keys] | None = None
    for item in numbered:
        if item is None:
            yield None
            continue
        number, value = item
        if not isinstance(value, dict):
            raise DataError(f"{path}, {unit} {number}: an object was expected, got {json.dumps(value)[:40]}")
        place = f"{path}, {unit} {number}"
        chosen = chosen or _chosen(value, place, columns)
        yield _cell_at(value, chosen[0], place), _cell_at(value, chosen[1], place)


def _chosen(value: dict[str, Any], place: str, columns: ColumnChooser) -> tuple[Keys, Keys]:
    """Return the keys that lead to the source and the target in a file's objects, of which this is the first."""
    cells = _cells_within(value)
    named = {".".join(keys): keys for keys, cell in cells.items() if not isinstance(cell, list)}
    if len(named) < 2:
        held = [f"{printable('.'.join(keys))} ({_kind(cell)})" for keys, cell in islice(cells.items(), 12)]
        expected = "the texts of a source and a target were expected"
        raise DataError(f"{place}: {expected}, got {', '.join(held) or 'nothing'}")
    names = list(named)
    texts = [name for name, keys in named.items() if isinstance(cells[keys], str | None)]
    near = [name for name in texts if len(named[name]) <= NEAR]
    left, right = columns.choose(names, likely=near if len(near) > 1 else texts)
    return named[names[left]], named[names[right]]


def _cells_within(value: dict[str, Any]) -> dict[Keys, Any]:
    """Return the cells of an object and of those within it, by the keys that lead to each."""
    cells: dict[Keys, Any] = {(name,): cell for name, cell in value.items()}
    for _ in range(DEEPEST):
        within = dict[Keys, Any]()
        for keys, cell in cells.items():
            if isinstance(cell, dict) and len(keys[-1]) <= LONGEST_KEY:
                within |= {(*keys, name): inner for name, inner in cell.items()}
            else:
                within[keys] = cell
        cells = within
    return cells


def _cell_at(value: Any, keys: Keys, place: str) -> Any:
    """Return the cell to which keys lead; DataError where there is none, or no text."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise DataError(f"{place}: it has no {'.'.join(keys)}")
        value = value[key]
    if isinstance(value, dict | list):
        raise DataError(f"{place}: {'.'.join(keys)} is {_kind(value)}, text was expected")
    return value


def _kind(cell: Any) -> str:
    """Return what a cell of JSON is, in words."""
    named = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return named.get(type(cell), "a number")


def _parquet_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of a parquet file, of which only the two columns are read."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise ImportError('a parquet file needs the extra parquet: pip install "glassformer[parquet]"') from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            kinds_of = dict(_parquet_columns(file.schema_arrow))
            names = list(kinds_of)
            left, right = columns.choose(names, likely=[name for name in names if _is_text(pyarrow, kinds_of[name])])
            chosen = [names[left], names[right]]
        if nested := [name for name in chosen if pyarrow.types.is_nested(kinds_of[name])]:
            raise DataError(f"{path}: the column {nested[0]} has {kinds_of[nested[0]]}, text was expected")
        # As a dictionary, a text that comes a million times is held once: a small file may stand for any size.
        with pyarrow.parquet.ParquetFile(path, read_dictionary=chosen) as file:
            for batch in file.iter_batches(columns=chosen):
                table = pyarrow.Table.from_batches([batch]).flatten()
                yield from zip(*(_cells(pyarrow, table.column(name)) for name in chosen), strict=True)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is a parquet file that is damaged or incomplete ({error}): get it again") from None


def _cells(pyarrow: Any, column: Any) -> Iterator[Any]:
    """Yield the cells of a column; equal texts of a dictionary are one object."""
    for part in column.chunks:
        if pyarrow.types.is_dictionary(part.type):
            part.validate(full=True)  # its indices, of which a damaged file has wrong ones
            texts = part.dictionary.to_pylist()
            yield from (None if place is None else texts[place] for place in part.indices.to_pylist())
        else:
            yield from part.to_pylist()


def _parquet_columns(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and type of each column, those of structs each by itself."""
    for field in schema:
        if hasattr(field.type, "num_fields") and field.type.num_fields and str(field.type).startswith("struct"):
            yield from ((f"{field.name}.{inner.name}", inner.type) for inner in field.type)
        else:
            yield field.name, field.type


def _is_text(pyarrow: Any, kind: Any) -> bool:
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    types = pyarrow.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _xlsx_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of the first sheet of an Excel workbook that has any."""
    try:
        import openpyxl
    except ImportError:
        raise ImportError('an Excel workbook needs the extra xlsx: pip install "glassformer[xlsx]"') from None
    cells = _first_sheet(openpyxl, path)
    first = next((row for row in cells if row is not None), None)
    if first is not None:
        yield from _sheet_rows(first, cells, columns)


def _first_sheet(openpyxl: Any, path: Path) -> Iterator[Sequence[Any] | None]:
    """Yield the rows of the sheets up to the first that has text, None for an empty row; DataError if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_whole(sum(part.file_size for part in archive.infolist()), path)
        with path.open("rb") as file, closing(openpyxl.load_workbook(file, read_only=True, data_only=True)) as workbook:
            for sheet in workbook.worksheets:
                sheet.reset_dimensions()  # some programs write wrong ones
                empty = True
                for row in sheet.iter_rows(values_only=True, max_row=SHEET_ROWS):
                    if any(cell is not None for cell in row):
                        empty = False
                        yield row
                    else:
                        yield None
                if not empty:
                    return
    except BROKEN_WORKBOOK as error:
        raise DataError(f"{path} is an Excel workbook that is damaged or incomplete ({error}): get it again") from None


def _sheet_rows(first: Sequence[Any], cells: Iterator[Sequence[Any] | None], columns: ColumnChooser) -> Iterator[Row]:
    begins = [first, *islice(cells, JUDGED)]
    filled = [_texts(row) for row in begins if row is not None][: 2 + FOLLOWING]
    if columns.is_title(filled):
        columns.say_title(filled[0])
        begins = begins[next(number for number, row in enumerate(begins) if number and row is not None) :]
        filled = filled[1:]
    names, *following = filled
    if len(names) == 1 and following and len(following[0]) > 1:
        if len(following[0]) > 2:
            raise _alone(f"{columns.path}, the first row", names[0], len(following[0]))
        names = [*names, ""]  # the first pair, whose target is to be written yet
    headed = columns.is_header(names, following[:FOLLOWING])
    left, right = columns.choose(names) if headed else columns.choose_without_names(names)
    for row in chain(begins[1:] if headed else begins, cells):
        yield None if row is None else (_cell(row, left), _cell(row, right))


def _alone(place: str, cell: str, cells: int) -> DataError:
    """Return the error for a first row with a single cell above rows with more."""
    return DataError(
        f"{place}: it has one cell, {shown(cell)}, the next row {cells}: remove it where it is a title, or write its "
        "other cells"
    )


def _texts(row: Sequence[Any]) -> list[str]:
    """Return the cells of a row as text, without those after the last that has any: formatted, but never filled."""
    texts = ["" if cell is None else str(cell) for cell in row]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def _cell(row: Sequence[Any], number: int) -> Any:
    """Return a cell of a row that may end before it."""
    return row[number] if number < len(row) else None


def inner_gaps(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows with one empty one where some stand between two others.

    There is none at the beginning and the end, nor where one stands after each row, as some programs write CSV.

    >>> list(inner_gaps([None, ("a", "b"), None, None, ("c", "d"), None]))
    [('a', 'b'), None, ('c', 'd')]
    """
    rows = iter(rows)
    begins = list(islice(rows, JUDGED))
    usual, gap, has_begun = _usual_gap(begins), 0, False
    for row in chain(begins, rows):
        if row is None:
            gap += 1
            continue
        if has_begun and gap > usual:
            yield None
        yield row
        gap, has_begun = 0, True


def _usual_gap(rows: Sequence[Row]) -> int:
    """Return how many empty rows stand at least between two others, where there are enough rows to tell."""
    filled = [number for number, row in enumerate(rows) if row is not None]
    return min(after - before - 1 for before, after in pairwise(filled)) if len(filled) >= FEWEST else 0


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file of text, unpacked; DataError where it isn't UTF-8."""
    with path.open("rb") as packed:
        try:
            with io.TextIOWrapper(open_lines(packed, path, returns=True), encoding="utf-8-sig", newline="") as file:
                yield file
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"{path}: not UTF-8 (byte 0x{byte:02x}); {advice_on_encoding(error)}") from None
