"""What may grow has a largest value: sizes, counts, lengths and times, from flags, from Python and from files."""

import gzip
import json
import math
import os
import re
import resource
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy
import pytest
import torch

from glassformer import Translator, Want, page
from glassformer.attention.observation import Observation
from glassformer.cli import COMMANDS
from glassformer.errors import ArgumentError, ConfigError, DataError
from glassformer.generation.config import SearchConfig
from glassformer.insight import study
from glassformer.insight.chart import DOTS_PER_INCH, plot_heads
from glassformer.insight.config import PruneConfig
from glassformer.insight.heads import Head
from glassformer.insight.study import Sentences
from glassformer.page import report
from glassformer.page.inspection import inspect
from glassformer.pairs.lines import LONGEST_LINE
from glassformer.pictures import MOST_LETTERS
from glassformer.reference import TransformerDecoder, TransformerEncoder
from glassformer.reference.transformer import greedy
from glassformer.scoring.scores import score
from glassformer.settings.checks import check_settings
from glassformer.synthesis.config import BacktranslateConfig, DistillConfig
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training.advice import command_to_go_on
from glassformer.training.config import TrainConfig
from glassformer.transformer.config import ModelConfig

HUGE = 10**400
NEEDED: dict[type, dict[str, Any]] = {
    TrainConfig: dict(out=Path("run")),
    ModelConfig: dict(source_vocab_size=9, target_vocab_size=9),
    SearchConfig: {},
    PruneConfig: dict(run=Path("run"), out=Path("new"), data=(Path("pairs.tsv"),)),
    DistillConfig: dict(run=Path("run"), text=(Path("text.txt"),), student=TrainConfig(out=Path("new"))),
    BacktranslateConfig: dict(run=Path("run"), text=(Path("text.txt"),), student=TrainConfig(out=Path("new"))),
}

BILLION, WIDE = "1,000,000,000", r"2\^24"
REFUSED = [
    *((ModelConfig, name, 10**7, "1,024") for name in ("heads", "encoder_layers", "decoder_layers")),
    (ModelConfig, "d_model", 10**18, "65,536"),
    (ModelConfig, "d_ff", 10**18, r"2\^20"),
    (ModelConfig, "source_vocab_size", 10**9, WIDE),
    (ModelConfig, "target_vocab_size", 10**9, WIDE),
    *((SearchConfig, name, 1025, "1,024") for name in ("beam", "n_best", "no_repeat_ngram")),
    *((SearchConfig, name, 65_537, "65,536") for name in ("max_length", "max_source_tokens")),
    (SearchConfig, "batch_tokens", 10**9, WIDE),
    *((SearchConfig, name, 10**10, BILLION) for name in ("min_length", "top_k", "batch_lines")),
    (SearchConfig, "coverage_penalty", 1e7, "1e6"),
    *((TrainConfig, name, 10**9, WIDE) for name in ("vocab_size", "source_vocab_size", "target_vocab_size")),
    (TrainConfig, "max_tokens", 65_537, "65,536"),
    (TrainConfig, "batch_tokens", 10**9, WIDE),
    (TrainConfig, "accumulate", 10**6, "65,536"),
    (TrainConfig, "score_pairs", 10**7, "1,000,000"),
    (TrainConfig, "average", 1001, "1,000"),
    *((TrainConfig, name, 10**10, BILLION) for name in ("warmup", "max_epochs", "max_updates", "patience")),
    *((TrainConfig, name, 10**10, BILLION) for name in ("validate_every", "max_left_out")),
    *((TrainConfig, name, math.inf, BILLION) for name in ("max_minutes", "checkpoint_seconds")),
    *(
        (TrainConfig, name, 1e300, "1e9")
        for name in ("max_ratio", "clip_norm", "qk_clip", "r_drop", "guide", "weight_decay")
    ),
    (TrainConfig, "clip_norm", math.inf, "1e9"),  # JSON has no infinity, and config.json is JSON
    (TrainConfig, "learning_rate", 1e300, r"1e\+38"),
    *((kind, "threads", 100_000, "1,024") for kind in (TrainConfig, PruneConfig)),
    *((PruneConfig, name, 10**10, BILLION) for name in ("rounds", "updates", "sentences")),
    (PruneConfig, "batch_tokens", 10**9, WIDE),
    (PruneConfig, "learning_rate", math.inf, r"1e\+38"),
    (PruneConfig, "weight_decay", 1e300, "1e9"),
]


@pytest.mark.parametrize(("kind", "name", "value", "most"), REFUSED, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_value_above_the_largest_is_refused(kind, name, value, most, unchecked):
    with pytest.raises(ConfigError, match=f"^{name} must be at most {most}, got {re.escape(str(value))}$"):
        kind(**{**NEEDED[kind], name: value})


def numbers_of(kind: type) -> list[str]:
    """The fields of a dataclass that are numbers."""
    kinds = {name: {hint, *getattr(hint, "__args__", ())} for name, hint in get_type_hints(kind).items()}
    return [one.name for one in fields(kind) if {int, float} & kinds[one.name] and one.name != "heads_left"]


KINDS = {**dict.fromkeys(NEEDED), **{command.kind: None for command in COMMANDS.values()}}
NUMBERS = [(kind, name) for kind in KINDS for name in numbers_of(kind)]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=[f"{kind.__name__}-{name}" for kind, name in NUMBERS])
@pytest.mark.parametrize("value", [HUGE, math.inf, math.nan, -HUGE], ids=["huge", "inf", "nan", "-huge"])
def test_no_number_is_without_bounds(kind, name, value, unchecked):
    needed = NEEDED.get(kind) or {
        one.name: Path("x") for one in fields(kind) if not is_dataclass(get_type_hints(kind)[one.name])
    }
    with pytest.raises(ConfigError) as error:
        check_settings(kind(**{**needed, name: value}))
    assert len(str(error.value)) < 250


def test_every_setting_of_the_command_line_was_looked_at():
    assert len(NUMBERS) > 70
    assert {kind.__name__ for kind, _ in NUMBERS} >= {"HeadsFlags", "InspectFlags", "DemoFlags", "CheckFlags"}


FLAGS = {
    "heads run --data pairs.tsv --sentences 10000000000": "--sentences must be at most 1,000,000,000, got 10000000000",
    "inspect run --source a --hypotheses 1025": "--hypotheses must be at most 1,024, got 1025",
    "demo --seed -1": "--seed must be at least 0 and less than 2.32, got -1",
    "demo --out .": "--out must be a new folder, got .: give it a name",
    "prune run --data pairs.tsv --out .": "--out must be a new folder, got .: give it a name",
    "prune run --data pairs.tsv --out new --metric blue": "--metric must be one of bleu, chrf, .*, got 'blue'",
    "check pairs.tsv --max-minutes inf": "--max-minutes must be at most 1,000,000,000, got inf",
    "TRAIN PAIRS --source-tokenizer=": "--source-tokenizer must name a kind or a file, got '': leave it out",
    "TRAIN PAIRS --threads 1024": r"--threads must be at most \d+ on this machine, got 1024",
    f"TRAIN PAIRS --beam-{'x' * 10_000}": r"train has no flag --beam-x{73}\.\.\.: see",
    f"TRAIN PAIRS --heads {'9' * 10_000}": r"--heads: expected a whole number, got '9{79}\.\.\.$",
    f"TRAIN PAIRS --out {'x' * 10_000}": r"File name too long: .{800}",
    f"translate run --device {'x' * 10_000}": r"--device must be one of auto, cpu, cuda, mps, got 'x{79}\.\.\.$",
}


@pytest.mark.parametrize(("command", "message"), FLAGS.items(), ids=[message[:50] for message in FLAGS.values()])
def test_a_flag_is_refused_in_a_short_line(command, message, here, capfd, run_command, tree, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    before = tree(here)
    assert run_command(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    complaint = run_command.complaint(err)
    assert re.search(message, complaint), complaint
    assert len(complaint) < 2_100
    assert tree(here) == before


# What took all memory, never ended or brought the process down: each in a process of its own


def run(command: list[str], folder: Path, *, memory: int = 4 << 30, seconds: float = 60) -> tuple[float, str]:
    """Run a command that must be refused, within a memory and a time; returns its seconds and its one line."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )
    assert done.returncode == 2, done.stderr[-2000:]
    line = done.stderr.splitlines()[-1]
    assert line.startswith("glassformer: error: "), done.stderr[-2000:]
    return time.monotonic() - began, line


PAIRS = b"".join(b"%d a b\tb a %d\n" % (n, n) for n in range(40))
"""Pairs that can be trained on."""
BELIEVED = {
    "encoder-layers": (["--encoder-layers", str(10**12)], f"--encoder-layers must be at most 1,024, got {10**12}"),
    "d-model": (["--d-model", str(10**18), "--heads", "7"], f"--d-model must be at most 65,536, got {10**18}"),
    "threads": (["--threads", "100000"], "--threads must be at most 1,024, got 100000"),
}


@pytest.mark.parametrize(("flags", "message"), BELIEVED.values(), ids=BELIEVED)
def test_a_size_from_a_flag_is_not_believed(flags, message, tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(PAIRS)
    seconds, line = run(["train", "pairs.tsv", "--out", "new", *flags], tmp_path)
    assert line == f"glassformer: error: {message}"
    assert seconds < 20
    assert not (tmp_path / "new").exists()


def test_a_size_from_a_file_is_not_believed(tmp_path, random_run):
    letters = SymbolTokenizer("abc")
    random_run(tmp_path / "run", letters, letters)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"]["encoder_layers"] = 10**12
    path.write_text(json.dumps(config), encoding="utf-8")
    _, line = run(["translate", "run", "a"], tmp_path, memory=8 << 30)
    assert line.endswith(f"config.json is damaged: encoder_layers must be at most 1,024, got {10**12}")


def test_a_packed_line_of_200_megabytes_is_not_read_whole(tmp_path):
    with gzip.open(tmp_path / "pairs.gz", "wb", compresslevel=1) as file:
        file.write(PAIRS)
        for _ in range(25):
            file.write(b"a b " * 2_000_000)
        file.write(b"\tb\n")
    seconds, line = run(["evaluate", "--hypotheses", "pairs.gz", "--target", "pairs.gz"], tmp_path, memory=1 << 30)
    assert "pairs.gz, line 41: it has more than 1,048,576 bytes, the most that a line may have" in line
    command = ["train", "pairs.gz", "--tokenizer", "char", "--out", "new"]
    seconds, line = run(command, tmp_path)
    assert "pairs.gz, line 41: it has more than 1,048,576 bytes, the most that a line may have" in line
    assert seconds < 30
    assert not (tmp_path / "new").exists()


def test_scoring_long_lines_takes_seconds(tmp_path):
    (tmp_path / "left").write_text("abcdefgh" * 10_000, encoding="utf-8")
    (tmp_path / "right").write_text("bcdefgha" * 10_000, encoding="utf-8")  # an a goes to the other end
    command = [sys.executable, "-m", "glassformer", "evaluate", "--hypotheses", "left", "--target", "right"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "symbol error rate 0.00 %" in done.stdout
    assert score(["ab" * 10_000], ["b" + "ab" * 10_000], "ser").value == 100 / 20_001


def test_lines_that_would_take_minutes_are_not_compared():
    told = r"^line 2 is too long for ser: it has 400,000 characters and its reference 400,000, .*: split it$"
    with pytest.raises(DataError, match=told):
        score(["a", "ab" * 200_000], ["a", "ba" * 200_000], "ser")
    assert score(["ab" * 500_000], ["ab" * 500_000], "ser").value == 0


# Python


def test_a_length_that_is_no_number_is_refused(random_run, tmp_path, unchecked):
    for length in (math.nan, numpy.float64("nan"), math.inf, HUGE, 0):
        with pytest.raises(ConfigError, match="max_length must be "):
            SearchConfig(max_length=length)
    letters = SymbolTokenizer("abc")
    run = random_run(tmp_path, letters, letters)
    translator = Translator.of(run.model, letters, letters)
    for given in ({"max_length": math.nan}, "beam 5"):
        with pytest.raises(ArgumentError, match="config must be a SearchConfig, got "):
            translator.translate(["a"], given)
    sizes = dict(max_len=50, pad_idx=0, d_model=8, N=1, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    encoder, decoder = TransformerEncoder(10, **sizes).eval(), TransformerDecoder(12, **sizes).eval()
    for most in (math.nan, 0, 2.5):
        with pytest.raises(ValueError, match=f"max_len must be a whole number, at least 1, got {most}"):
            greedy(encoder, decoder, torch.tensor([[3, 7, 2]]), src_pad=0, end=2, max_len=most)


def test_a_line_from_python_may_be_as_long_as_one_of_a_file(random_run, tmp_path):
    letters = SymbolTokenizer("abc")
    run = random_run(tmp_path, letters, letters)
    translator = Translator.of(run.model, letters, letters)
    long = "a" * (LONGEST_LINE + 1)
    with pytest.raises(
        ArgumentError, match=r"lines\[1\] must be at most 1,048,576 characters long, got 1,048,577: split"
    ):
        translator.translate(["a", long])
    with pytest.raises(ArgumentError, match=r"line\[0\] must be at most 1,048,576"):
        next(translator.stream(long))
    with pytest.raises(ConfigError, match="hypotheses must be at most 1,024, got 5000"):
        inspect(tmp_path, "a", hypotheses=5000)


def test_wanted_rows_are_counted_before_they_are_held():
    assert len(Want(rows=range(1 << 20)).rows) == 1 << 20
    with pytest.raises(ArgumentError, match="rows must be at most 1,048,576 positions, got more"):
        Want(rows=range(10**18))


def test_long_sentences_are_left_out_of_a_study(random_run, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "LONGEST", 5)
    letters = SymbolTokenizer("abc")
    run = random_run(tmp_path, letters, letters)
    pairs = [("a b c a b", "a"), ("a b", "c b a c b"), ("a b c a", "a b"), ("c", "a")]
    sentences = Sentences.from_pairs(run, pairs, most=3)
    assert [len(ids) for ids in sentences.sources] == [5, 2]
    with pytest.raises(DataError, match="no sentences to study: each is longer than 5 tokens"):
        Sentences.from_pairs(run, pairs[:2], most=3)


def test_a_page_holds_so_many_numbers(monkeypatch):
    monkeypatch.setattr(report, "MOST_NUMBERS", 10)
    with pytest.raises(
        ArgumentError, match="a page holds at most 10 numbers, got 24: capture fewer layers, or a smaller"
    ):
        page(torch.full((4, 4), 0.25))


def test_a_picture_of_many_layers_can_be_drawn():
    values = {field.name: 0.1 for field in fields(Head)} | dict(role="", syntax=None, rare=None, offset=0, head=0)
    heads = [Head(**values | dict(attention=f"encoder.{n}.self_attention")) for n in range(1000)]
    width, height = plot_heads(heads).get_size_inches() * DOTS_PER_INCH
    assert max(width, height) < 10_000


def test_a_long_token_is_cut_in_a_picture():
    weights = torch.eye(2)[None]
    seen = Observation({"weights": weights}, Want(weights=True), None)
    figure = seen.plot(["x" * 10_000, "y"])
    labels = [label.get_text() for axes in figure.axes for label in axes.get_xticklabels()]
    assert "x" * MOST_LETTERS + "..." in labels
    assert max(map(len, labels)) < 100


def test_a_command_to_go_on_stays_within_the_limits(settings):
    config: TrainConfig = settings(max_updates=500_000_000)
    assert "--max-updates 1000000000" in command_to_go_on(config, Path("run"), times=10)
