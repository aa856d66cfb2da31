"""The command line: bad input, exit statuses, signals, streams, full disks. tests/commands/ has each command's work."""

import io
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import textwrap
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from glassformer import cli
from glassformer.data import preparation
from glassformer.generation import stream

BAD = {
    "help trian": "there is no command trian: did you mean train?",
    # files
    "TRAIN --source missing.tsv": "missing.tsv: no such file",
    "TRAIN --source pairs.tsv --valid-source missing.tsv": "missing.tsv: no such file",
    "TRAIN --source thesis": "thesis is a folder, a file was expected",
    "TRAIN --source source.txt --target short.txt": "source.txt has 60, short.txt has 57",
    "TRAIN --source empty.tsv": "empty.tsv is empty: at least one pair is needed",
    "TRAIN --source pairs.tsv --valid-source empty.tsv": "empty.tsv is empty: at least one pair is needed",
    "TRAIN --source latin1.tsv": "latin1.tsv, line 3: not UTF-8 (byte 0xe9 at column 4); convert it",
    "TRAIN --source no-tab.tsv": "no-tab.tsv, line 2: expected source<tab>target, found no tab",
    "TRAIN --source broken.gz": "broken.gz is a packed file that is damaged or incomplete .*: get it again",
    "TRAIN --source untrainable.tsv --valid-source valid.tsv": "left out 3 empty",
    "TRAIN": "source is missing: give the file of training pairs before all flags",
    # settings
    "TRAIN PAIRS --vocab-size 500": (
        "the shared vocabulary: --vocab-size 500 is larger than this text allows .* give at most 10"
    ),
    "TRAIN PAIRS --separate-vocab --vocab-size 500": (
        "the source's vocabulary: --source-vocab-size 500 is larger than this text allows .* give at most"
    ),
    "TRAIN PAIRS --max-tokens 2": "no pair is left: 0 of .* too long; .*: raise --max-tokens, or split the long lines",
    "TRAIN PAIRS --tokenizer unigram --vocab-size 500": "--vocab-size 500 is larger .* at most .*, or leave it out",
    "TRAIN PAIRS --tokenizer unigram --vocab-size 5": "--vocab-size 5 cannot hold .* give at least .*, or",
    "TRAIN PAIRS --tokenizer words": "--tokenizer must be one of unigram, bpe, .*, features, symbols, .* got 'words'",
    "TRAIN PAIRS --task sentences": "--task must be one of characters, got 'sentences'",
    "TRAIN PAIRS --tokenizer missing.model": "missing.model: no such sentencepiece model",
    "TRAIN PAIRS --tokenize 14a": "--tokenize must be auto or one of .*13a.* got '14a'",
    "TRAIN PAIRS --join-lines 0": "--join-lines must be at least 1, got 0",
    "TRAIN PAIRS --d-model 0": "--d-model must be at least 1, got 0",
    "TRAIN PAIRS --valid-target target.txt": "the same number of lines: valid.tsv has 11, target.txt has",
    "TRAIN PAIRS --overwrite --resume": "--overwrite and --resume exclude each other",
    # folders in the way
    "AGAIN PAIRS --out run": "run exists: --overwrite replaces it, or choose another --out",
    "AGAIN PAIRS --out unfinished": "unfinished exists: continue it with --resume, or .* --overwrite",
    "AGAIN PAIRS --out thesis": "thesis exists and is not a run folder: choose another --out",
    "AGAIN PAIRS --out thesis --overwrite": "thesis exists and is not a run folder: choose another --out",
    "AGAIN PAIRS --out thesis-to-resume --overwrite": "thesis-to-resume exists and is not a run folder",
    "AGAIN PAIRS --out source.txt": "source.txt exists and is not a run folder: choose",
    "AGAIN PAIRS --out source.txt --overwrite": "source.txt exists and is not a run folder: choose another --out",
    "AGAIN PAIRS --out . --overwrite": "exists and is not a run folder: choose another --out",
    # continuing
    "train --resume --out run": "the training of run is complete: there is nothing to resume",
    "train --resume --out new": "new: no such run folder",
    "train --resume --out thesis": "thesis is not a run folder: it has no config.json",
    "train --resume --out unfinished-cut-state": "no checkpoint .* can be read any more.*train anew with --overwrite",
    "train --resume --out unfinished-unknown-bleu": "--tokenize must be auto or one of .*13a.* got '14a'",
    "train --resume --out unfinished-lost-pairs": "resume/train/source",
    # run folders
    "translate new --input seven.txt SHORT": "new: no such run folder",
    "translate thesis --input seven.txt SHORT": "thesis is not a run folder: it has no config.json",
    "translate no-weights --input seven.txt SHORT": "no-weights/model.safetensors is missing: copy it again",
    "translate unfinished --input seven.txt SHORT": "is missing: its training has not reached a first validation",
    "translate cut-weights --input seven.txt SHORT": "cut-weights/model.safetensors is damaged .* copy it again",
    # translating
    "translate run --input missing.txt SHORT": "missing.txt: no such file",
    "translate run --input missing.txt --output new.txt SHORT": "missing.txt: no such file",
    "translate run --input latin1.tsv --output new.txt SHORT": "latin1.tsv, line 3: not UTF-8",
    "translate run --input latin1.tsv --output source.txt SHORT": "latin1.tsv, line 3: not UTF-8",
    "translate run --input seven.txt --output no/such/folder.txt SHORT": "no/such",
    "translate run --input seven.txt --output thesis SHORT": "thesis",
    "translate run --input seven.txt --output . SHORT": "folder",
    "translate run --input seven.txt --device cpu --n-best 9": "--n-best must be at most the beam, got --n-best 9",
    "translate run --resume SHORT": "--resume needs --input and --output",
    "translate run --resume --input seven.txt SHORT": "--resume needs --input and --output",
    "translate run --resume --output new.txt SHORT": "--resume needs --input and --output",
    "translate run --resume --input seven.txt --output source.txt SHORT": "source.txt is there and source.txt.part",
    "translate new --resume --input seven.txt --output new.txt SHORT": "new: no such run folder",
    "translate run --input run SHORT": "run is a folder, a file was expected: translate its files one after the other",
    "translate run --input run/*.txt SHORT": "run/*.txt is a pattern, a file was expected: translate its files one",
    "translate run --input seven.txt --prefixes run SHORT": "run is a folder, a file was expected",
    "translate run --format xml 'a <b> c' SHORT": "line 1: it is not well-formed xml (an element isn't closed): close",
    "translate run --format html --input seven.txt --output new --resume": "--resume is for plain text, and can't be",
    "translate run --format html --input seven.txt --n-best 2": "text with tags has one translation, got --n-best 2",
    "translate run --format markdown a": "expected one of plain, xml, html, got 'markdown'",
    "translate run --input seven.txt --glossary run SHORT": "run is a folder, a file was expected",
    "translate run --input seven.txt --keep pairs.tsv --sample SHORT": "--glossary, --keep and --placeholders need",
    "translate run --input seven.txt --placeholders ( SHORT": "placeholders must be a regular expression, got '('",
    "translate run --input seven.txt --placeholders a* SHORT": "placeholders must be an expression that no empty",
    "translate run --input seven.txt --output new.txt --prefixes run SHORT": "run is a folder, a file was expected",
    "translate run --input seven.txt --prefixes source.txt SHORT": "source.txt has 60 lines, the input 7: it must h",
    "translate run --input seven.txt --output new.txt --prefixes empty.tsv SHORT": "empty.tsv has 0 lines, the in",
    "translate run --input seven.txt --output new.txt --prefixes prefixes-of-seven.txt SHORT --max-length 1": (
        "a prefix must be at most --max-length = 1 tokens long, got 2"
    ),
    "translate run --input seven.txt --output new.txt.gz SHORT": "new.txt.gz would be written unpacked: leave out .gz",
    "translate run --input b.SRT.gz SHORT": "b.SRT.gz is a packed document (srt): unpack it first, and give b.SRT",
    "translate run --input a.xlf SHORT": "a.xlf is a document, which is written whole: name its translation with --out",
    "translate run --input a.xlf --output new.xlf SHORT": "a.xlf: no such file",
    "translate run --input a.po --output new.po --scores SHORT": "--scores is for lines, not for a document",
    "translate run --input a.po --output new.po SHORT --n-best 2": "--n-best must be 1, got 2",
    "translate run --overwrite-targets --input seven.txt SHORT": "--overwrite-targets and --languages are for doc",
    "translate run --input seven.txt SHORT --segment paragraph --n-best 2": "must be 1, got 2",
    "translate run --input seven.txt --prefixes source.txt SHORT --segment paragraph": "--prefixes are those of lines",
    "translate run --input seven.txt SHORT --sentences 2": "--sentences 2 needs --segment paragraph",
    "translate run --input seven.txt SHORT --segment paragraph --sentences 0": "sentences must be at least 1, got 0",
    "translate run --input a.po --output new.po --glossary none.tsv SHORT": "none.tsv: no such file",
    "translate run --workers 2 SHORT": "--workers is for a cluster: give --cluster auto, or its address",
    "translate run --cluster auto --input source.txt SHORT": "--cluster needs --input and --output: the folder to tran",
    "translate run a --cluster auto --input run --output new SHORT": "--cluster is for folders, and can't be combined",
    "translate run --cluster auto --input . --output new --prefixes source.txt": "--prefixes can't be combined with",
    "translate run --cluster auto --input . --output new --format xml": "--format xml can't be combined with --cluster",
    "translate run --cluster here --input . --output new": "--cluster must be auto, local or an address (10.0.0.1:",
    "translate run --cluster auto --input *.csv --output new SHORT": "*.csv: no such files",
    "translate no-weights --cluster auto --input . --output new SHORT": "no-weights/model.safetensors is missing",
    "translate run --input seven.txt SHORT --segment page": "--segment: expected one of line, paragraph, got",
    "translate run --ensemble thesis": "thesis is not a run folder: it has no config.json",
    "translate run --ensemble run --input seven.txt SHORT": "an ensemble must have runs that differ, got run, run",
    "translate run --ensemble no-weights --confidence new --input seven.txt": "--confidence is that of one run's model",
    "translate run --ensemble no-weights --cluster auto --input . --output new": "--ensemble can't be combined with --",
    "translate run --ensemble no-weights --input seven.txt --output no-weights/config.json": "must be two files, got",
    # distilling
    "distill run --text seven.txt --out new --ensemble thesis": "thesis is not a run folder: it has no config.json",
    "distill run --text seven.txt --ensemble no-weights --out no-weights": "another folder than the run that writes",
    "distill run --text seven.txt --ensemble no-weights --out new --cluster local": "a cluster translates with one run",
    "distill run --text seven.txt --ensemble run --out new": "an ensemble must have runs that differ, got run, run",
    "distill run --out new": "text is missing: give files of text in the source language with --text, or real pairs",
    "distill run --text missing.txt --out new": "missing.txt: no such file",
    "distill new --text seven.txt --out newer": "new: no such run folder",
    "distill run --text seven.txt --out run": "--out must be another folder than the run that writes, got run for both",
    "distill run --text seven.txt --out thesis": "thesis is there already: give a new name, or remove it first",
    "distill run pairs.tsv --out new --resume": "distill has no flag --resume",
    "distill run pairs.tsv --out new --cores 2": "--cores is for a cluster: give --cluster auto, or its address",
    "distill run pairs.tsv --out new --cluster here": "--cluster must be auto, local or an address (10.0.0.1:",
    "backtranslate run pairs.tsv --out new --cluster auto --column a": "backtranslate has no flag --column",
    "backtranslate run --text seven.txt --out new --real-weight 2": "--real-weight is for real pairs, of which there",
    "backtranslate run pairs.tsv --out new --round-trip thesis": "thesis is not a run folder: it has no config.json",
    "backtranslate run pairs.tsv --out new --beam 2 --n-best 3": "--n-best must be at most the beam, got --n-best 3",
    # scoring
    "evaluate run --ensemble no-weights --source pairs.tsv --save": "--save, --track, --fit-calibration and --calib",
    "evaluate": "give a run folder and --source .*or --hypotheses and --target",
    "evaluate run --source pairs.tsv --output - SHORT": "-: standard output won't do here: give the name of a file",
    "inspect run a --out -": "-: standard output won't do here: give the name of a file to write",
    "runs run --compare run run": "--compare takes two run folders, and no folder to search: leave out run",
    "runs run --picture new.png": (
        "--picture, --pairs, --columns and --device are for two runs: name them with --compare"
    ),
    "runs run --device cpu": "--picture, --pairs, --columns and --device are for two runs: name them with --compare",
    "runs --compare run run --columns a b": "--columns are those of --pairs: give both",
    "runs --compare run run --device cpu": "--device is where --pairs are translated: give both",
    "translate run SHORT --input seven.txt --temperature 0.7": "--temperature is for draws: give --sample too",
    "runs --compare run": "--compare: expected 2 arguments",
    "runs --compare run thesis": "thesis is not a run folder: it has no config.json",
    "runs --compare run run --pairs a b c": "--pairs takes a file of sources and one of targets, or one file of both",
    "runs --compare run run --picture no/such.png": "no: no such folder to write such.png to",
    "train --source pairs.tsv --out new --track wandb": "--track must be one of none, tensorboard, trackio, got",
    "evaluate --hypotheses seven.txt --target source.txt --track trackio": "--track is for translations of a run",
    "evaluate --hypotheses seven.txt --target source.txt --output new": "--output is for translations of a run: give",
    "evaluate --hypotheses seven.txt --target source.txt --beam 3": "a flag of the search is for translations of a run",
    "evaluate --hypotheses seven.txt --target source.txt": "same number of lines: seven.txt has 7, source.txt 60",
    "inspect run 3 --out run/config.json": "--out and the run's config.json must be two files, got run/config.json",
    "inspect run 3 --out run/model.safetensors": "--out and the run's model.safetensors must be two files",
    "runs --compare run run --picture run/curves.png": "--picture and the run's curves.png must be two files",
    "runs --compare run run --picture new.jpg": "its name must end in .png, got new.jpg",
    "evaluate run --source pairs.tsv --calibration --diagram new.jpg": "its name must end in .png, got new.jpg",
    "translate run --input seven.txt --output - SHORT": "--output must be a file, got -: leave it out for standard out",
    "translate run --input - SHORT": "--input must be a file, got -: leave it out for standard input",
    "train pairs.tsv --out pairs.tsv/new": "no folder to write new to (Not a directory): choose another place",
    "train pairs.tsv:20000000 --out new": "a whole number from 1 to 1,000, got pairs.tsv:20000000",
    "distill run pairs.tsv --out new --tokenizer unigramm": "--tokenizer must be one of",
    "distill run pairs.tsv --out new --writing-precision half": "--writing-precision must be one of auto, float32",
    "import --from pairs.tsv --out new": "pairs.tsv: a file, and the folder of a model was expected",
    "runs pairs.tsv": "pairs.tsv is a file, and not a folder of runs: name another folder",
    "serve --keys no/keys.json --new-key alice": "no: no such folder to write keys.json to",
    "evaluate run": "give a run folder and --source",
    "evaluate run --hypotheses seven.txt --target source.txt": "RUN is for translations of a run",
    "evaluate --hypotheses seven.txt": "--hypotheses needs --target, the file of references",
    "evaluate --hypotheses latin1.tsv --target source.txt": "latin1.tsv, line 3: not UTF-8",
    "evaluate run --source source.txt --target short.txt SHORT": "source.txt has 60, short.txt has 57",
    "evaluate thesis --source pairs.tsv SHORT": "thesis is not a run folder",
}
"""Command lines, in which conftest's WORDS stand for longer ones, and what they are told."""
if not torch.cuda.is_available():
    BAD["TRAIN PAIRS --device cuda"] = "device cuda is not available on this machine: choose one of auto, cpu"


@pytest.fixture(scope="module")
def unchanged(samples, tree) -> dict[str, bytes | None]:
    return tree(samples)


@pytest.mark.parametrize(("command", "message"), BAD.items(), ids=BAD)
def test_bad_input(command, message, samples, unchanged, monkeypatch, capfd, run_command, tree):
    monkeypatch.chdir(samples)
    assert run_command(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(".*".join(map(re.escape, message.split(".*"))), run_command.complaint(err)), err
    assert tree(samples) == unchanged


@pytest.mark.parametrize(
    "command", ["train --outt x", "--trian", "", "train", "translate", "train --out x --heads four"]
)
def test_mistyped(command, here, capfd, run_command, tree):
    before = tree(here)
    assert run_command(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert "glassformer" in err
    assert tree(here) == before


def test_ctrl_c_while_preparing(here, monkeypatch, capfd, run_command, tree):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(preparation, "write_corpus", interrupted)
    before = tree(here)
    assert run_command("TRAIN PAIRS") == 130
    assert run_command.complaint(capfd.readouterr().err) == "glassformer: error: interrupted"
    assert tree(here) == before


def test_missing_extra_is_named(here, monkeypatch, capfd, run_command):
    monkeypatch.setitem(sys.modules, "babel", None)
    assert run_command("demo --out new") == 2
    assert 'pip install "glassformer[demo]"' in run_command.complaint(capfd.readouterr().err)
    assert not (here / "new").exists()


def test_version(capsys, run_command):
    assert run_command("--version") == 0
    assert capsys.readouterr().out == f"glassformer {version('glassformer')}\n"


# Processes of their own: each imports torch, two seconds on a quiet core, so most of these take more than three


def environment() -> dict[str, str]:
    """As a user has it: output is buffered, no hook checks shapes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {"OMP_NUM_THREADS": "1"}


GLASSFORMER = str(Path(sys.executable).parent / "glassformer")


def process(*arguments: str) -> subprocess.Popen:
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    # Unbuffered, so that select sees every line that has come.
    return subprocess.Popen([GLASSFORMER, *arguments], bufsize=0, **pipes)


def wait_for_line(stream: io.FileIO, seconds: float = 60.0) -> bytes:
    """The next line, or nothing after so many seconds."""
    ready, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if ready else b""


def test_a_run_or_file_that_is_not_there_is_told_of_before_torch_is_loaded(tmp_path):
    code = (
        "import sys\nfrom glassformer.cli import main\n"
        "for line in sys.stdin:\n"
        "    try: main(line.split())\n"
        "    except SystemExit as e: assert e.code == 2, line\n"
        "    assert 'torch' not in sys.modules, line\n"
    )
    commands = """\
        translate nosuch text
        translate nosuch --input p.tsv --output out --cluster local
        evaluate nosuch --source p.tsv
        inspect nosuch text
        heads nosuch --data p.tsv
        prune nosuch --data p.tsv --out new
        align nosuch --source p.tsv
        distill nosuch p.tsv --out new
        backtranslate nosuch p.tsv --text p.tsv --out new
        export nosuch --to onnx --out new
        serve nosuch
        runs nosuch
        train --source nosuch.tsv --out new
        train --resume --out nosuch
        check nosuch.tsv
    """
    (tmp_path / "p.tsv").write_text("a\tb\n")
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=textwrap.dedent(commands),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("glassformer: error: nosuch")]
    assert len(errors) == len(commands.split("\n")) - 1


@pytest.mark.parametrize("command", ["--help", "train --help", "runs --help", "translate --help", "evaluate --help"])
def test_help_answers_at_once_without_torch(command):
    code = (
        "import sys\nfrom glassformer.cli import main\ntry: main(sys.argv[1:])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'numpy', 'sentencepiece', 'sacrebleu', 'jaxtyping', 'safetensors', 'xml'}\n"
        "heavy &= set(sys.modules)\n"
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


def test_a_translation_comes_as_soon_as_its_line_and_ctrl_c_ends_it(here, run_command):
    with process(*run_command.arguments("translate run SHORT")) as translate:
        translate.stdin.write(b"a b c\n")
        translate.stdin.flush()
        line = wait_for_line(translate.stdout)
        translate.send_signal(signal.SIGINT)  # while it waits for the next line
        code = translate.wait(30)
        err = translate.stderr.read().decode()
    assert line.endswith(b"\n"), "no translation within 60 s of its line"
    assert code == 130, err
    assert run_command.complaint(err) == "glassformer: error: interrupted"


def test_a_bad_line_ends_it_though_more_could_come(here, run_command):
    with process(*run_command.arguments("translate run SHORT")) as translate:
        translate.stdin.write(b"a b\nc d\n\xff\n")
        translate.stdin.flush()
        code = translate.wait(60)
        err = translate.stderr.read().decode()
    assert code == 2, err
    assert "standard input, line 3: not UTF-8 (byte 0xff at column 1)" in run_command.complaint(err)


def test_a_reader_that_leaves_is_no_error(here, run_command):
    (here / "long.txt").write_text("a b c\n" * 20_000, encoding="utf-8")
    command = "translate run --input long.txt --beam 1 --max-length 2"
    with process(*run_command.arguments(command)) as translate:
        assert wait_for_line(translate.stdout) != b""
        translate.stdout.close()
        code = translate.wait(60)
        said = [line for line in translate.stderr.read().splitlines() if b"compiling" not in line]
        assert (code, said) == (0, [])


def test_killed_and_interrupted_it_is_resumed_to_the_same_bytes(here, run_command):
    with (here / "source.txt").open() as file:
        lines = list(file)
    (here / "long.txt").write_text("".join(lines * 120), encoding="utf-8")
    command = "translate run --input long.txt --device cpu --beam 1 --max-length 2"
    record = here / "out.txt.partial.json"
    done = 0
    for sent, code, resume in ((signal.SIGKILL, -signal.SIGKILL, []), (signal.SIGINT, 130, ["--resume"])):
        with process(*run_command.arguments(command), "--output", "out.txt", *resume) as translate:
            while translate.poll() is None and (not record.exists() or json.loads(record.read_text())["lines"] <= done):
                time.sleep(0.002)
            translate.send_signal(sent)
            err = translate.communicate(timeout=60)[1].decode()
        assert translate.returncode == code, err
        done = json.loads(record.read_text())["lines"]
        assert 0 < done < 7_200
        assert done % stream.LINES_AT_ONCE == 0
    kept, interrupted = err.splitlines()
    assert kept == f"out.txt.partial has the translations of {done:,} lines: continue with --resume"
    assert interrupted == "glassformer: error: interrupted"
    assert run_command(f"{command} --output out.txt --resume") == 0
    assert run_command(f"{command} --output whole.txt") == 0
    assert (here / "out.txt").read_bytes() == (here / "whole.txt").read_bytes()
    assert not record.exists()


LIMITED = (  # no compiled modules: Python would leave them cut short
    "import resource, sys; n = int(sys.argv.pop(1)); sys.dont_write_bytecode = True;"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (n, n));"
    "from glassformer.cli import main; main()"
)


def run_limited(limit: int, arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *arguments], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("glassformer: error: ")
    return line


@pytest.mark.parametrize(
    ("limit", "command"), [(500, "TRAIN PAIRS"), (50, "translate run --input source.txt --output target.txt SHORT")]
)
def test_a_full_disk_while_preparing_or_translating_changes_nothing(here, run_command, tree, limit, command):
    before = tree(here)
    line = run_limited(limit, run_command.arguments(command))
    assert line.endswith("free some space, or write elsewhere")
    assert tree(here) == before


def test_a_full_disk_while_training_leaves_a_run_that_continues(here, run_command):
    size = (here / "run" / "model.safetensors").stat().st_size
    # Adam's state is twice as large as the weights.
    command = "train TINY PAIRS --out new --max-updates 20 --checkpoint-seconds 0.001"
    line = run_limited(2 * size, run_command.arguments(command))
    assert line.endswith("free some space, then go on with glassformer train --resume --out new")
    assert not [path for path in here.rglob("*") if path.suffix == ".tmp" or "preparing" in path.name]
    assert run_command("train --resume --out new") == 0
    assert (here / "new" / "model.safetensors").read_bytes() == (here / "run" / "model.safetensors").read_bytes()
    lines = [json.loads(line) for line in (here / "new" / "metrics.jsonl").read_text().splitlines()]
    # The losses of a validation, of the last updates, and of the mean that became the model.
    losses = [(line["update"], name) for line in lines for name in line if name.endswith("loss")]
    assert losses == [(10, "valid_loss"), (20, "loss"), (20, "valid_loss"), (20, "averaged_loss")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout(here, run_command):
    with open("/dev/full", "wb") as full:
        command = [GLASSFORMER, *run_command.arguments("translate run --input seven.txt SHORT")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 2, done.stderr
    assert run_command.complaint(done.stderr).endswith("error: the disk is full: free some space, or write elsewhere")


def test_every_command_is_listed_with_its_summary(capfd, run_command):
    assert run_command("--help") == 0
    out = capfd.readouterr().out
    names = [
        "train",
        "check",
        "runs",
        "distill",
        "backtranslate",
        "translate",
        "evaluate",
        "align",
        "inspect",
        "heads",
        "prune",
        "import",
        "export",
    ]
    names += ["serve", "demo"]
    assert list(cli.COMMANDS) == names
    assert all(f"\n  {name:13}  {command.summary[:30]}" in out for name, command in cli.COMMANDS.items())
