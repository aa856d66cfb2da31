"""`evaluate --fit-calibration` and `--calibration`, `translate --confidence`: what they write, and what they refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer import SearchConfig, Translator
from glassformer.confidence.calibration import read_calibration
from glassformer.confidence.estimate import ConfidenceEstimator, fit_calibration, measure_calibration

FLAGS = "--device cpu --precision float32 --beam 2"


@pytest.fixture
def run(taught):
    yield taught.folder
    (taught.folder / "calibration.json").unlink(missing_ok=True)


def test_a_reader_that_has_left_does_not_cost_the_calibration(run, taught, tmp_path):
    """A process of its own, whose output goes to a pipe that nobody reads: its first line ended the command."""
    pairs = zip(taught.sources[:100], taught.targets[:100], strict=True)
    (tmp_path / "fit.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    read, write = os.pipe()
    os.close(read)
    command = f"-u -m glassformer evaluate {run} --source fit.tsv --fit-calibration {FLAGS}".split()
    with os.fdopen(write, "w") as unread:
        done = subprocess.run([sys.executable, *command], stdout=unread, stderr=subprocess.PIPE, cwd=tmp_path)
    assert b"Traceback" not in done.stderr
    assert (run / "calibration.json").exists(), done.stderr


def test_it_fits_measures_and_tells(run, taught, run_command, capsys, tmp_path, monkeypatch):
    # Slow: the fixture trains the model, in 160 updates.
    monkeypatch.chdir(tmp_path)
    sources, targets = taught.sources[:100], taught.targets[:100]
    Path("fit.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in zip(sources, targets, strict=True)))
    assert run_command(f"evaluate {run} --source fit.tsv --fit-calibration {FLAGS}") == 0
    assert f"calibration kept in {run}, fitted on " in capsys.readouterr().out
    translator = Translator.load(run, "cpu", "float32")
    calibration = read_calibration(run, translator.engine.config)
    translations = translator.translations(sources, config := SearchConfig(beam=2))
    assert calibration == fit_calibration(translator, sources, translations, targets)

    assert run_command(f"evaluate {run} --source fit.tsv --calibration --diagram new.png {FLAGS}") == 0
    measured = measure_calibration(translator, calibration, sources, translations, targets)
    assert str(measured) in capsys.readouterr().out
    assert Path("new.png").read_bytes().startswith(b"\x89PNG")

    Path("lines.txt").write_text("a b c\n\nd e\n")
    files = "--input lines.txt --output out.txt --confidence doubts.jsonl --n-best 2"
    assert run_command(f"translate {run} {files} {FLAGS}") == 0
    rows = [json.loads(line) for line in Path("doubts.jsonl").read_text().splitlines()]
    texts = [line.split("\t")[1] for line in Path("out.txt").read_text().splitlines()]
    assert [[word["text"] for word in row["words"]] for row in rows] == [text.split() for text in texts]
    assert rows[2] == {"probability": 0.0, "words": [], "omitted": []}
    (best,) = translator.translations(["a b c"], config)
    (found,) = ConfidenceEstimator(translator).estimate(["a b c"], [best])
    assert rows[0]["probability"] == round(found.probability, 4)
    assert rows[0]["words"][1] == {**found.words[1]._asdict(), "probability": round(found.words[1].probability, 4)}


BAD = {
    "evaluate run --source pairs.tsv --device cpu --calibration": "run has no calibration for its weights: glassformer",
    "evaluate run --source pairs.tsv --fit-calibration --calibration": "exclude each other",
    "evaluate run --source pairs.tsv --diagram new.png": "--diagram draws what --calibration measures: give both",
    "evaluate --hypotheses source.txt --target target.txt --fit-calibration": "need a run folder in place of",
    "evaluate run --source pairs.tsv --calibration --replace-unknown": "--replace-unknown writes words that",
    "evaluate run --source pairs.tsv --fit-calibration --max-source-tokens 5": "--max-source-tokens cuts sources",
    "translate run a --confidence new --max-source-tokens 5": "--confidence is of lines that are read whole: leave out",
    "translate run 'a b' --device cpu --confidence new": "run has no calibration for its weights: glassformer",
    "translate run a --output new --confidence new": "--confidence and --output must be two files, got new for both",
    "translate run a --confidence new --placeholders default": "which write words that no confidence is known of",
    "translate run a --confidence new --segment paragraph": "--confidence is of lines that are translated whole",
    "translate run --input seven.txt --output new --resume --confidence more": "can't be combined with --resume",
}


@pytest.mark.parametrize("command", BAD)
@pytest.mark.usefixtures("here")
def test_what_cannot_be_is_refused_in_one_line(command, run_command, capfd):
    assert run_command(command) == 2
    assert BAD[command] in run_command.complaint(capfd.readouterr().err)
    assert not Path("new").exists()
