"""The settings of distillation and back-translation."""

from pathlib import Path

import pytest

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.synthesis.config import BacktranslateConfig, DistillConfig
from glassformer.training.config import TrainConfig

TEXT = (Path("text.txt"),)


def config(kind: type = DistillConfig, student: dict | None = None, **changes) -> DistillConfig:
    return kind(**{"run": Path("big"), "student": TrainConfig(**{"out": Path("small"), **(student or {})}), **changes})


def test_the_sides_and_the_folder():
    one, other = config(text=TEXT), config(BacktranslateConfig, text=TEXT, written=Path("pairs"))
    assert (one.writes, one.given, one.folder) == ("target", "source", Path("small.pairs"))
    assert (other.writes, other.given, other.folder) == ("source", "target", Path("pairs"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "text is missing: give files of text in the source language with `text`, or real pairs, whose sources"),
        ({"kind": BacktranslateConfig}, "text is missing: give files of text in the target language .* whose targets"),
        ({"text": TEXT, "real_weight": 2}, "real_weight is for real pairs, of which there are none, got 2: leave it"),
        (
            {"student": {"source": (Path("a.tsv:500"), Path("b.tsv"))}, "real_weight": 3},
            "real_weight, times the weight of a file, must be at most 1,000, got 1,500: lower it",
        ),
        ({"text": TEXT, "tag": " "}, "tag must be text within a line, such as <BT>, got ' '"),
        ({"text": TEXT, "tag": "a\nb"}, r"tag must be text within a line, such as <BT>, got 'a\\nb'"),
        ({"text": TEXT, "tag": "\udcff"}, r"tag must be text within a line, such as <BT>, got '\\udcff'"),
        ({"text": TEXT, "student": {"out": Path("big")}}, "out must be another folder than the run that writes, got b"),
        ({"text": TEXT, "student": {"out": Path("..")}}, "out must be a new folder, got ..: give it a name"),
        (
            {"text": TEXT, "student": {"resume": True}},
            "student must leave out resume: a repeated call continues by itself",
        ),
        ({"text": TEXT, "student": {"overwrite": True}}, "student must leave out overwrite: .* and replaces no run"),
        ({"text": TEXT, "written": Path("small")}, "written must be a folder of its own, outside of out, got small: c"),
        ({"text": TEXT, "written": Path("small/a/b")}, "written must be a folder of its own, .* got small/a/b: choose"),
        ({"text": TEXT, "written": Path("big")}, "written must be a folder of its own, outside of out, got big: cho"),
        ({"text": TEXT, "length_factor": 0.5}, "length_factor must be at least 1, got 0.5"),
        ({"text": TEXT, "min_score": 0.5}, "min_score must be at least -1e9 and at most 0, got 0.5"),
        ({"text": TEXT, "min_agreement": 101.0}, "min_agreement must be at least 0 and at most 100, got 101"),
        ({"text": TEXT, "min_agreement": 30.0}, "min_agreement is for what round_trip translates back, got 30: give"),
    ],
)
def test_settings_that_cannot_work(changes, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        config(**changes)


def test_real_pairs_may_stand_for_the_text():
    made = config(student={"source": Path("pairs.tsv")}, real_weight=3, search=SearchConfig(beam=4, n_best=4))
    assert (made.text, made.real_weight, made.search.n_best) == ((), 3, 4)
