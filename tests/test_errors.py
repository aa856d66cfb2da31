"""Suggestions in error messages."""

import pytest
import torch

from glassformer.errors import closest, closest_path, shown


def test_a_value_is_shown_in_one_short_line():
    assert shown("a  b") == "'a  b'"
    assert shown(torch.zeros(2, 3)) == "Tensor of torch.float32 (2, 3)"
    assert shown([torch.zeros(1)] * 3) == "[tensor([0.]), tensor([0.]), tensor([0.])]"
    assert "\n" not in shown([torch.zeros(2, 2)])
    assert shown("x" * 100) == f"'{'x' * 79}..."


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
