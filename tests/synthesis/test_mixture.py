"""The pairs that are left, and the real ones beside them."""

from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.generation.config import SearchConfig
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


def mixed(config: SynthesisConfig, name: str = "mixed") -> tuple[dict, list[tuple[str, str]], TrainConfig]:
    counts = write_mixture(config, Path(name), Path("text"), Path("written"), None)
    settings = student_settings(config, Path(name))
    return dict(counts), list(settings.pairs), settings


def test_written_pairs_alone(here):
    config = DistillConfig(run=Path("run"), text=(Path("text"),), student=TrainConfig(out=Path("out")))
    counts, pairs, settings = mixed(config)
    assert pairs == [("a b", "B A"), ("c d", "D C"), ("e f", "F E")]
    assert (settings.source, settings.target) == (Path("mixed/written.source"), Path("mixed/written.target"))
    assert counts["written pairs"]["left"] == 3
    assert "real pairs" not in counts


def test_real_pairs_come_first_and_none_comes_twice(here):
    files = dict(source=Path("real.tsv"), valid_source=Path("real.tsv"))
    config = DistillConfig(run=Path("run"), student=TrainConfig(**files, out=Path("out")))
    counts, pairs, _ = mixed(config)
    assert pairs == [("a b", "B A"), ("g", "G"), ("c d", "D C"), ("e f", "F E")]
    assert counts["real pairs"] == {"read": 4, "empty": 1, "repeated": 1, "left": 2}
    assert (counts["written pairs"]["repeated"], counts["written pairs"]["left"]) == (1, 2)


def test_weights_and_a_tag(here):
    Path("more.tsv").write_text("h\tH\na b\tB A\n")
    files = dict(source=(Path("real.tsv:2"), Path("more.tsv")), valid_source=Path("more.tsv"))
    student = TrainConfig(**files, out=Path("out"), d_model=16)
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


@pytest.mark.parametrize("kind", [DistillConfig, BacktranslateConfig])
def test_no_text_of_a_pair_that_is_held_out_is_trained_on(kind, here):
    texts = [f"text {number}" for number in range(60)]
    pairs = [(f"{text} in A", f"{text} in B") for text in texts]
    pairs += [(f"other {a}", b) if kind is BacktranslateConfig else (a, f"other {b}") for a, b in pairs[:20]]
    Path("real.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    given = list(dict.fromkeys(pair[kind is BacktranslateConfig] for pair in pairs))
    Path("text").write_text("".join(f"{text}\n" for text in [*given, "another text"]))
    Path("written").write_text("".join(f"-0.5\twritten {text}\n" for text in [*given, "another text"]))
    student = TrainConfig(source=Path("real.tsv:2"), out=Path("out"))
    counts, trained, settings = mixed(kind(run=Path("run"), student=student, tag="<BT>"))
    valid = list(settings.valid_pairs or ())
    assert counts["real pairs"]["held out"] == len(valid) == 4  # a twentieth of 80
    assert counts["real pairs"]["left"] == 76
    assert set(valid) < set(pairs)
    untagged = [(source.removeprefix("<BT> "), target) for source, target in trained]
    side = int(kind is BacktranslateConfig)
    held = {pair[side] for pair in valid}
    assert not held & {pair[side] for pair in untagged}
    assert counts["written pairs"]["held out"] == len(held)
    assert len(trained) == 2 * 76 + 61 - len(held)
    another = mixed(kind(run=Path("run"), student=replace(student, seed=2, out=Path("out2"))), "again")[2]
    assert list(another.valid_pairs or ()) != valid


def test_lines_that_were_not_neighbours_are_not_joined(here):
    Path("text").write_text("a\nb\n\nc\nd\ne\n")  # the stage of the text has left something out
    Path("written").write_text("-0.5\tA\n-0.5\tB\n-0.5\t\n-0.5\tC\n-9\tD\n-0.5\tE\n")
    Path("real.tsv").write_text("f\tF\n\t\n\tx\ng\tG\nf\tF\nh\tH\ni\tI\n")
    Path("valid.tsv").write_text("x\tX\n")
    files = dict(source=Path("real.tsv"), valid_source=Path("valid.tsv"), out=Path("out"))
    config = DistillConfig(run=Path("run"), min_score=-1.0, student=TrainConfig(**files, join_lines=3))
    counts, pairs, _ = mixed(config)
    gap = ("", "")
    real = [("f", "F"), gap, ("g", "G"), gap, ("h", "H"), ("i", "I")]
    assert pairs == [*real, ("a", "A"), ("b", "B"), gap, ("c", "C"), gap, ("e", "E")]
    assert counts["written pairs"]["read"] == 5
    _, pairs, _ = mixed(replace(config, student=TrainConfig(**files)), "alone")
    assert gap not in pairs


def test_the_translations_of_one_text_are_not_joined(here):
    Path("text").write_text("a\nb\n")
    Path("written").write_text("1\t-0.5\tA\n1\t-0.5\tAA\n2\t-0.5\tB\n2\t-0.5\tBB\n")
    student = TrainConfig(out=Path("out"), join_lines=2)
    config = DistillConfig(run=Path("run"), text=(Path("text"),), search=SearchConfig(n_best=2), student=student)
    _, pairs, _ = mixed(config)
    gap = ("", "")
    assert pairs == [("a", "A"), gap, ("a", "AA"), gap, ("b", "B"), gap, ("b", "BB")]


def test_filters_that_leave_nothing(here):
    config = DistillConfig(run=Path("run"), text=(Path("text"),), min_score=-0.25, student=TrainConfig(out=Path("out")))
    with pytest.raises(DataError, match="the filters leave none of 3 written pairs: 3 read, 3 of a low score"):
        mixed(config)
    assert not Path("mixed").exists()
    assert open_pairs(Path("real.tsv"))  # it stays
