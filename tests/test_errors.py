"""Suggestions in error messages."""

import pytest

from glassformer.errors import closest, closest_path


def test_the_closest_word_is_named_or_none():
    assert closest("trian", ["train", "translate"]) == ": did you mean train?"
    assert closest("xyz", ["train", "translate"]) == ""


@pytest.mark.parametrize(
    ("missing", "found"),
    [("number.tsv", "numbers.tsv"), ("number", ""), ("words.tsv", ""), ("train.en", ""), ("no/numbers.tsv", "")],
)
def test_the_closest_file_has_the_same_ending(tmp_path, missing, found):
    for name in ("numbers.tsv", "train.de"):
        (tmp_path / name).touch()
    (tmp_path / "numbers").mkdir()
    assert closest_path(tmp_path / missing) == (f": did you mean {tmp_path / found}?" if found else "")
    assert closest_path(tmp_path / "number", folder=True) == f": did you mean {tmp_path / 'numbers'}?"
