"""The pairs that are left, and the real ones beside them."""

from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.pairs.mixture import open_pairs
from glassformer.synthesis.config import BacktranslateConfig, DistillConfig, SynthesisConfig
from glassformer.synthesis.mixture import student_settings, write_mixture
from glassformer.training.config import TrainConfig


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("a b\nc d\ne f\n")
    Path("written").write_text("-0.5\tB A\n-0.5\tD C\n-0.5\tF E\n")
    Path("real.tsv").write_text("a b\tB A\ng\tG\n\tx\ng\tG\n")
    return tmp_path


def mixed(config: SynthesisConfig) -> tuple[dict, list[tuple[str, str]], TrainConfig]:
    counts = write_mixture(config, Path("mixed"), Path("text"), Path("written"), None)
    settings = student_settings(config, Path("mixed"))
    return dict(counts), list(settings.pairs), settings


def test_written_pairs_alone(here):
    config = DistillConfig(run=Path("run"), text=(Path("text"),), student=TrainConfig(out=Path("out")))
    counts, pairs, settings = mixed(config)
    assert pairs == [("a b", "B A"), ("c d", "D C"), ("e f", "F E")]
    assert (settings.source, settings.target) == (Path("mixed/written.source"), Path("mixed/written.target"))
    assert counts["written pairs"]["left"] == 3
    assert "real pairs" not in counts


def test_real_pairs_come_first_and_none_comes_twice(here):
    config = DistillConfig(run=Path("run"), student=TrainConfig(source=Path("real.tsv"), out=Path("out")))
    counts, pairs, _ = mixed(config)
    assert pairs == [("a b", "B A"), ("g", "G"), ("c d", "D C"), ("e f", "F E")]
    assert counts["real pairs"] == {"read": 4, "empty": 1, "repeated": 1, "left": 2}
    assert (counts["written pairs"]["repeated"], counts["written pairs"]["left"]) == (1, 2)


def test_weights_and_a_tag(here):
    Path("more.tsv").write_text("h\tH\na b\tB A\n")
    student = TrainConfig(source=(Path("real.tsv:2"), Path("more.tsv")), out=Path("out"), d_model=16)
    config = BacktranslateConfig(run=Path("run"), student=student, real_weight=3, tag="<BT>")
    _, pairs, settings = mixed(config)
    names = ("mixed/real.source:6", "mixed/real-2.source:3", "mixed/written.source")
    assert settings.source == tuple(map(Path, names))
    assert settings.d_model == 16
    written = [("<BT> B A", "a b"), ("<BT> D C", "c d"), ("<BT> F E", "e f")]
    assert pairs == [("a b", "B A"), ("g", "G")] * 6 + [("h", "H")] * 3 + written


def test_columns_of_tables_are_read_as_the_training_would(here):
    for name in ("train", "valid"):
        Path(f"{name}.csv").write_text(f"id,de,en\n1,{name} x,{name} y\n2,{name} z,{name} w\n")
    files = dict(source=Path("train.csv"), valid_source=Path("valid.csv"), columns=("en", "de"))
    _, pairs, settings = mixed(DistillConfig(run=Path("run"), student=TrainConfig(**files, out=Path("out"))))
    assert pairs[:2] == [("train y", "train x"), ("train w", "train z")]
    assert list(settings.valid_pairs or ()) == [("valid y", "valid x"), ("valid w", "valid z")]
    parallel = dict(valid_source=Path("a.en"), valid_target=Path("a.de"))
    student = TrainConfig(source=Path("train.csv"), columns=("en", "de"), **parallel, out=Path("out"))
    settings = student_settings(DistillConfig(run=Path("run"), student=student), Path("mixed"))
    assert (settings.valid_source, settings.columns) == (Path("a.en"), None)


def test_filters_that_leave_nothing(here):
    config = DistillConfig(run=Path("run"), text=(Path("text"),), min_score=-0.25, student=TrainConfig(out=Path("out")))
    with pytest.raises(DataError, match="the filters leave none of 3 written pairs: 3 read, 3 of a low score"):
        mixed(config)
    assert not Path("mixed").exists()
    assert open_pairs(Path("real.tsv"))  # it stays
