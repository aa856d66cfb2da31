"""`glassformer evaluate`: scores of a run and of a file; bad input is in test_cli.py."""

import json
import shutil
from importlib.util import find_spec

from glassformer.generation.config import SearchConfig
from glassformer.run.scores import read_evaluations, read_translations
from glassformer.scoring.scores import score_all


def test_evaluate_a_run(here, capfd, translator, run_command):
    assert run_command("evaluate run --source valid.tsv --output found.txt SHORT") == 0
    pairs = [line.split("\t") for line in (here / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    found = translator.translate([source for source, _ in pairs], SearchConfig(beam=2, max_length=7))
    assert (here / "found.txt").read_text(encoding="utf-8").splitlines() == found
    scores = score_all(found, [target for _, target in pairs], symbols=True)
    expected = [str(score) for score in scores]
    assert capfd.readouterr().out.splitlines() == expected


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


def test_swapped_sides_are_said(here, capfd, translator, run_command):
    # This model answers with the same few letters, whatever it is given.
    (source,) = translator.translate(["a b c d e"], SearchConfig(beam=2, max_length=7))
    for reference, is_said in (("Q R S", True), (source, False)):
        (here / "pairs.tsv").write_text(f"{source}\t{reference}\n")
        assert run_command("evaluate run --source pairs.tsv SHORT") == 0
        assert ("are the two sides swapped?" in capfd.readouterr().err) == is_said
