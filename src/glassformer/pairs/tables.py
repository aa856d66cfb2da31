"""Rows of tables: CSV and TSV with headers, JSON lines, parquet and Excel workbooks."""

import csv
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from glassformer.decoding import decode_json
from glassformer.errors import DataError
from glassformer.pairs import kinds
from glassformer.pairs.columns import ColumnChooser
from glassformer.pairs.lines import advice_on_encoding, as_utf_8, readable, unpacked

Row = tuple[Any, Any]
"""The two cells of a row that are the pair."""

DELIMITERS = ",;\t|"
FOLLOWING = 5
"""Rows below the first one that may tell that it is a header."""
JUDGED = 20
"""Lines that say which of these separates the cells of a CSV file."""


def rows(path: Path, kind: str, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the source's and the target's cell of each row; DataError where the table can't be used."""
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
    with _open_text(path) as file:
        yield from _delimited(path, csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), columns)


def _csv_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of a CSV file, whose first lines say what separates its cells."""
    with _open_text(path) as file:
        first = list(islice(file, JUDGED))
        lines = chain(first, file)
        yield from _delimited(path, csv.reader(lines, delimiter=_delimiter(first), strict=True), columns)


def _delimiter(lines: Sequence[str]) -> str:
    """Return the sign that stands equally often, and most often, in each of these lines, outside of quotes."""

    def likeness(sign: str) -> tuple[int, int]:
        counts = Counter(re.sub('"[^"]*"', "", line).count(sign) for line in lines if line.strip())
        times, agreeing = max(
            ((times, agreeing) for times, agreeing in counts.items() if times), default=(0, 0), key=itemgetter(1)
        )
        return agreeing, times

    return max(DELIMITERS, key=likeness)


def _delimited(path: Path, reader: Any, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows that a reader of the csv module gives. The first is a header if its cells are known names."""
    csv.field_size_limit(1 << 30)
    try:
        numbered = ((reader.line_num, row) for row in reader if any(row))
        begins = list(islice(numbered, 1 + FOLLOWING))
        if not begins:
            return
        first = begins[0][1]
        headed = columns.is_header(first, [row for _, row in begins[1:]])
        left, right = columns.choose(first) if headed else columns.choose_without_names(first)
        least = max(left, right) + 1
        for number, row in chain(begins[1:] if headed else begins, numbered):
            if len(row) < least or any(row[len(first) :]):
                raise DataError(
                    f"{path}, line {number}: it has {len(row)} cells, the first line {len(first)}: "
                    "within a text a line break or separator needs quotes around it, or must go"
                )
            yield row[left], row[right]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None


def _json_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of objects, one a line, or all in one array."""
    with _open_text(path) as file:
        number, first = next(((number, line) for number, line in enumerate(file, start=1) if line.strip()), (1, ""))
        if first.lstrip().startswith("["):
            items = enumerate(_json_array(path, first + file.read()), start=1)
            yield from _objects(path, items, "item", columns)
        else:
            yield from _objects(path, _json_lines(path, chain([first], file), number), "line", columns)


def _json_lines(path: Path, file: Iterator[str], start: int) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, start):
        if line.strip():
            try:
                yield number, decode_json(line.encode(), Any)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}; one object a line was expected") from None


def _json_array(path: Path, text: str) -> list[Any]:
    try:
        return decode_json(text.encode(), list[Any])
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _objects(path: Path, numbered: Iterator[tuple[int, Any]], unit: str, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of objects; those within an object, as in {"translation": {"en": ...}}, count as its columns."""
    chosen: tuple[str, str] | None = None
    for number, value in numbered:
        if not isinstance(value, dict):
            raise DataError(f"{path}, {unit} {number}: an object was expected, got {json.dumps(value)[:40]}")
        flat = _flattened(value)
        if chosen is None:
            names = [name for name, cell in flat.items() if not isinstance(cell, list)]
            left, right = columns.choose(names, likely=[name for name in names if isinstance(flat[name], str | None)])
            chosen = names[left], names[right]
        if missing := [name for name in chosen if name not in flat]:
            raise DataError(f"{path}, {unit} {number}: it has no {missing[0]}")
        yield flat[chosen[0]], flat[chosen[1]]


def _flattened(value: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, cell in value.items():
        if isinstance(cell, dict):
            flat |= {f"{name}.{inner}": text for inner, text in cell.items()}
        else:
            flat[name] = cell
    return flat


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
            for batch in file.iter_batches(columns=chosen):
                table = pyarrow.Table.from_batches([batch]).flatten()
                yield from zip(*(table.column(name).to_pylist() for name in chosen), strict=True)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is a parquet file that is damaged or incomplete ({error}): get it again") from None


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
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _xlsx_rows(path: Path, columns: ColumnChooser) -> Iterator[Row]:
    """Yield the rows of the first sheet of an Excel workbook that has any."""
    try:
        import openpyxl
    except ImportError:
        raise ImportError('an Excel workbook needs the extra xlsx: pip install "glassformer[xlsx]"') from None
    try:
        with path.open("rb") as file, closing(openpyxl.load_workbook(file, read_only=True, data_only=True)) as workbook:
            for sheet in workbook.worksheets:
                sheet.reset_dimensions()  # some programs write wrong ones
                cells = (row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row))
                first = list(islice(cells, 1))
                if first:
                    yield from _sheet_rows(first[0], cells, columns)
                    return
    except DataError:
        raise
    except (KeyError, ValueError, SyntaxError, OSError, zipfile.BadZipFile) as error:  # a ParseError is a SyntaxError
        raise DataError(f"{path} is an Excel workbook that is damaged or incomplete ({error}): get it again") from None


def _sheet_rows(first: Sequence[Any], cells: Iterator[Sequence[Any]], columns: ColumnChooser) -> Iterator[Row]:
    titles = ["" if cell is None else str(cell) for cell in first]
    while titles and not titles[-1]:  # cells that were formatted, never filled
        titles.pop()
    following = list(islice(cells, FOLLOWING))
    headed = columns.is_header(titles, following)
    left, right = columns.choose(titles) if headed else columns.choose_without_names(titles)
    for row in chain(following, cells) if headed else chain([first], following, cells):
        yield tuple(row[n] if n < len(row) else None for n in (left, right))  # pyright: ignore[reportReturnType]


@contextmanager
def _open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file of text, unpacked; DataError where it isn't UTF-8."""
    with path.open("rb") as packed:
        try:
            yield io.TextIOWrapper(as_utf_8(unpacked(packed)), encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            line = error.object[error.object.rfind(b"\n", 0, error.start) + 1 :].partition(b"\n")[0]
            byte = error.object[error.start]
            raise DataError(f"{path}: not UTF-8 (byte 0x{byte:02x}); {advice_on_encoding(line)}") from None
