"""The lines that are translated."""

import gzip
from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.synthesis.config import BacktranslateConfig, DistillConfig
from glassformer.synthesis.text import write_text
from glassformer.training.config import TrainConfig


def test_lines_of_several_files_come_once_and_empty_ones_never(tmp_path):
    (tmp_path / "a.txt").write_text("b a\n\nc\tc\nb a\n", encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("ü\n  \nc\tc\nb  a".encode()))
    text = (tmp_path / "a.txt", tmp_path / "b.txt.gz")
    config = DistillConfig(run=Path("run"), text=text, student=TrainConfig(out=tmp_path / "out"))
    counts = write_text(config, tmp_path / "text")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "b a\nc\tc\nü\nb  a\n"
    assert counts == {"text": {"lines": 8, "empty": 2, "repeated": 2, "left": 4}}


def test_where_neighbours_are_joined_a_gap_stays(tmp_path):
    (tmp_path / "a.txt").write_text("\na\nb\n\na\nc\nd\n\n")
    (tmp_path / "b.txt").write_text("e\nf\n")
    student = TrainConfig(out=tmp_path / "out", join_lines=2)
    config = DistillConfig(run=Path("run"), text=(tmp_path / "a.txt", tmp_path / "b.txt"), student=student)
    counts = write_text(config, tmp_path / "text")
    assert (tmp_path / "text").read_text() == "a\nb\n\nc\nd\n\ne\nf\n"
    assert counts == {"text": {"lines": 10, "empty": 3, "repeated": 1, "left": 6}}


@pytest.mark.parametrize(("kind", "expected"), [(DistillConfig, "a\nb\n"), (BacktranslateConfig, "A\nB\nC\n")])
def test_without_text_a_side_of_the_real_pairs_is_taken(kind, expected, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tA\na\tB\nb\tC\n")
    student = TrainConfig(source=Path(f"{tmp_path / 'pairs.tsv'}:3"), out=tmp_path / "out")
    write_text(kind(run=Path("run"), student=student), tmp_path / "text")
    assert (tmp_path / "text").read_text() == expected


def test_text_without_a_line(tmp_path):
    (tmp_path / "a.txt").write_text("\n \n")
    config = DistillConfig(run=Path("run"), text=(tmp_path / "a.txt",), student=TrainConfig(out=tmp_path / "out"))
    with pytest.raises(DataError, match=r"there is no text to translate: all of the 2 lines of .*a\.txt are empty"):
        write_text(config, tmp_path / "text")
    assert not (tmp_path / "text").exists()
