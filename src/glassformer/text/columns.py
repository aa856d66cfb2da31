"""A column of text in a table of whatever kind: an Arrow table, a pandas frame, or a mapping of arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import ArgumentError, DataError, shown


def texts_of(table: Any, column: str) -> list[str]:
    """Return the cells of a column; an empty text where there is none.

    Raises DataError where the table has no such column, or one of other things than text.

    >>> texts_of({"text": ["one", None]}, "text")
    ['one', '']
    """
    names = names_of(table)
    if column not in names:
        raise DataError(f"the table has no column {column}, it has {', '.join(map(str, names))}: choose one of them")
    texts = ["" if cell is None else cell for cell in _cells_of(table[column])]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"the column {column} must have text, got {shown(text)} in row {row}")
    return [str(text) for text in texts]  # NumPy has a kind of its own


def with_texts(table: Any, column: str, texts: Sequence[str]) -> Any:
    """Return the table, of the same kind, with one more column.

    >>> with_texts({"text": ["one"]}, "translation", ["eins"])
    {'text': ['one'], 'translation': ['eins']}
    """
    if column in names_of(table):
        raise DataError(f"the table has a column {column} already: give the new one another name")
    if hasattr(table, "append_column"):
        return table.append_column(column, _arrow_array(texts))
    if hasattr(table, "assign"):
        return table.assign(**{column: list(texts)})
    arrays = [cells for cells in table.values() if hasattr(cells, "dtype")]
    return {**table, column: _numpy_array(texts) if arrays else list(texts)}


def names_of(table: Any) -> list[Any]:
    """Return the names of the columns; ArgumentError for what is no table.

    >>> names_of({"text": ["one"], "year": [1]})
    ['text', 'year']
    """
    if hasattr(table, "append_column"):
        return list(table.schema.names)
    if hasattr(table, "assign") or isinstance(table, Mapping):
        return list(table.keys())
    raise ArgumentError(f"a table must be of Arrow or pandas, or a mapping of arrays, got {shown(table)}")


def _cells_of(cells: Any) -> list[Any]:
    """Return the cells of a column of whatever kind; None where there is none."""
    if hasattr(cells, "to_pylist"):
        return cells.to_pylist()
    if hasattr(cells, "isna"):  # pandas has None, NaN or NA there, by the type of the column
        return [None if missing else cell for cell, missing in zip(cells, cells.isna(), strict=True)]
    return [None if isinstance(cell, float) and cell != cell else cell for cell in cells]


def _arrow_array(texts: Sequence[str]) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError('a table of Arrow needs the extra parquet: pip install "glassformer[parquet]"') from None
    return pyarrow.array(texts, pyarrow.string())


def _numpy_array(texts: Sequence[str]) -> Any:
    try:
        import numpy as np
    except ImportError:
        raise ImportError('arrays need NumPy, which the extra fast installs: pip install "glassformer[fast]"') from None
    return np.array(texts, dtype=object)
