"""A column of text in tables of every kind."""

import numpy as np
import pandas as pd
import pyarrow
import pytest

from glassformer.errors import ArgumentError, DataError
from glassformer.text.columns import texts_of, with_texts

TABLES = {
    "lists": {"text": ["one", "two"], "n": [1, 2]},
    "arrays": {"text": np.array(["one", "two"]), "n": np.array([1, 2])},
    "objects": {"text": np.array(["one", "two"], dtype=object)},
    "frame": pd.DataFrame({"text": ["one", "two"], "n": [1, 2]}, index=[7, 9]),
    "table": pyarrow.table({"text": ["one", "two"], "n": [1, 2]}),
    "batch": pyarrow.record_batch({"text": ["one", "two"], "n": [1, 2]}),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_column_comes_and_goes_in_each_kind_of_table(kind):
    table = TABLES[kind]
    assert texts_of(table, "text") == ["one", "two"]
    assert {type(text) for text in texts_of(table, "text")} == {str}
    more = with_texts(table, "new", ["eins", "zwei"])
    assert type(more) is type(table)
    assert texts_of(more, "new") == ["eins", "zwei"]
    assert texts_of(more, "text") == ["one", "two"]


def test_a_frame_keeps_its_index_and_arrays_stay_arrays():
    assert list(with_texts(TABLES["frame"], "new", ["a", "b"]).index) == [7, 9]
    assert isinstance(with_texts(TABLES["arrays"], "new", ["a", "b"])["new"], np.ndarray)


def test_no_text_reads_as_an_empty_one():
    assert texts_of(pyarrow.table({"text": ["a", None]}), "text") == ["a", ""]
    assert texts_of(pd.DataFrame({"text": ["a", float("nan")]}), "text") == ["a", ""]
    assert texts_of(pd.DataFrame({"text": pd.array(["a", None], dtype="string")}), "text") == ["a", ""]
    assert texts_of({"text": np.array(["a", float("nan")], dtype=object)}, "text") == ["a", ""]


def test_what_cannot_be_used_is_explained():
    with pytest.raises(DataError, match="the table has no column line, it has text, n: choose one of them"):
        texts_of(TABLES["lists"], "line")
    with pytest.raises(DataError, match="the column n must have text, got 1 in row 0"):
        texts_of(TABLES["lists"], "n")
    with pytest.raises(DataError, match="the table has a column n already: give the new one another name"):
        with_texts(TABLES["lists"], "n", ["a", "b"])
    with pytest.raises(ArgumentError, match="a table must be of Arrow or pandas, or a mapping of arrays, got 'text'"):
        texts_of("text", "text")
