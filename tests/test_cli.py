"""The command line: what it prints, what it exits with, what it leaves on disk.

Most commands run in this process, which saves the two seconds that importing torch takes; what concerns the process
itself (signals, streams, full disks, start-up time) runs as one.
"""

import gzip
import io
import json
import os
import random
import re
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.optim.optimizer import register_optimizer_step_post_hook

from glassformer import cli
from glassformer.data.corpus import Corpus
from glassformer.generation import stream
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translation, Translator
from glassformer.text.scores import score_all
from glassformer.training import loop

TINY = (
    "--tokenizer symbols --d-model 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --d-ff 23 --batch-tokens 64 "
    "--learning-rate 3e-3 --warmup 10 --validate-every 10 --score-pairs 5 --average 2 --precision float32 --device cpu"
)
SHORT = "--device cpu --beam 2 --max-length 7"


@contextmanager
def interrupting(update: int) -> Iterator[None]:
    """A Ctrl-C comes during this update."""
    updates = 0

    def count(*_: object) -> None:
        nonlocal updates
        updates += 1
        if updates == update:
            signal.raise_signal(signal.SIGINT)

    handle = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        handle.remove()


def run_command(command: str) -> int:
    """Run a command line in this process; returns its exit status."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as in a process of its own: shown, not raised
        with pytest.raises(SystemExit) as exit_:
            cli.main(shlex.split(command))
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files and run folders, good and bad, that the tests copy."""
    folder = tmp_path_factory.mktemp("samples")
    draw = random.Random(1)
    sources = [draw.choices("abcdefg", k=draw.randint(2, 6)) for _ in range(60)]
    pairs = [(" ".join(source), " ".join(reversed(source))) for source in sources]

    def write(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    write("pairs.tsv", ["\t".join(pair) for pair in pairs])
    write("valid.tsv", ["\t".join(pair) for pair in pairs[:11]])
    write("source.txt", [source for source, _ in pairs])
    write("target.txt", [target for _, target in pairs])
    write("short.txt", [target for _, target in pairs[:-3]])
    write("seven.txt", [source for source, _ in pairs[:7]])
    write("prefixes.txt", [" ".join(target.split()[: n % 3]) for n, (_, target) in enumerate(pairs)])
    write("prefixes-of-seven.txt", ["g f", "", "e", "a", "", "b a c", "d"])
    write("no-tab.tsv", ["a b\tb a", "a b b a"])
    write("untrainable.tsv", ["\t", "a b\t", "\ta b"])
    (folder / "empty.tsv").touch()
    (folder / "latin1.tsv").write_bytes(b"a b\tb a\nc d\td c\ncaf\xe9\teuro\n")
    (folder / "broken.gz").write_bytes(gzip.compress(b"a b\tb a\n" * 99)[:-9])
    (folder / "broken.model").write_bytes(b"no sentencepiece model")
    for name in ("thesis", "thesis-to-resume/resume"):
        (folder / name).mkdir(parents=True)
        (folder / name / "chapter1.txt").write_text("ten years of work", encoding="utf-8")
    train = f"train --source {folder}/pairs.tsv --valid-source {folder}/valid.tsv --device cpu {TINY}"
    assert run_command(f"{train} --out {folder}/run --max-updates 20") == 0
    with interrupting(7):
        assert run_command(f"{train} --out {folder}/unfinished --max-updates 20") == 130
    for name, spoil in SPOILT.items():
        shutil.copytree(folder / ("unfinished" if "unfinished" in name else "run"), folder / name)
        spoil(folder / name)
    return folder


def edit_config(run: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    change(config)
    (run / "config.json").write_text(json.dumps(config), encoding="utf-8")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


SPOILT: dict[str, Callable[[Path], object]] = {
    "no-weights": lambda run: (run / "model.safetensors").unlink(),
    "cut-weights": lambda run: truncate(run / "model.safetensors"),
    "other-weights": lambda run: edit_config(run, lambda config: config["model"].update(d_ff=29)),
    "no-tokenizer": lambda run: (run / "source.symbols").unlink(),
    "newer": lambda run: edit_config(run, lambda config: config.update(format=2)),
    "no-format": lambda run: edit_config(run, lambda config: config.pop("format")),
    "no-model": lambda run: edit_config(run, lambda config: config.pop("model")),
    "newer-model": lambda run: edit_config(run, lambda config: config["model"].update(experts=8)),
    "no-json": lambda run: (run / "config.json").write_bytes(b"\xff{"),
    "unfinished-cut-state": lambda run: [truncate(path) for path in run.glob("resume/checkpoint-*/*")],
    "unfinished-lost-pairs": lambda run: shutil.rmtree(run / "resume" / "train"),
}


@pytest.fixture
def here(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a copy of the samples."""
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything under a folder, hidden or not, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def stdin(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bytes], None]]:
    """Sets the standard input of the commands that follow."""
    path = tmp_path_factory.mktemp("stdin") / "stdin"
    path.touch()
    with path.open(encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield path.write_bytes


# Bad input: one line that says what to do, exit status 2, nothing written

TRAIN = f"train {TINY} --max-updates 2 --out new"
AGAIN = "train --max-updates 2 " + TINY
PAIRS = "--source pairs.tsv --valid-source valid.tsv"

BAD = {
    # files
    f"{TRAIN} --source missing.tsv": "missing.tsv: no such file",
    f"{TRAIN} --source source.txt --target missing.txt": "missing.txt: no such file",
    f"{TRAIN} --source pairs.tsv --valid-source missing.tsv": "missing.tsv: no such file",
    f"{TRAIN} --source thesis": "thesis is a folder, a text file was expected",
    f"{TRAIN} --source source.txt --target short.txt": "source.txt has 60, short.txt has 57",
    f"{TRAIN} --source short.txt --target source.txt": "short.txt has 57, source.txt has 60",
    f"{TRAIN} --source empty.tsv": "empty.tsv is empty: at least one pair is needed",
    f"{TRAIN} --source pairs.tsv --valid-source empty.tsv": "empty.tsv is empty: at least one pair is needed",
    f"{TRAIN} --source latin1.tsv": "latin1.tsv, line 3: not UTF-8 (byte 0xe9 at column 4); convert it",
    f"{TRAIN} --source no-tab.tsv": "no-tab.tsv, line 2: expected source<tab>target, found no tab",
    f"{TRAIN} --source broken.gz": "broken.gz is not a complete gzip file",
    f"{TRAIN} --source untrainable.tsv --valid-source valid.tsv": "left out 3 empty",
    TRAIN: "source is missing: give the file of training sources",
    # settings
    f"{TRAIN} {PAIRS} --vocab-size 500": "vocab_size 500 is larger than this text allows .* give at most 10",
    f"{TRAIN} {PAIRS} --tokenizer unigram --vocab-size 500": "vocab_size 500 is larger .* at most .*, or leave it out",
    f"{TRAIN} {PAIRS} --tokenizer word --vocab-size 500": "vocab_size 500 is larger .* at most .*, or leave it out",
    f"{TRAIN} {PAIRS} --tokenizer char --vocab-size 500": "vocab_size 500 is larger .* at most .*, or leave it out",
    f"{TRAIN} {PAIRS} --tokenizer unigram --vocab-size 5": "vocab_size 5 cannot hold .* give at least .*, or",
    f"{TRAIN} {PAIRS} --tokenizer words": "tokenizer must be one of unigram, bpe, char, word, symbols, .* got 'words'",
    f"{TRAIN} {PAIRS} --tokenizer missing.model": "missing.model: no such sentencepiece model",
    f"{TRAIN} {PAIRS} --tokenizer broken.model": "broken.model: not a sentencepiece model",
    f"{TRAIN} {PAIRS} --preset huge": "preset must be one of tiny, small, base, big, got 'huge'",
    f"{TRAIN} {PAIRS} --metric rouge": "metric must be one of bleu, chrf, exact, wer, ser, got 'rouge'",
    f"{TRAIN} {PAIRS} --tokenize 14a": "tokenize must be auto or one of .*13a.* got '14a'",
    f"{TRAIN} {PAIRS} --device tpu": "device must be one of auto, cpu, cuda, mps, got 'tpu'",
    f"{TRAIN} {PAIRS} --d-model 0": "d_model must be at least 1, got 0",
    f"{TRAIN} {PAIRS} --d-model 16 --heads 3": "d_model must be a multiple of heads, .* 2 heads of width 8 would fit",
    f"{TRAIN} {PAIRS} --batch-tokens -5": "batch_tokens must be at least 1, got -5",
    f"{TRAIN} {PAIRS} --max-updates 0": "max_updates must be at least 1, got 0",
    f"{TRAIN} {PAIRS} --learning-rate 0": "learning_rate must be above 0, got 0.0",
    f"{TRAIN} {PAIRS} --label-smoothing 1": "label_smoothing must be at least 0 and less than 1, got 1.0",
    f"{TRAIN} {PAIRS} --valid-target target.txt": "must come in the same form",
    f"{TRAIN} --source pairs.tsv --valid-target target.txt": "valid_target is given without valid_source",
    f"{TRAIN} {PAIRS} --overwrite --resume": "overwrite and resume exclude each other",
    # folders in the way
    f"{AGAIN} {PAIRS} --out run": "run exists: --overwrite replaces it, or choose another --out",
    f"{AGAIN} {PAIRS} --out unfinished": "unfinished exists: continue it with --resume, or .* --overwrite",
    f"{AGAIN} {PAIRS} --out thesis": "thesis exists: .* choose another --out",
    f"{AGAIN} {PAIRS} --out thesis --overwrite": "thesis is not a run folder: .* choose another --out",
    f"{AGAIN} {PAIRS} --out thesis-to-resume --overwrite": "thesis-to-resume is not a run folder",
    f"{AGAIN} {PAIRS} --out source.txt": "source.txt exists: .* choose another --out",
    f"{AGAIN} {PAIRS} --out source.txt --overwrite": "source.txt is not a run folder: .* choose another --out",
    f"{AGAIN} {PAIRS} --out . --overwrite": "is not a run folder: .* choose another --out",
    # continuing
    "train --resume --out run": "the training of run is complete: there is nothing to resume",
    "train --resume --out new": "new: no such run folder",
    "train --resume --out thesis": "thesis is not a run folder: it has no config.json",
    "train --resume --out unfinished-cut-state": "no checkpoint .* can be read any more.*train anew with --overwrite",
    "train --resume --out unfinished-lost-pairs": "resume/train/source",
    # run folders
    f"translate new --input seven.txt {SHORT}": "new: no such run folder",
    f"translate thesis --input seven.txt {SHORT}": "thesis is not a run folder: it has no config.json",
    f"translate no-weights --input seven.txt {SHORT}": "no-weights/model.safetensors is missing: copy it again",
    f"translate unfinished --input seven.txt {SHORT}": "is missing: its training has not reached a first validation",
    f"translate cut-weights --input seven.txt {SHORT}": "cut-weights/model.safetensors is damaged .* copy it again",
    f"translate other-weights --input seven.txt {SHORT}": "other-weights/model.safetensors does not fit the model",
    f"translate no-tokenizer --input seven.txt {SHORT}": "no-tokenizer/source.symbols: the tokenizer file is missing",
    f"translate newer --input seven.txt {SHORT}": "has format version 2, this glassformer reads up to 1: upgrade",
    f"translate no-format --input seven.txt {SHORT}": "no-format/config.json was not written by glassformer, or is",
    f"translate no-model --input seven.txt {SHORT}": "no-model/config.json is damaged: model missing",
    f"translate newer-model --input seven.txt {SHORT}": "unknown model settings experts: written by a newer",
    f"translate no-json --input seven.txt {SHORT}": "no-json/config.json was not written by glassformer, or is damaged",
    # translating
    f"translate run --input missing.txt {SHORT}": "missing.txt: no such file",
    f"translate run --input missing.txt --output new.txt {SHORT}": "missing.txt: no such file",
    f"translate run --input latin1.tsv --output new.txt {SHORT}": "latin1.tsv, line 3: not UTF-8",
    f"translate run --input latin1.tsv --output source.txt {SHORT}": "latin1.tsv, line 3: not UTF-8",
    f"translate run --input seven.txt --output no/such/folder.txt {SHORT}": "no/such",
    f"translate run --input seven.txt --output thesis {SHORT}": "thesis",
    f"translate run --input seven.txt --output . {SHORT}": "folder",
    "translate run --input seven.txt --device cpu --n-best 9": "n_best must be at most the beam, got n_best 9",
    "translate run --input seven.txt --device cpu --beam 0": "beam must be at least 1, got 0",
    "translate run --input seven.txt --device cpu --max-length -1": "max_length must be at least 1, got -1",
    "translate run --input seven.txt --device tpu": "device must be one of auto, cpu, cuda, mps, got 'tpu'",
    f"translate run --resume {SHORT}": "--resume needs --input and --output",
    f"translate run --resume --input seven.txt {SHORT}": "--resume needs --input and --output",
    f"translate run --resume --output new.txt {SHORT}": "--resume needs --input and --output",
    f"translate run --resume --input seven.txt --output source.txt {SHORT}": "source.txt is there and source.txt.part",
    f"translate new --resume --input seven.txt --output new.txt {SHORT}": "new: no such run folder",
    f"translate run --input seven.txt --prefixes missing.txt {SHORT}": "missing.txt: no such file",
    f"translate run --input seven.txt --prefixes run {SHORT}": "run is a folder, a text file was expected",
    f"translate run --input seven.txt --output new.txt --prefixes run {SHORT}": "run is a folder, a text file was exp",
    f"translate run --input seven.txt --prefixes source.txt {SHORT}": "source.txt has 60 lines, the input 7: it must h",
    f"translate run --input seven.txt --output new.txt --prefixes empty.tsv {SHORT}": "empty.tsv has 0 lines, the in",
    f"translate run --input seven.txt --output new.txt --prefixes prefixes-of-seven.txt {SHORT} --max-length 1": (
        "a prefix must be at most max_length = 1 tokens long, got 2"
    ),
    # scoring
    "evaluate": "give a run folder and --source .*or --hypotheses and --target",
    "evaluate run": "give a run folder and --source",
    "evaluate run --hypotheses seven.txt --target source.txt": "without a run folder",
    "evaluate --hypotheses seven.txt": "--hypotheses are scored against --target",
    "evaluate --hypotheses seven.txt --target source.txt": "7 hypotheses do not match 60 references",
    "evaluate --hypotheses empty.tsv --target empty.tsv": "nothing to score: there are no references",
    "evaluate --hypotheses latin1.tsv --target source.txt": "latin1.tsv, line 3: not UTF-8",
    "evaluate --hypotheses source.txt --target target.txt --tokenize 14a": "tokenize must be auto or one of .* '14a'",
    f"evaluate run --source source.txt --target short.txt {SHORT}": "source.txt has 60, short.txt has 57",
    f"evaluate thesis --source pairs.tsv {SHORT}": "thesis is not a run folder",
}
if not torch.cuda.is_available():
    BAD[f"{TRAIN} {PAIRS} --device cuda"] = "device cuda is not available on this machine: choose one of auto, cpu"

PROGRESS = (
    "learning the vocabulary",
    "vocabulary: ",
    "train: ",
    "valid: ",
    "model: ",
)  # what may stand before the error


def complaint(stderr: str) -> str:
    """The one line that says what is wrong."""
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if line and not line.startswith(PROGRESS)]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("glassformer: error: "), stderr
    return lines[0]


@pytest.mark.parametrize(("command", "message"), BAD.items(), ids=[key.replace(TINY, "TINY") for key in BAD])
def test_bad_input(command, message, here, capfd):
    before = tree(here)
    assert run_command(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(".*".join(map(re.escape, message.split(".*"))), complaint(err)), err
    assert tree(here) == before


def test_bad_input_on_stdin(here, stdin, capfd):
    stdin(b"a b\nc d\n\xff\n")
    assert run_command(f"translate run {SHORT}") == 2
    assert "standard input, line 3: not UTF-8 (byte 0xff at column 1)" in complaint(capfd.readouterr().err)


@pytest.mark.parametrize(
    "command", ["train --outt x", "--trian", "", "train", "translate", "train --out x --heads four"]
)
def test_mistyped(command, here, capfd):
    before = tree(here)
    assert run_command(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert "glassformer" in err
    assert tree(here) == before


def test_ctrl_c_while_preparing(here, monkeypatch, capfd):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Corpus, "prepare", interrupted)
    before = tree(here)
    assert run_command(f"{TRAIN} {PAIRS}") == 130
    assert complaint(capfd.readouterr().err) == "glassformer: error: interrupted"
    assert tree(here) == before


def test_missing_extra_is_named(here, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "babel", None)
    assert run_command("demo --out new") == 2
    assert 'pip install "glassformer[demo]"' in complaint(capfd.readouterr().err)
    assert not (here / "new").exists()


# Train


def test_train_says_what_to_do_next(here, capfd):
    assert run_command(f"train {TINY} {PAIRS} --out my/run --max-updates 11 --metric exact") == 0
    out, err = capfd.readouterr()
    assert err.startswith("learning the vocabulary\n")
    assert "my/run: 11 updates in" in out
    assert "exact" in out
    assert out.endswith("translate with:\n  glassformer translate my/run < FILE\n")


def test_train_takes_parallel_files_and_overwrites(here, capfd):
    files = "--source source.txt --target target.txt --valid-source seven.txt --valid-target seven.txt"
    assert run_command(f"train {TINY} {files} --out run --overwrite --max-updates 3") == 0
    assert "run: 3 updates" in capfd.readouterr().out


def test_overwrite_keeps_files_that_training_did_not_write(here, capfd):
    shutil.copy(here / "pairs.tsv", here / "run" / "mine.tsv")
    before = tree(here)
    assert run_command(f"train {TINY} --source run/mine.tsv --out run --overwrite --max-updates 3") == 2
    assert "run also holds mine.tsv: move that away" in complaint(capfd.readouterr().err)
    assert tree(here) == before


def test_resume_takes_new_limits_and_no_other_settings(here, capfd):
    assert run_command("train --resume --out unfinished --seed 5") == 2
    assert "leave out seed" in complaint(capfd.readouterr().err)
    assert run_command("train --resume --out unfinished --max-updates 11") == 0
    assert "unfinished: 11 updates" in capfd.readouterr().out


def test_resume_finishes(here, capfd):
    assert run_command("train --resume --out unfinished") == 0
    assert "unfinished: 20 updates" in capfd.readouterr().out
    assert not (here / "unfinished" / "resume").exists()
    assert (here / "unfinished" / "model.safetensors").read_bytes() == (here / "run/model.safetensors").read_bytes()


def test_interrupted_prints_the_command_that_continues(here, capfd):
    with interrupting(12):
        assert run_command(f"train {TINY} {PAIRS} --out 'my run' --max-updates 20") == 130
    out = capfd.readouterr().out
    assert out.startswith("saved at update 12; continue with:\n")
    name, command = out.splitlines()[-1].strip().split(maxsplit=1)
    assert name == "glassformer"
    assert run_command(command) == 0
    assert shlex.split(capfd.readouterr().out.splitlines()[-1])[:3] == ["glassformer", "translate", "my run"]


def test_a_diverged_loss_is_one_line(here, capfd):
    far = "--learning-rate 1e6 --weight-decay 0 --clip-norm 0"
    assert run_command(f"train {TINY} {PAIRS} --out new {far} --max-updates 40") == 2
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert "lower --learning-rate" in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("glassformer: error: ")


def test_the_current_folder_as_run_folder(here, monkeypatch, capfd):
    monkeypatch.chdir(here / "unfinished")
    assert run_command("train --resume --out .") == 0
    command = f"train {TINY} --source ../pairs.tsv --valid-source ../valid.tsv --out . --max-updates 2"
    assert run_command(command) == 2
    assert "exists: --overwrite replaces it" in capfd.readouterr().err.splitlines()[-1]
    assert run_command(f"{command} --overwrite") in (0, 2)  # replaced, or refused with a message
    assert {"config.json", "model.safetensors"} <= {path.name for path in (here / "unfinished").iterdir()}


# Translate


@pytest.fixture(scope="module")
def translator(samples: Path) -> Translator:
    return Translator.load(samples / "run", "cpu", "float32")  # whose results don't depend on how lines are chunked


SEARCH = SearchConfig(beam=2, max_length=7)


def test_translates_from_stdin_to_stdout(here, stdin, capfd, translator):
    lines = (here / "seven.txt").read_text(encoding="utf-8").splitlines()
    stdin((here / "seven.txt").read_bytes())
    assert run_command(f"translate run {SHORT}") == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == translator.translate(lines, SEARCH)
    assert out.endswith("\n")
    assert err == ""


@pytest.mark.parametrize("name", ["seven.txt", "seven.txt.gz"])
def test_translates_from_file_to_file(here, capfd, translator, name):
    lines = (here / "seven.txt").read_text(encoding="utf-8").splitlines()
    (here / "seven.txt.gz").write_bytes(gzip.compress((here / "seven.txt").read_bytes()))
    (here / "out.txt").write_text("of an earlier day", encoding="utf-8")
    assert run_command(f"translate run --input {name} --output out.txt {SHORT}") == 0
    assert (here / "out.txt").read_text(encoding="utf-8").splitlines() == translator.translate(lines, SEARCH)
    assert capfd.readouterr() == ("", "")
    assert not list(here.glob("*.tmp")) + list(here.glob(".*"))


def test_scores_and_n_best_with_line_numbers(here, capfd, translator, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 3)  # numbers go on from chunk to chunk
    lines = (here / "seven.txt").read_text(encoding="utf-8").splitlines()
    assert run_command(f"translate run --input seven.txt --n-best 2 --scores --precision float32 {SHORT}") == 0
    found = translator.translate_n_best(lines, SearchConfig(beam=2, n_best=2, max_length=7))
    expected = [
        (str(number), f"{best.score:.4f}", best.text) for number, bests in enumerate(found, 1) for best in bests
    ]
    assert len(expected) == 14
    assert [tuple(line.split("\t")) for line in capfd.readouterr().out.splitlines()] == expected
    assert all(bests[0].score >= bests[1].score for bests in found)


def test_equal_lines_of_different_chunks_are_drawn_differently(here, capfd, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 20)
    line = (here / "seven.txt").read_text(encoding="utf-8").splitlines()[0]
    (here / "same.txt").write_text(f"{line}\n" * 60, encoding="utf-8")
    command = f"translate run --input same.txt --sample --temperature 5 {SHORT}".replace("--beam 2", "")
    assert run_command(command) == 0
    drawn = capfd.readouterr().out.splitlines()
    assert len({tuple(drawn[first : first + 20]) for first in (0, 20, 40)}) == 3
    assert run_command(command) == 0
    assert capfd.readouterr().out.splitlines() == drawn


def test_scores_alone_have_no_line_number(here, capfd, translator):
    assert run_command(f"translate run --input seven.txt --scores {SHORT}") == 0
    columns = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [len(line) for line in columns] == [2] * 7
    assert all(float(score) < 0 for score, _ in columns)


@pytest.mark.parametrize("output", ["", "--output out.txt"], ids=["to stdout", "to a file"])
@pytest.mark.parametrize("given", ["", "--input seven.txt"], ids=["stdin", "a file"])
def test_translations_begin_as_prescribed(given, output, here, stdin, capfd, translator, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 3)
    lines, prefixes = (
        (here / name).read_text(encoding="utf-8").splitlines() for name in ("seven.txt", "prefixes-of-seven.txt")
    )
    if not given:
        stdin((here / "seven.txt").read_bytes())
    options = f"{SHORT} --prefixes prefixes-of-seven.txt --precision float32"
    assert run_command(f"translate run {given} {output} {options}") == 0
    found = (capfd.readouterr().out or (here / "out.txt").read_text(encoding="utf-8")).splitlines()
    assert found == translator.translate(lines, SEARCH, prefixes=prefixes)
    assert all(line.startswith(prefix) for line, prefix in zip(found, prefixes, strict=True))
    assert found != translator.translate(lines, SEARCH)


@pytest.mark.parametrize(
    ("count", "message"),
    [(5, "prefixes has 5 lines, the input more: it must"), (9, "the input has 7 lines, prefixes more: it must have")],
)
def test_prefixes_of_a_stream_must_be_one_for_each_line(count, message, here, stdin, capfd, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 3)
    (here / "prefixes").write_text("\n" * count, encoding="utf-8")
    stdin((here / "seven.txt").read_bytes())
    assert run_command(f"translate run --prefixes prefixes {SHORT}") == 2
    out, err = capfd.readouterr()
    assert (len(out.splitlines()), message in complaint(err)) == (3 if count < 7 else 7, True)


def test_prefixes_of_a_translation_that_can_be_resumed_must_be_a_file(here, capfd):
    os.mkfifo(here / "pipe")
    assert run_command(f"translate run --input seven.txt --output out.txt --prefixes pipe {SHORT}") == 2
    assert "pipe is a pipe or device, and is read several times: save it" in complaint(capfd.readouterr().err)


@contextmanager
def failing(chunk: int, error: type[BaseException]) -> Iterator[None]:
    """Something stops the translation of this chunk."""
    chunks = 0

    def translate(
        self: Translator, lines: list[str], config: SearchConfig, *, prefixes: list[str] | None
    ) -> list[list[Translation]]:
        nonlocal chunks
        chunks += 1
        if chunks == chunk:
            raise error
        return whole(self, lines, config, prefixes=prefixes)

    whole = Translator.translate_n_best
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate_n_best", translate)
        yield


@pytest.mark.parametrize(
    "options",
    [
        SHORT,
        f"{SHORT} --n-best 2 --scores",
        "--device cpu --sample --seed 3 --n-best 2 --max-length 7",
        f"{SHORT} --prefixes prefixes.txt",
    ],
    ids=["beam", "n-best", "sampled", "prefixes"],
)
def test_a_stopped_translation_is_resumed_to_the_same_bytes(options, here, capfd, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 7)
    command = f"translate run --input source.txt {options}"
    assert run_command(f"{command} --output whole.txt") == 0
    before = tree(here)
    with failing(1, KeyboardInterrupt):
        assert run_command(f"{command} --output out.txt") == 130
    assert complaint(capfd.readouterr().err) == "glassformer: error: interrupted"
    assert tree(here) == before
    for done, resume in ((14, ""), (28, "--resume")):
        with failing(3, KeyboardInterrupt):
            assert run_command(f"{command} --output out.txt {resume}") == 130
        kept, interrupted = capfd.readouterr().err.splitlines()
        assert kept == f"out.txt.partial has the translations of {done} lines: continue with --resume"
        assert interrupted == "glassformer: error: interrupted"
        assert (here / "whole.txt").read_bytes().startswith((here / "out.txt.partial").read_bytes())
    assert run_command(f"{command} --output out.txt") == 2
    assert "out.txt.partial has the output for 28 lines" in complaint(capfd.readouterr().err)
    # How to compute may change, what not.
    assert run_command(f"{command} --output out.txt --resume") == 0
    assert tree(here) == {**before, "out.txt": before["whole.txt"]}


def test_what_to_translate_may_not_change_on_the_way(here, capfd, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 7)
    shutil.copytree(here / "run", here / "same")
    shutil.copytree(here / "run", here / "other")
    weights = load_file(here / "run" / "model.safetensors")
    save_file({name: -weight for name, weight in weights.items()}, here / "other" / "model.safetensors")
    with failing(3, KeyboardInterrupt):
        assert run_command(f"translate run --input source.txt --output out.txt {SHORT}") == 130
    capfd.readouterr()
    for command, message in {
        "translate run --input target.txt": "target.txt doesn't begin with the 14 lines whose output is in out.txt.par",
        "translate run --input seven.txt": "seven.txt doesn't begin with the 14 lines whose output is in out.txt.par",
        "translate run --input source.txt --penalty wu": "started with penalty plain, and is to be contin",
        "translate run --input source.txt --scores": "started with scores False, and is to be continued with sco",
        "translate run --input source.txt --prefixes prefixes.txt": "started with prefixes (digest) None, and is to be",
        "translate other --input source.txt": "out.txt.partial was started with run folder (digest) ",
        "translate new --input source.txt": "new: no such run folder",
    }.items():
        before = tree(here)
        assert run_command(f"{command} --output out.txt --resume {SHORT}") == 2
        assert message in complaint(capfd.readouterr().err)
        assert tree(here) == before
    shutil.copy(here / "source.txt", here / "moved.txt")
    assert run_command(f"translate same --input moved.txt --output out.txt --resume {SHORT}") == 0
    assert run_command(f"translate run --input source.txt --output whole.txt {SHORT}") == 0
    assert (here / "out.txt").read_bytes() == (here / "whole.txt").read_bytes()


def test_a_bad_line_far_on_leaves_what_came_before_it(here, capfd, monkeypatch):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 2)
    assert run_command(f"translate run --input latin1.tsv --output out.txt {SHORT}") == 2
    kept, error = capfd.readouterr().err.splitlines()
    assert kept.startswith("out.txt.partial has the translations of 2 lines")
    assert "latin1.tsv, line 3: not UTF-8" in error
    (here / "mended.tsv").write_text((here / "latin1.tsv").read_text(encoding="latin1"), encoding="utf-8")
    assert run_command(f"translate run --input mended.tsv --output out.txt --resume {SHORT}") == 0
    assert run_command(f"translate run --input mended.tsv --output whole.txt {SHORT}") == 0
    assert (here / "out.txt").read_bytes() == (here / "whole.txt").read_bytes()


def test_odd_lines_keep_their_neighbours_and_order(here, stdin, capfd):
    plain = ["a b c", "g f", "d d e"]
    odd = [plain[0], "", " \t ", "a " * 5000, plain[1], "語 ❤ zzz", "a\u2028b", plain[2]]
    stdin("".join(f"{line}\n" for line in odd).encode())
    assert run_command(f"translate run {SHORT} --precision float32") == 0  # bfloat16 rounds otherwise in other batches
    out, err = capfd.readouterr()
    lines = out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(odd)
    assert lines[1] == lines[2] == ""
    assert [lines[0], lines[4], lines[7]] == Translator.load("run", "cpu", "float32").translate(plain, SEARCH)
    assert err.startswith("glassformer: warning: a source of 5,000 tokens is cut to its first 1,023: ")
    assert len(err.splitlines()) == 1


def test_a_last_line_without_its_end_and_windows_ends(here, stdin, capfd, translator):
    stdin(b"a b c\r\ng f")
    assert run_command(f"translate run {SHORT}") == 0
    assert capfd.readouterr().out.splitlines() == translator.translate(["a b c", "g f"], SEARCH)


def test_nothing_in_nothing_out(here, stdin, capfd):
    stdin(b"")
    assert run_command(f"translate run {SHORT}") == 0
    assert capfd.readouterr() == ("", "")


# Evaluate


def test_evaluate_a_run(here, capfd, translator):
    assert run_command(f"evaluate run --source valid.tsv --output found.txt {SHORT}") == 0
    pairs = [line.split("\t") for line in (here / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    found = translator.translate([source for source, _ in pairs], SEARCH)
    assert (here / "found.txt").read_text(encoding="utf-8").splitlines() == found
    expected = [str(score) for score in score_all(found, [target for _, target in pairs], symbols=True)]
    assert capfd.readouterr().out.splitlines() == expected


def test_evaluate_hypotheses(here, capfd):
    assert run_command("evaluate --hypotheses source.txt --target source.txt --symbols") == 0
    out, _ = capfd.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        "BLEU 100.00",
        "chrF 100.00",
        "exact match 100.00",
        "word error rate 0.00",
        "symbol error rate 0.00",
    ]
    assert "version:" in out


def test_version(capsys):
    assert run_command("--version") == 0
    assert capsys.readouterr().out == f"glassformer {version('glassformer')}\n"


# Processes of their own


def environment() -> dict[str, str]:
    """As a user has it: output is buffered, no hook checks shapes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {"OMP_NUM_THREADS": "1"}


GLASSFORMER = str(Path(sys.executable).parent / "glassformer")


def process(*command: str) -> subprocess.Popen:
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    return subprocess.Popen(command, bufsize=0, **pipes)  # unbuffered: select sees every line that has come


def wait_for_line(stream: io.FileIO, seconds: float = 60.0) -> bytes:
    """The next line, or nothing after so many seconds."""
    ready, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if ready else b""


@pytest.mark.parametrize("command", ["--help", "train --help", "runs --help", "translate --help", "evaluate --help"])
def test_help_answers_at_once_without_torch(command):
    code = (
        "import sys\nfrom glassformer.cli import main\ntry: main(sys.argv[1:])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'numpy', 'sentencepiece', 'sacrebleu', 'jaxtyping', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code, *command.split()], capture_output=True, text=True, env=environment()
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert "usage: glassformer" in done.stdout
        # Of processor time, so that a busy machine doesn't count.
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5


def test_a_translation_comes_as_soon_as_its_line_and_ctrl_c_ends_it(here):
    with process(GLASSFORMER, *f"translate run {SHORT}".split()) as translate:
        translate.stdin.write(b"a b c\n")
        translate.stdin.flush()
        line = wait_for_line(translate.stdout)
        translate.send_signal(signal.SIGINT)  # while it waits for the next line
        code = translate.wait(30)
        err = translate.stderr.read().decode()
    assert line.endswith(b"\n"), "no translation within 60 s of its line"
    assert code == 130, err
    assert complaint(err) == "glassformer: error: interrupted"


def test_a_bad_line_ends_it_though_more_could_come(here):
    with process(GLASSFORMER, *f"translate run {SHORT}".split()) as translate:
        translate.stdin.write(b"\xff\n")
        translate.stdin.flush()
        code = translate.wait(60)
        err = translate.stderr.read().decode()
    assert code == 2, err
    assert "standard input, line 1: not UTF-8" in complaint(err)


def test_a_reader_that_leaves_is_no_error(here):
    (here / "long.txt").write_text("a b c\n" * 20_000, encoding="utf-8")
    command = "translate run --input long.txt --beam 1 --max-length 2"
    with process(GLASSFORMER, *command.split()) as translate:
        assert wait_for_line(translate.stdout) != b""
        translate.stdout.close()
        code = translate.wait(60)
        assert (code, translate.stderr.read()) == (0, b"")


def test_ctrl_c_while_training_and_the_command_it_prints(here):
    command = f"train {TINY} {PAIRS} --out new --max-updates 200 --validate-every 100"
    with process(GLASSFORMER, *command.split()) as train:
        seen = b""
        while b"model: " not in seen:
            line = wait_for_line(train.stderr)
            assert line, seen.decode()
            seen += line
        train.send_signal(signal.SIGINT)
        out = train.stdout.read().decode()
        code = train.wait(30)
        assert b"Traceback" not in train.stderr.read()
    assert code == 130
    assert "continue with:\n" in out
    assert (here / "new" / "resume").is_dir()
    name, *arguments = shlex.split(out.splitlines()[-1])
    assert name == "glassformer"
    assert run_command(shlex.join(arguments)) == 0
    assert not (here / "new" / "resume").exists()


def test_killed_and_interrupted_it_is_resumed_to_the_same_bytes(here):
    with (here / "source.txt").open() as file:
        lines = list(file)
    (here / "long.txt").write_text("".join(lines * 250), encoding="utf-8")
    command = "translate run --input long.txt --device cpu --beam 1 --max-length 2"
    record = here / "out.txt.partial.json"
    done = 0
    for sent, code, resume in ((signal.SIGKILL, -signal.SIGKILL, []), (signal.SIGINT, 130, ["--resume"])):
        with process(GLASSFORMER, *command.split(), "--output", "out.txt", *resume) as translate:
            while translate.poll() is None and (not record.exists() or json.loads(record.read_text())["lines"] <= done):
                time.sleep(0.002)
            translate.send_signal(sent)
            err = translate.communicate(timeout=60)[1].decode()
        assert translate.returncode == code, err
        done = json.loads(record.read_text())["lines"]
        assert 0 < done < 15_000
        assert done % stream.LINES_AT_ONCE == 0
    kept, interrupted = err.splitlines()
    assert kept == f"out.txt.partial has the translations of {done:,} lines: continue with --resume"
    assert interrupted == "glassformer: error: interrupted"
    assert run_command(f"{command} --output out.txt --resume") == 0
    assert run_command(f"{command} --output whole.txt") == 0
    assert (here / "out.txt").read_bytes() == (here / "whole.txt").read_bytes()
    assert not record.exists()


LIMITED = (
    "import resource, sys; n = int(sys.argv.pop(1)); resource.setrlimit(resource.RLIMIT_FSIZE, (n, n));"
    "from glassformer.cli import main; main()"
)
"""A command that may write files of so many bytes, which stands for a full disk."""


def run_limited(limit: int, command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *command.split()], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_full_disk_while_preparing_leaves_nothing(here):
    before = tree(here)
    line = run_limited(500, f"train {TINY} {PAIRS} --out new --max-updates 20")
    assert line.startswith("glassformer: error: ")
    assert line.endswith("free some space, or write elsewhere")
    assert tree(here) == before


def test_a_full_disk_while_training_leaves_a_run_that_continues(here):
    size = (here / "run" / "model.safetensors").stat().st_size
    # Adam's state is twice as large as the weights.
    line = run_limited(2 * size, f"train {TINY} {PAIRS} --out new --max-updates 20 --checkpoint-seconds 0.001")
    assert line.startswith("glassformer: error: ")
    assert line.endswith("free some space, then go on with glassformer train --resume --out new")
    assert not [path for path in here.rglob("*") if path.suffix == ".tmp" or "preparing" in path.name]
    assert run_command("train --resume --out new") == 0
    assert (here / "new" / "model.safetensors").read_bytes() == (here / "run" / "model.safetensors").read_bytes()
    updates = [json.loads(line)["update"] for line in (here / "new" / "metrics.jsonl").read_text().splitlines()]
    assert updates == [10, 20, 20]


def test_a_full_disk_while_translating_leaves_the_old_output(here):
    (here / "old.txt").write_text("of an earlier day\n", encoding="utf-8")
    before = tree(here)
    line = run_limited(50, f"translate run --input source.txt --output old.txt {SHORT}")
    assert line.startswith("glassformer: error: ")
    assert line.endswith("free some space, or write elsewhere")
    assert tree(here) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout(here):
    with open("/dev/full", "wb") as full:
        command = [GLASSFORMER, *f"translate run --input seven.txt {SHORT}".split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 2, done.stderr
    assert complaint(done.stderr).endswith("free some space, or write elsewhere")


def test_weights_saved_on_the_way_translate_while_training_goes_on(here, capfd):
    with interrupting(13):
        assert run_command(f"train {TINY} {PAIRS} --out new --max-updates 20") == 130
    assert load_file(here / "new" / "model.safetensors")
    assert run_command(f"translate new --input seven.txt {SHORT}") == 0


def test_every_command_is_in_the_table_and_has_a_summary(capfd):
    assert run_command("--help") == 0
    out = capfd.readouterr().out
    assert list(cli.COMMANDS) == [
        "train",
        "runs",
        "translate",
        "evaluate",
        "import",
        "export",
        "heads",
        "inspect",
        "prune",
        "demo",
    ]
    assert all(name in out for name in cli.COMMANDS)
    assert loop.train.__doc__
