"""`glassformer evaluate`: scores of a run and of a file; bad input is in test_cli.py."""

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from safetensors.torch import load_file

from glassformer.files import in_turn
from glassformer.generation import stream
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run.folder import write_weights
from glassformer.run.scores import read_evaluations, read_translations, save_evaluation
from glassformer.scoring.scores import Score, score_all


def test_evaluate_a_run(here, capfd, translator, run_command):
    assert run_command("evaluate run --source valid.tsv --output found.txt SHORT") == 0
    pairs = [line.split("\t") for line in (here / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    found = translator.translate([source for source, _ in pairs], SearchConfig(beam=2, max_length=7))
    assert (here / "found.txt").read_text(encoding="utf-8").splitlines() == found
    scores = score_all(found, [target for _, target in pairs], symbols=True)
    expected = [str(score) for score in scores]
    assert capfd.readouterr().out.splitlines() == expected


def test_text_that_the_model_never_saw_is_named(here, capfd, run_command):
    (here / "other.tsv").write_text("Жж\ta\n", encoding="utf-8")
    assert run_command("evaluate run --source other.tsv SHORT") == 0
    assert "warning: the model never saw this text, and reads it as unknown: Жж\n" in capfd.readouterr().err


def test_draws_are_those_that_a_translation_writes(here, monkeypatch, run_command):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 4)
    line = (here / "source.txt").read_text(encoding="utf-8").splitlines()[0]
    (here / "same.txt").write_text(f"{line}\n" * 8, encoding="utf-8")
    draws = "--sample --temperature 3 --max-length 7"
    assert run_command(f"evaluate run --source same.txt --target same.txt --output scored.txt {draws}") == 0
    assert run_command(f"translate run --input same.txt --output written.txt {draws}") == 0
    scored = (here / "scored.txt").read_text(encoding="utf-8").splitlines()
    assert (here / "written.txt").read_text(encoding="utf-8").splitlines() == scored
    assert scored[:4] != scored[4:]


def test_evaluate_hypotheses(here, capfd, run_command):
    assert run_command("evaluate --hypotheses source.txt --target source.txt --symbols") == 0
    out, _ = capfd.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        "BLEU 100.00",
        "chrF 100.00",
        "exact match 100.00 %",
        "word error rate 0.00 %",
        "symbol error rate 0.00 %",
    ]
    assert "version:" in out


def test_the_metric_of_a_run_comes_first(here, capfd, run_command):
    values = json.loads((here / "run/config.json").read_text())
    values["training"]["settings"]["metric"] = "exact"
    shutil.copytree(here / "run", here / "exact")
    (here / "exact/config.json").write_text(json.dumps(values))
    assert run_command("evaluate exact --source valid.tsv SHORT") == 0
    assert capfd.readouterr().out.startswith("exact match ")


def test_scores_are_kept_for_the_model_card(here, capfd, run_command):
    shutil.copytree(here / "run", here / "kept")
    track = "--track tensorboard" if find_spec("tensorboard") else ""
    assert run_command(f"evaluate kept --source valid.tsv --output found.txt SHORT --save {track}") == 0
    (kept,) = read_evaluations(here / "kept")
    out, err = capfd.readouterr()
    assert [f"{one.name} {one.value:.2f}" for one in kept.scores] == [
        line.split("  ")[0].removesuffix(" %") for line in out.splitlines()
    ]
    assert kept.source == "valid.tsv"
    (translated,) = read_translations(here / "kept")
    references = [line.split("\t")[1] for line in (here / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    found = (here / "found.txt").read_text(encoding="utf-8").splitlines()
    assert translated.lines == list(zip(found, references, strict=True))
    if track:
        assert "tracked in kept/tensorboard/evaluate valid.tsv" in err


def test_scores_that_cannot_be_kept_are_said_before_the_work(here, capfd, run_command):
    shutil.copytree(here / "run", here / "damaged")
    (here / "damaged/scores.json").write_text("{}")
    assert run_command("evaluate damaged --source valid.tsv --output never.txt SHORT --save") == 2
    assert "damaged/scores.json is damaged" in run_command.complaint(capfd.readouterr().err)
    assert not (here / "never.txt").exists()


def test_scores_of_weights_that_were_replaced_meanwhile_are_printed_and_not_kept(here, capfd, run_command, monkeypatch):
    """As by a training that goes on; the scores of the old weights were kept as those of the new ones."""
    run, translate = shutil.copytree(here / "run", here / "goes_on"), Translator.translate_n_best
    weights = load_file(run / "model.safetensors")

    def meanwhile(*args, **settings):
        write_weights(run, {name: 2 * weight for name, weight in weights.items()})
        return translate(*args, **settings)

    monkeypatch.setattr(Translator, "translate_n_best", meanwhile)
    assert run_command("evaluate goes_on --source valid.tsv SHORT --save") == 2
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["BLEU", "chrF", "exact", "word", "symbol"]
    assert "goes_on has other weights than those that were loaded" in run_command.complaint(err)
    assert not (run / "scores.json").exists()


def test_scores_of_a_file_whose_name_is_no_utf_8_are_kept(here, capfd, run_command):
    run, name = shutil.copytree(here / "run", here / "bytes"), os.fsdecode(b"t\xff.tsv")
    shutil.copy(here / "valid.tsv", here / name)
    assert run_command(f"evaluate bytes --source {name} SHORT --save") == 0
    assert [one.source for one in read_evaluations(run)] == ["file:t%FF.tsv"]
    assert [one.source for one in read_translations(run)] == ["file:t%FF.tsv"]


def test_scores_are_kept_one_after_the_other(here):
    """Of two that were kept at once, one was lost."""
    run = shutil.copytree(here / "run", here / "at once")
    scores = [Score("BLEU", 1.0, "x")]
    settings = dict(source=Path("a.tsv"), target=None, lines=1, search="beam 5", scores=scores)
    other = Thread(target=save_evaluation, args=(run,), kwargs=settings)
    with in_turn(run):
        other.start()
        other.join(0.3)
        assert other.is_alive()
        assert read_evaluations(run) == []
    other.join()
    assert [one.source for one in read_evaluations(run)] == ["a.tsv"]


def test_test_sets_of_one_name_are_kept_apart(here, capfd, run_command):
    run, lines = shutil.copytree(here / "run", here / "both"), (here / "valid.tsv").read_text().splitlines()
    for folder, count in (("one", 3), ("other", 2)):
        (here / folder).mkdir()
        (here / folder / "test.tsv").write_text("".join(f"{line}\n" for line in lines[:count]))
        assert run_command(f"evaluate both --source {folder}/test.tsv SHORT --save") == 0
    assert run_command("evaluate both --source other/test.tsv --columns 2 1 SHORT --save") == 0
    kept = [("test.tsv", 3, None), ("test.tsv", 2, None), ("test.tsv", 2, ("2", "1"))]
    assert [(one.source, one.lines, one.columns) for one in read_evaluations(run)] == kept
    assert [len(one.lines) for one in read_translations(run)] == [3, 2, 2]
    (here / "one/test.tsv").write_text(f"{lines[0]}\n")
    assert run_command("evaluate both --source ./one/../one/test.tsv SHORT --save") == 0
    assert [one.lines for one in read_evaluations(run)] == [2, 2, 1]
    assert [len(one.lines) for one in read_translations(run)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("flags", "file"),
    [
        ("--save", "kept/scores.json"),
        ("--fit-calibration", "kept/calibration.json"),
        ("--output kept/found.txt", "kept/found.txt"),
    ],
)
def test_a_folder_that_may_not_be_written_is_said_before_the_work(flags, file, here, capfd, run_command, monkeypatch):
    shutil.copytree(here / "run", here / "kept")
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "kept" and allowed(path, mode))
    monkeypatch.setattr(Translator, "translations", lambda *_: pytest.fail("translated"))
    assert run_command(f"evaluate kept --source valid.tsv SHORT {flags}") == 2
    folder, _, name = file.partition("/")
    complaint = run_command.complaint(capfd.readouterr().err)
    assert f"{folder}: {name} can't be written into this folder: allow it, or choose another" in complaint


def test_scores_are_printed_where_a_calibration_cannot_be_fitted(here, capfd, run_command):
    (here / "few.tsv").write_text("".join((here / "valid.tsv").read_text().splitlines(keepends=True)[:2]))
    shutil.copytree(here / "run", here / "kept")
    assert run_command("evaluate kept --source few.tsv SHORT --fit-calibration") == 2
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["BLEU", "chrF", "exact", "word", "symbol"]
    assert "a calibration takes at least 100 words" in run_command.complaint(err)


def test_swapped_sides_are_said(here, capfd, translator, run_command):
    # This model answers with the same few letters, whatever it is given.
    (source,) = translator.translate(["a b c d e"], SearchConfig(beam=2, max_length=7))
    for reference, is_said in (("Q R S", True), (source, False)):
        (here / "pairs.tsv").write_text(f"{source}\t{reference}\n")
        assert run_command("evaluate run --source pairs.tsv SHORT") == 0
        assert ("are the two sides swapped?" in capfd.readouterr().err) == is_said


def test_pairs_with_an_empty_side_are_written_but_not_scored(here, capfd, run_command):
    whole = (here / "valid.tsv").read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    (here / "gaps.tsv").write_text("".join(["\n", *lines[:3], "\ta b\n", "a b\t \n", *lines[3:]]), encoding="utf-8")
    assert run_command("evaluate run --source valid.tsv --output whole.txt SHORT") == 0
    expected = capfd.readouterr().out
    assert run_command("evaluate run --source gaps.tsv --output gaps.txt SHORT") == 0
    out, err = capfd.readouterr()
    assert out == expected
    assert "3 of 14 pairs have an empty side, and aren't scored\n" in err
    written = (here / "gaps.txt").read_text(encoding="utf-8").splitlines()
    assert [written[0], *written[1:4], *written[6:]] == [
        "",
        *(here / "whole.txt").read_text(encoding="utf-8").splitlines(),
    ]
    for name, lines in (("found.txt", ["a b", "", "c"]), ("wanted.txt", ["a b", " ", "d"])):
        (here / name).write_text("".join(f"{line}\n" for line in lines))
    assert run_command("evaluate --hypotheses found.txt --target wanted.txt") == 0
    out, err = capfd.readouterr()
    assert "exact match 50.00" in out
    assert "1 of 3 lines have an empty reference, and aren't scored\n" in err
    (here / "none.tsv").write_text("a\t\n\tb\n")
    assert run_command("evaluate run --source none.tsv SHORT") == 2
    assert "none.tsv: all pairs have an empty side, so nothing can be scored\n" in capfd.readouterr().err
