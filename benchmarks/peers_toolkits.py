"""The toolkits that peers_training.py trains beside glassformer: what each is told, how it is run, what its log says.

Settings are those that the toolkit's own repository gives for training a Transformer; what differs is said beside it.
"""

import os
import re
import shutil
import statistics
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, default_int_handler, signal
from typing import Any, Protocol

import torch
import yaml

from glassformer import TrainConfig, score
from glassformer.device import pick_precision

MERGES = 10_000
"""Merges of the joint BPE, as in the protocol of recipes/multi30k.py."""
WATCHED = TrainConfig.score_pairs
"""Pairs of the validation text that JoeyNMT translates while it trains: as many as glassformer does, 500."""
LANGUAGES = (("src", "en"), ("tgt", "de"))


@dataclass(frozen=True)
class Corpus:
    """Beginnings of the files' names: TRAIN.en and TRAIN.de are the pairs to learn from."""

    train: Path
    valid: Path


@dataclass(frozen=True)
class Size:
    """Sizes of a Transformer."""

    d_model: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    d_ff: int


@dataclass(frozen=True)
class Trained:
    """Cost of a training."""

    parameters: int
    updates: int
    minutes: float
    tokens_per_second: float
    """Target tokens, of the toolkit's own vocabulary, while it trains; validations don't count."""


class Toolkit(Protocol):
    """A toolkit with its settings."""

    def train(self, minutes: float) -> Trained:
        """Train for so many minutes, from where its updates begin."""
        ...

    def translate(self, part: Path) -> list[str]:
        """Return translations of PART.en by the best checkpoint, words between spaces."""
        ...


@dataclass(frozen=True)
class Peer:
    """A toolkit of others, which an environment of its own has."""

    python: Path
    """The Python of that environment."""
    corpus: Corpus
    folder: Path
    size: Size | None = None
    """Sizes of the model; left out, those that the toolkit's authors give."""

    def begin(self) -> None:
        """Make the folder anew, with subwords learned from the corpus."""
        make_empty(self.folder)
        learn_subwords(self.python, self.corpus, self.folder)


JOEYNMT = """
import runpy
from torch.optim import lr_scheduler

class Plateau(lr_scheduler.ReduceLROnPlateau):
    def __init__(self, *args, verbose=False, **kwargs):
        super().__init__(*args, **kwargs)

lr_scheduler.ReduceLROnPlateau = Plateau
runpy.run_module("joeynmt", run_name="__main__")
"""
"""The program that starts JoeyNMT. It gives torch's scheduler a flag that new versions of torch don't take, and that
only printed."""


@dataclass(frozen=True)
class JoeyNMT(Peer):
    """JoeyNMT 2.3.0 with the settings of its configs/iwslt14_deen_bpe.yaml.

    What differs: languages, files and 10,000 merges instead of 32,000 (its corpus has 160,000 pairs). No text is
    lowercased or normalised, because it is already, and BLEU takes plain words. A validation comes after 100 updates
    instead of 1,000, which is about the same share of an epoch; the learning rate and the best checkpoint depend on
    them. It translates the first 500 pairs, as many as glassformer's: on a slow processor all 1,014 took longer than
    the updates before them. It ends by the clock. The better of its best and its last checkpoint, by BLEU on the
    validation text, is taken, since up to 100 updates follow the last validation.
    """

    def train(self, minutes: float) -> Trained:
        """Train for so many minutes, from where its updates begin."""
        self.begin()
        config = self.config(self._watched())
        command = [self.python, "-c", JOEYNMT, "train", write_yaml(self.folder / "train.yaml", config), "--skip-test"]
        log = self.folder / "train.log"
        seconds = run_for(command, log, minutes=minutes, begins="EPOCH 1")
        return read_joeynmt_log(log.read_text(encoding="utf-8"), seconds)

    def _watched(self) -> Path:
        """Write the pairs that are translated while it trains, and return what their names begin with."""
        watched = self.folder / "watched"
        for side in ("en", "de"):
            lines = read_lines(self.corpus.valid.with_name(f"{self.corpus.valid.name}.{side}"))[:WATCHED]
            watched.with_suffix(f".{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return watched

    def translate(self, part: Path) -> list[str]:
        """Return translations of PART.en by the better checkpoint, words between spaces."""
        kept = [name for name in ("best", "latest") if (self.folder / f"model/{name}.ckpt").exists()]
        return self._translated(part, max(kept, key=self._validated) if len(kept) > 1 else kept[0])

    def _validated(self, checkpoint: str) -> float:
        references = read_lines(self.corpus.valid.with_name(f"{self.corpus.valid.name}.de"))
        return score(self._translated(self.corpus.valid, checkpoint), references, "bleu", tokenize="none").value

    def _translated(self, part: Path, checkpoint: str) -> list[str]:
        name = f"test-{part.name}-{checkpoint}"
        made = self.folder / f"{name}.dev"
        if not made.exists():
            config = self.config(part)
            config["testing"]["load_model"] = str(self.folder / f"model/{checkpoint}.ckpt")
            settings = write_yaml(self.folder / f"{name}.yaml", config)
            command = [self.python, "-c", JOEYNMT, "test", settings, "--output-path", made.with_suffix("")]
            run(command, self.folder / f"{name}.log")
        return read_lines(made)

    def config(self, valid: Path) -> dict[str, Any]:
        """Return the configuration with this validation text."""
        size = self.size or Size(d_model=256, heads=4, encoder_layers=6, decoder_layers=6, d_ff=1024)
        text = {
            "max_length": 62,
            "lowercase": False,
            "normalize": False,
            "level": "bpe",
            "voc_min_freq": 1,
            "voc_file": str(self.folder / "vocabulary"),
            "tokenizer_type": "subword-nmt",
            "tokenizer_cfg": {"num_merges": MERGES, "codes": str(self.folder / "codes"), "pretokenizer": "none"},
        }
        layers = {
            "type": "transformer",
            "num_heads": size.heads,
            "embeddings": {"embedding_dim": size.d_model, "scale": True, "dropout": 0.0},
            "hidden_size": size.d_model,
            "ff_size": size.d_ff,
            "dropout": 0.3,
            "layer_norm": "pre",
            "activation": "relu",
        }
        return {
            "name": "multi30k",
            "joeynmt_version": "2.3.0",
            "model_dir": str(self.folder / "model"),
            "use_cuda": False,
            "fp16": False,
            "random_seed": 42,
            "data": {
                "train": str(self.corpus.train),
                "dev": str(valid),
                "dataset_type": "plain",
                "src": {"lang": "en", **text},
                "trg": {"lang": "de", **text},
            },
            "testing": {
                "n_best": 1,
                "beam_size": 5,
                "beam_alpha": 1.0,
                "batch_size": 1024,
                "batch_type": "token",
                "max_output_length": 100,
                "eval_metrics": ["bleu"],
                "sacrebleu_cfg": {"tokenize": "none"},
            },
            "training": {
                "optimizer": "adam",
                "normalization": "tokens",
                "adam_betas": [0.9, 0.999],
                "scheduling": "plateau",
                "patience": 5,
                "decrease_factor": 0.7,
                "loss": "crossentropy",
                "learning_rate": 0.0003,
                "learning_rate_min": 0.00000001,
                "weight_decay": 0.0,
                "label_smoothing": 0.1,
                "batch_size": 4096,
                "batch_type": "token",
                "early_stopping_metric": "bleu",
                "epochs": 1_000_000,
                "validation_freq": 100,
                "logging_freq": 10,
                "overwrite": False,
                "shuffle": True,
                "print_valid_sents": [0],
                "keep_best_ckpts": 5,
            },
            "model": {
                "initializer": "xavier_uniform",
                "embed_initializer": "xavier_uniform",
                "embed_init_gain": 1.0,
                "init_gain": 1.0,
                "bias_initializer": "zeros",
                "tied_embeddings": True,
                "tied_softmax": True,
                "encoder": {**layers, "num_layers": size.encoder_layers},
                "decoder": {**layers, "num_layers": size.decoder_layers},
            },
        }


def read_joeynmt_log(log: str, seconds: float) -> Trained:
    """Return what a training came to that was ended after so many seconds.

    >>> log = "Total params: 1200\\nEpoch 1, Step: 20, Tokens per Sec: 900, Lr: 0.1\\nInterrupt at epoch 1, step 31."
    >>> read_joeynmt_log(log, 90)
    Trained(parameters=1200, updates=31, minutes=1.5, tokens_per_second=900.0)
    """
    (updates,) = numbers(r"Interrupt at epoch \d+, step (\d+)", log)
    return Trained(
        parameters=int(numbers(r"Total params: (\d+)", log)[0]),
        updates=int(updates),
        minutes=seconds / 60,
        tokens_per_second=statistics.mean(numbers(r"Tokens per Sec: +(\d+)", log)),
    )


@dataclass(frozen=True)
class Eole(Peer):
    """Eole 0.6.4 with the settings for a Transformer of its documentation (FAQ), subwords as in its recipe wmt17.

    What differs: files, 10,000 merges for a vocabulary of 36,000, and what is for long trainings on several GPUs. An
    update has one batch instead of four on each of four GPUs. The warm-up is the recipe's share of a training, 8 % of
    the updates that these minutes will have by the pace of a trial before (4,000 of 50,000), with the same highest
    rate, which otherwise grows as the warm-up shrinks. Validations come after each twentieth of them instead of each
    tenth, because what follows the last is lost. One bucket holds the corpus. The entropy of attention, which it logs
    unless told not to, isn't computed, which is faster. Precision is bfloat16 instead of float16, or float32 on
    processors that are slow in it. The best checkpoint is that of the best BLEU in its log.
    """

    def train(self, minutes: float) -> Trained:
        """Try its pace, then train for so many minutes, from where its updates begin."""
        self.begin()
        config = self.config(warmup=8000, valid_steps=10**6) | {"report_every": 1}
        trial = write_yaml(self.folder / "trial.yaml", config)
        command = [*self._eole, "build_vocab", "--config", trial, "--n_sample", "-1"]
        run(command, self.folder / "vocabulary.log")
        tried = self._trained("trial", min(1.0, minutes / 2))
        updates = tried.updates / tried.minutes * minutes
        config = self.config(warmup=max(1, round(0.08 * updates)), valid_steps=max(1, round(updates / 20)))
        write_yaml(self.folder / "train.yaml", config)
        return self._trained("train", minutes)

    def translate(self, part: Path) -> list[str]:
        """Return translations of PART.en by the best checkpoint, words between spaces."""
        out = self.folder / f"{part.name}.predicted"
        files = ["--src", part.with_name(f"{part.name}.en"), "--output", out]
        search = ["--beam_size", "5", "--batch_size", "4096", "--batch_type", "tokens"]
        command = [*self._eole, "predict", "--model_path", self.best_checkpoint(), *files, *search]
        run(command, self.folder / f"predict-{part.name}.log")
        return read_lines(out)

    def best_checkpoint(self) -> Path:
        """Return the checkpoint with the best BLEU in the log, of those that are whole."""
        scores = numbers(r"validation BLEU: ([\d.]+)", (self.folder / "train.log").read_text(encoding="utf-8"))
        steps = yaml.safe_load((self.folder / "train.yaml").read_text(encoding="utf-8"))["training"]["valid_steps"]
        saved = {self.folder / f"model/step_{steps * (n + 1)}": bleu for n, bleu in enumerate(scores)}
        return max((path for path in saved if (path / "config.json").exists()), key=saved.__getitem__)

    @property
    def _eole(self) -> list[str | Path]:
        return [self.python, "-m", "eole.bin.main"]

    def _trained(self, name: str, minutes: float) -> Trained:
        log = self.folder / f"{name}.log"
        command = [*self._eole, "train", "--config", self.folder / f"{name}.yaml"]
        seconds = run_for(command, log, minutes=minutes, begins="Start training loop")
        return read_eole_log(log.read_text(encoding="utf-8"), seconds)

    def config(self, *, warmup: int, valid_steps: int) -> dict[str, Any]:
        """Return the configuration with this warm-up, and validations and checkpoints after so many updates each."""
        size = self.size or Size(d_model=512, heads=8, encoder_layers=6, decoder_layers=6, d_ff=2048)
        train, valid = (
            {f"path_{side}": str(prefix.with_name(f"{prefix.name}.{language}")) for side, language in LANGUAGES}
            for prefix in (self.corpus.train, self.corpus.valid)
        )
        both = ("src", "tgt")
        precision = pick_precision("auto", torch.device("cpu"))
        return {
            "save_data": str(self.folder / "samples"),
            "overwrite": True,
            "seed": 1234,
            "report_every": 10,
            "valid_metrics": ["BLEU"],
            **{f"{side}_vocab": str(self.folder / "eole.vocabulary") for side in both},
            **{f"{side}_vocab_size": MERGES for side in both},
            **{f"{side}_words_min_frequency": 2 for side in both},
            "vocab_size_multiple": 8,
            "share_vocab": True,
            "n_sample": 0,
            "data": {"corpus_1": train, "valid": valid},
            "transforms": ["bpe", "filtertoolong"],
            "transforms_configs": {
                "bpe": {f"{side}_subword_model": str(self.folder / "codes") for side in both},
                "filtertoolong": {f"{side}_seq_length": 512 for side in both},
            },
            "training": {
                "model_path": str(self.folder / "model"),
                "save_checkpoint_steps": valid_steps,
                "valid_steps": valid_steps,
                "train_steps": 10**6,
                "world_size": 1,
                "gpu_ranks": [],
                "num_workers": 0,
                "bucket_size": 29_000,
                "batch_type": "tokens",
                "batch_size": 4096,
                "valid_batch_size": 2048,
                "batch_size_multiple": 8,
                "accum_count": [1],
                "accum_steps": [0],
                "compute_dtype": {torch.bfloat16: "bf16", torch.float32: "fp32"}[precision],
                "optim": "adam",
                "learning_rate": 2 * (warmup / 4000) ** 0.5,
                "warmup_steps": warmup,
                "decay_method": "noam",
                "adam_beta2": 0.998,
                "max_grad_norm": 0,
                "label_smoothing": 0.1,
                "param_init_method": "xavier_uniform",
                "normalization": "tokens",
                "dropout_steps": [0],
                "dropout": [0.1],
                "attention_dropout": [0.1],
                "log_attention_entropy": False,
            },
            "model": {
                "architecture": "transformer",
                "hidden_size": size.d_model,
                "heads": size.heads,
                "transformer_ff": size.d_ff,
                "encoder": {"layers": size.encoder_layers},
                "decoder": {"layers": size.decoder_layers},
                "share_decoder_embeddings": True,
                "share_embeddings": True,
                "embeddings": {"word_vec_size": size.d_model, "position_encoding_type": "SinusoidalInterleaved"},
            },
        }


def read_eole_log(log: str, seconds: float) -> Trained:
    """Return what a training came to that was ended after so many seconds.

    >>> line = "Step 20/100000; acc: 9.1; bsz: 3000/2900/99; 2100/1900 tok/s; 61 sec;"
    >>> read_eole_log(f"* number of parameters: 6371056\\n{line}", 90)
    Trained(parameters=6371056, updates=20, minutes=1.5, tokens_per_second=1900.0)
    """
    return Trained(
        parameters=int(numbers(r"number of parameters: (\d+)", log)[0]),
        updates=int(numbers(r"Step +(\d+)/", log)[-1]),
        minutes=seconds / 60,
        tokens_per_second=statistics.mean(numbers(r"/ *(\d+) tok/s", log)),
    )


def numbers(pattern: str, log: str) -> list[float]:
    """Return the numbers that a pattern's group finds in a log; ValueError if there are none."""
    if not (found := [float(number.replace(",", "")) for number in re.findall(pattern, log)]):
        raise ValueError(f"nothing in the log matches {pattern}; it ends with:\n{log[-2000:]}")
    return found


def learn_subwords(python: Path, corpus: Corpus, folder: Path) -> None:
    """Write `codes`, a joint BPE of subword-nmt, and `vocabulary`, its subwords by falling frequency."""
    sides = [corpus.train.with_name(f"{corpus.train.name}.{language}") for language in ("en", "de")]
    both, codes, split = (folder / name for name in ("both", "codes", "split"))
    both.write_bytes(b"".join(side.read_bytes() for side in sides))
    run([python, "-m", "subword_nmt.learn_bpe", "-s", str(MERGES), "-i", both, "-o", codes], folder / "codes.log")
    run([python, "-m", "subword_nmt.apply_bpe", "-c", codes, "-i", both, "-o", split], folder / "split.log")
    counted = Counter(split.read_text(encoding="utf-8").split())
    (folder / "vocabulary").write_text("".join(f"{word}\n" for word, _ in counted.most_common()), encoding="utf-8")


def run(command: list[str | Path], log: Path) -> None:
    """Run a command and write what it prints; SystemExit with its last words if it fails."""
    with log.open("w", encoding="utf-8") as kept:
        done = subprocess.run(command, stdout=kept, stderr=subprocess.STDOUT, env=environment(), cwd=log.parent)
    check(done.returncode, command, log)


def run_for(command: list[str | Path], log: Path, *, minutes: float, begins: str) -> float:
    """Run a command for so many minutes from the first line that holds `begins`; return the seconds that count.

    It is then interrupted, as by Ctrl-C. What it prints is written. SystemExit with its last words if it fails.
    """
    began = None
    signal(SIGINT, default_int_handler)  # a shell that runs this in the background has it ignored, by commands too
    printed = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(command, **printed, env=environment(), cwd=log.parent) as process,
    ):
        timer = threading.Timer(60 * minutes, process.send_signal, [SIGINT])
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            kept.flush()
            if began is None and begins in line:
                began = time.monotonic()
                timer.start()
        ended = time.monotonic()
        timer.cancel()
    check(process.returncode, command, log)
    if began is None:
        raise SystemExit(f"{log} has no line with {begins!r}")
    return min(ended - began, 60 * minutes)


def environment() -> dict[str, str]:
    """Return the environment of the commands: our threads, no GPU, no network, and each line printed at once."""
    quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet, "OMP_NUM_THREADS": str(torch.get_num_threads())}


def check(status: int, command: list[str | Path], log: Path) -> None:
    """Raise SystemExit with a command's last words if it failed."""
    if status:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {status}:\n{read_end(log)}")


def read_end(log: Path) -> str:
    """Return the end of what a command printed."""
    return log.read_text(encoding="utf-8")[-3000:]


def write_yaml(path: Path, config: dict[str, Any]) -> Path:
    """Write a configuration, and return where."""
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[str]:
    """Return a file's lines."""
    return path.read_text(encoding="utf-8").splitlines()


def make_empty(folder: Path) -> None:
    """Make a folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
