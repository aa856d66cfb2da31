"""`glassformer train`: what it prints and leaves; bad input is in test_cli.py."""

import shlex
import shutil
import signal

import pytest
from safetensors.torch import load_file

from glassformer.run.listing import summarize


def test_train_says_what_to_do_next(here, capfd, run_command):
    assert run_command("train TINY PAIRS --out my/run --max-updates 11 --metric exact") == 0
    out, err = capfd.readouterr()
    suspicions = "repeated: 8% of the pairs, for example ", "target copies the source: 8% of the pairs, for example "
    for line, begins in zip(err.splitlines(), (*suspicions, "only 60 pairs: ", "learning the"), strict=False):
        assert line.startswith(begins)
    assert "my/run: 11 updates in" in out
    assert "exact" in out
    assert out.endswith(
        "what to do next:\n"
        "  glassformer translate my/run TEXT    or: < FILE\n"
        "  glassformer evaluate my/run --source FILE    with pairs that it has not seen\n"
        "  glassformer inspect my/run TEXT    where it looks while it translates\n"
    )


def test_train_says_what_it_did_not_reach_and_the_command_that_goes_on(here, capfd, run_command):
    assert run_command("train TINY PAIRS --out 'my run' --max-updates 3 --warmup 5 --metric exact") == 0
    lines = capfd.readouterr().out.splitlines()
    first, last = (next(n for n, line in enumerate(lines) if line.startswith(begin)) for begin in ("but ", "go on "))
    assert lines[first] == "but the learning rate never reached its peak: 3 of 5 updates of its warm-up were made"
    name, command = lines[last + 1].strip().split(maxsplit=1)
    assert name == "glassformer"
    assert run_command(command) == 0
    assert "my run-more: 51 updates in" in capfd.readouterr().out


def test_train_takes_parallel_files_and_overwrites(here, capfd, run_command):
    files = "--source source.txt --target target.txt --valid-source seven.txt --valid-target seven.txt"
    assert run_command(f"train TINY {files} --out run --overwrite --max-updates 3") == 0
    assert "run: 3 updates" in capfd.readouterr().out


def test_overwrite_keeps_files_that_training_did_not_write(here, capfd, run_command, tree):
    shutil.copy(here / "pairs.tsv", here / "run" / "mine.tsv")
    before = tree(here)
    assert run_command("train TINY --source run/mine.tsv --out run --overwrite --max-updates 3") == 2
    assert "run also holds mine.tsv: move that away" in run_command.complaint(capfd.readouterr().err)
    assert tree(here) == before


def test_resume_takes_new_limits_and_no_other_settings(here, capfd, run_command):
    assert run_command("train --resume --out unfinished --seed 5") == 2
    assert "leave out --seed (only --max-epochs, " in run_command.complaint(capfd.readouterr().err)
    assert run_command("train --resume --out unfinished --max-updates 11") == 0
    assert "unfinished: 11 updates" in capfd.readouterr().out


def test_the_command_that_began_a_training_goes_on_with_resume(here, capfd, run_command, interrupting):
    """A file given for a side alone was taken for another setting than the list of one that it became."""
    command = "train TINY --source source.txt --target target.txt --valid-source seven.txt --valid-target seven.txt"
    with interrupting(2):
        assert run_command(f"{command} --out new --max-updates 4") == 130
    assert run_command(f"{command} --out new --max-updates 4 --resume") == 0
    assert "new: 4 updates" in capfd.readouterr().out


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_prints_the_command_that_continues(here, capfd, run_command, interrupting, number, status):
    with interrupting(12, number):
        assert run_command("train TINY PAIRS --out 'my run' --max-updates 20") == status
    out = capfd.readouterr().out
    assert out.startswith("saved at update 12; continue with:\n")
    name, command = out.splitlines()[-1].strip().split(maxsplit=1)
    assert name == "glassformer"
    assert run_command(command) == 0
    assert shlex.split(capfd.readouterr().out.splitlines()[-1])[:3] == ["glassformer", "inspect", "my run"]


def test_a_task_is_kept_with_what_it_chose(here, capfd, run_command, interrupting):
    with interrupting(12):
        assert run_command("train TINY PAIRS --out new --task characters") == 130
    assert summarize(here / "new").max_updates == 5000
    assert run_command("train --resume --out new --max-updates 14") == 0
    out, err = capfd.readouterr()
    assert "new: 14 updates in" in out
    assert "  --max-updates 5000            task characters, 60 pairs" in err.splitlines()


def test_the_current_folder_as_run_folder(here, monkeypatch, capfd, run_command):
    monkeypatch.chdir(here / "unfinished")
    assert run_command("train --resume --out .") == 0
    command = "train TINY --source ../pairs.tsv --valid-source ../valid.tsv --out . --max-updates 2"
    assert run_command(command) == 2
    assert "exists: --overwrite replaces it" in capfd.readouterr().err.splitlines()[-1]
    assert run_command(f"{command} --overwrite") in (0, 2)  # replaced, or refused with a message
    assert {"config.json", "model.safetensors"} <= {path.name for path in (here / "unfinished").iterdir()}


def test_weights_saved_on_the_way_translate_while_training_goes_on(here, capfd, run_command, interrupting):
    with interrupting(13):
        assert run_command("train TINY PAIRS --out new --max-updates 20") == 130
    assert load_file(here / "new" / "model.safetensors")
    assert run_command("translate new --input seven.txt SHORT") == 0
