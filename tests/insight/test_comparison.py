"""Two runs beside each other: what differs, and scores that are only compared on the same lines."""

import shutil
from pathlib import Path

import pytest

from glassformer import PairFiles, memory
from glassformer.errors import RunError
from glassformer.insight.comparison import compare_runs
from glassformer.run.metrics import Validation, append_metrics
from glassformer.run.scores import read_translations, save_evaluation
from glassformer.scoring.bootstrap import BYTES_A_LINE, paired_bootstrap
from glassformer.scoring.scores import Score
from glassformer.text.tokenizer import SymbolTokenizer

REFERENCES = [f"g f {letter} a b" for letter in "abcdefg" * 3]
FIRST = [line.replace("g f", "f g") for line in REFERENCES]
SECOND = [line.replace("a b", "b") for line in REFERENCES]


@pytest.fixture(scope="module")
def made(random_run, tmp_path_factory):
    """Two runs, of which the second has more dropout and less width, and a file of pairs."""
    folder, symbols = tmp_path_factory.mktemp("made"), SymbolTokenizer("abcdefg")
    random_run(folder / "one", symbols, symbols, dropout=0.1)
    random_run(folder / "other", symbols, symbols, dropout=0.25, d_ff=29)
    append_metrics(folder / "one/metrics.jsonl", Validation(20, 2.5, "bleu", 17.0, 61.0))
    (folder / "valid.tsv").write_text("a b c\tc b a\n" * 11, encoding="utf-8")
    return folder


@pytest.fixture
def both(made, tmp_path):
    """Copies of the runs."""
    return shutil.copytree(made / "one", tmp_path / "one"), shutil.copytree(made / "other", tmp_path / "other")


def keep(run, hypotheses, references=REFERENCES, search="beam 5", folder=".", columns=None, **more):
    save_evaluation(
        run,
        source=Path(folder, "test.tsv"),
        target=None,
        columns=columns,
        lines=len(references),
        search=search,
        scores=[Score("BLEU", 1.0, "made up")],
        translations=list(zip(hypotheses, references, strict=True)),
        **more,
    )


def test_the_settings_that_differ_are_named_and_no_others(both):
    found = compare_runs(*both)
    assert found.settings == {"d_ff": (40, 29), "dropout": (0.1, 0.25)}
    lines = list(found.lines())
    assert [line.split() for line in lines[1:3]] == [["d_ff", "40", "29"], ["dropout", "0.1", "0.25"]]
    assert found.results["updates"] == ("20", "-")
    assert found.results["score"] == ("bleu 17.00", "-")
    assert lines[-1].startswith("no test set that both were scored on: glassformer evaluate RUN")


def test_scores_come_from_kept_translations_of_the_same_lines(both):
    keep(both[0], FIRST)
    keep(both[1], SECOND, search="beam 2")
    (test,) = compare_runs(*both).tests
    assert (test.name, test.lines, test.searches) == ("test.tsv", 21, ("beam 5", "beam 2"))
    assert test.scores == paired_bootstrap(FIRST, SECOND, REFERENCES)
    text = "\n".join(compare_runs(*both).lines())
    assert f"{test.scores[0].second:.2f} ± {test.scores[0].second_margin:.2f}" in text
    assert f"{test.scores[0].difference:+.2f}" in text
    keep(both[1], FIRST, search="beam 1", folder="elsewhere")  # the same test set, whose files were moved
    (test,) = compare_runs(*both).tests
    assert test.searches == ("beam 5", "beam 1")
    keep(both[1], SECOND[::-1], references=REFERENCES[::-1], folder="elsewhere")
    keep(both[1], SECOND[::-1], references=REFERENCES[::-1])
    assert compare_runs(*both).tests == []


def test_a_test_set_too_large_to_resample_keeps_no_other_from_being_compared(both, monkeypatch):
    for run, lines in zip(both, (FIRST, SECOND), strict=True):
        keep(run, lines * 2, references=REFERENCES * 2)
        save_evaluation(
            *(run,),
            **dict(source=Path("small.tsv"), target=None, lines=21, search="beam 5", scores=[Score("BLEU", 1.0, "x")]),
            translations=list(zip(lines, REFERENCES, strict=True)),
        )
    monkeypatch.setattr(memory, "total_memory", lambda: 30 * BYTES_A_LINE)
    large, small = compare_runs(*both).tests
    assert (large.name, large.scores) == ("test.tsv", [])
    assert large.problem == "resampling 42 lines takes 0.0 GB of memory, and there is 0.0 GB: take fewer"
    assert (small.name, small.problem) == ("small.tsv", "")
    assert small.scores == paired_bootstrap(FIRST, SECOND, REFERENCES)
    lines = list(compare_runs(*both).lines())
    assert lines[lines.index("test.tsv: 42 lines, beam 5") + 1] == f"not compared: {large.problem}"


@pytest.mark.parametrize(("others", "taken"), [("char", "char"), ("auto", "auto")])
def test_bleu_takes_words_apart_as_both_were_scored(both, others, taken):
    keep(both[0], FIRST, tokenize="char")
    keep(both[1], SECOND, tokenize=others)
    (test,) = compare_runs(*both).tests
    assert test.scores == paired_bootstrap(FIRST, SECOND, REFERENCES, tokenize=taken)
    assert ("|tok:char|" in test.scores[0].signature) is (taken == "char")


def test_translations_of_other_columns_are_not_compared(both):
    """The last columns of the first run were compared with all of the second one."""
    for run, hypotheses, columns in (
        (both[0], FIRST, ("src", "dst")),
        (both[0], SECOND, ("third", "dst")),
        (both[1], FIRST, ("src", "dst")),
    ):
        keep(run, hypotheses, columns=columns)
    (test,) = compare_runs(*both).tests
    assert test.scores == paired_bootstrap(FIRST, FIRST, REFERENCES)


def test_translations_of_other_weights_are_not_compared(both):
    keep(both[0], FIRST)
    assert len(read_translations(both[0])) == 1
    with (both[0] / "model.safetensors").open("ab") as weights:
        weights.write(b"0")
    assert read_translations(both[0]) == []


def test_both_runs_translate_pairs_that_are_given(both, made, tmp_path):
    path = tmp_path / "valid.tsv"  # pairs with an empty side don't count
    path.write_text((made / "valid.tsv").read_text(encoding="utf-8") + "\ta\n\nb\t\n", encoding="utf-8")
    found = compare_runs(*both, PairFiles(path), device="cpu")
    (test,) = found.tests
    assert (test.name, test.lines) == ("valid.tsv", 11)
    assert {one.name for one in test.scores} == {"BLEU", "chrF2"}


def test_a_folder_that_is_no_run_is_named(both, tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        compare_runs(both[0], tmp_path)
