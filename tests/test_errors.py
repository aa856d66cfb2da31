"""Suggestions in error messages."""

from glassformer.errors import closest, closest_name


def test_the_closest_word_is_named_or_none():
    assert closest("trian", ["train", "translate"]) == ": did you mean train?"
    assert closest("xyz", ["train", "translate"]) == ""


def test_the_closest_name_is_that_of_a_file_beside(tmp_path):
    (tmp_path / "numbers.tsv").touch()
    assert closest_name(tmp_path / "number.csv") == f": did you mean {tmp_path / 'numbers.tsv'}?"
    assert closest_name(tmp_path / "words.tsv") == ""
    assert closest_name(tmp_path / "nowhere" / "numbers.tsv") == ""
