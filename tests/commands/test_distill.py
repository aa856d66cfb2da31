"""`glassformer distill` and `glassformer backtranslate`."""

import re
import signal
from pathlib import Path

import pytest

from glassformer.commands.distill import HEADINGS, BacktranslateFlags, DistillFlags
from glassformer.settings.parser import Command, help_text
from glassformer.synthesis.student import Student, WrittenPairs
from glassformer.training.result import TrainResult

STUDENT = "TINY --max-updates 2 --valid-source valid.tsv"


@pytest.mark.parametrize("command", ["distill", "backtranslate"])
def test_a_student_from_the_command_line(command, here, capfd, run_command):
    flags = "--text seven.txt --beam 2 --n-best 2 --max-length 7 --length-factor 9 --keep-copies --out new"
    assert run_command(f"{command} run pairs.tsv {flags} {STUDENT}") == 0
    out, err = capfd.readouterr()
    assert "new: 2 updates in " in out
    for line in (
        "text: 7 lines, 0 empty, ",
        "written: ",
        "written pairs: ",
        "scores: ",
        "real pairs: 60 read, 0 empty",
    ):
        assert f"\n{line}" in f"\n{err}"
    left = {path.name.partition("-")[0] for path in Path("new.pairs").iterdir()}
    assert left == {".lock", "text", "written", "mixed"}
    assert run_command(f"{command} run pairs.tsv {flags} {STUDENT}") == 0  # all is there
    again = capfd.readouterr().err
    assert [line for line in again.splitlines() if line.startswith("written pairs: ")] == [
        line for line in err.splitlines() if line.startswith("written pairs: ")
    ]


def test_interrupted_it_says_that_the_same_command_continues(here, capfd, run_command, monkeypatch):
    stopped = TrainResult(Path(), finished=False, updates=1, seconds=0.1, metric="ser", score=None, signal=15)
    student = Student(WrittenPairs(Path(), Path(), {}), stopped)
    monkeypatch.setattr("glassformer.synthesis.student.distill", lambda config, say, writer: student)
    assert run_command(f"distill run pairs.tsv --out new {STUDENT}") == 128 + signal.SIGTERM
    assert capfd.readouterr().out == "what is done is kept: the same command continues\n"


@pytest.mark.parametrize("kind", [DistillFlags, BacktranslateFlags])
def test_every_flag_stands_below_a_heading(kind):
    command = Command("distill", kind, HEADINGS)
    below = [name for names in HEADINGS.values() for name in names]
    assert sorted(below) == sorted({*command.arguments, "help"} - {"run"})
    text = help_text(command)
    flags = re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)
    assert len(flags) == len(set(flags)) == len(command.arguments) - 1
    assert not {"--resume", "--overwrite", "--shard", "--batch-lines"} & set(flags)
    assert {"--seed", "--batch-tokens", "--beam", "--min-score", "--cluster", "--workers", "--cores"} <= set(flags)
