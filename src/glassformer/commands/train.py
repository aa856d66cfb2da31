"""`glassformer train`: train a model, or continue a training that was stopped."""

import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from glassformer.run.config import read_config
from glassformer.terminal import loading
from glassformer.training.config import TrainConfig

if TYPE_CHECKING:
    from glassformer.training.result import TrainResult

HEADINGS = {
    "the most important flags": (
        *("source", "target", "out", "task", "preset", "max_minutes", "max_updates", "tokenizer", "metric", "from_"),
        *("resume", "overwrite"),
    ),
    "text": (
        *(
            "columns",
            "source_language",
            "target_language",
            "valid_source",
            "valid_target",
            "source_tokenizer",
            "target_tokenizer",
            "vocab_size",
            "source_vocab_size",
        ),
        *(
            "target_vocab_size",
            "separate_vocab",
            "character_coverage",
            "decompose",
            "max_tokens",
            "max_ratio",
            "join_lines",
        ),
    ),
    "model": ("d_model", "heads", "encoder_layers", "decoder_layers", "d_ff", "dropout", "attention_dropout"),
    "learning": (
        *("batch_tokens", "accumulate", "optimizer", "learning_rate", "warmup", "cooldown", "resample"),
        *("label_smoothing", "r_drop", "guide", "weight_decay", "clip_norm", "qk_clip", "max_left_out"),
    ),
    "validation and limits": (
        *("validate_every", "tokenize", "score_pairs", "average", "watch", "track", "max_epochs", "patience"),
    ),
    "machine": ("checkpoint_seconds", "seed", "device", "precision", "threads", "shard", "help"),
}
"""Flags below each heading."""


def train(config: TrainConfig) -> int:
    """Train into the run folder `config.out`. Files that can't be used are refused before torch is loaded."""
    if "RANK" not in os.environ:  # of the processes that torchrun starts, only the first needs the files
        for pairs in (config.pairs, config.valid_pairs):
            if pairs is not None:
                pairs.check()
    with loading():
        from glassformer.training.train import train as run_training

    return report(run_training(config))


def resume(folder: Path, given: Mapping[str, Any]) -> int:
    """Continue the training of a run folder, with the settings that were `given`, even where one is the default."""
    read_config(folder)  # what is wrong with it is said before torch is loaded
    with loading():
        from glassformer.training.train import read_settings
        from glassformer.training.train import resume as resume_training

    started = read_settings(folder)
    settings = {name: value for name, value in given.items() if name not in ("out", "resume", "overwrite")}
    changes = {name: value for name, value in settings.items() if value != getattr(started, name)}
    return report(resume_training(folder, **changes))


def report(result: "TrainResult") -> int:
    """Print what a training came to, and return the exit status."""
    from glassformer.training.advice import command_to_go_on
    from glassformer.training.train import read_choices, read_settings

    # As shells count: 130 for Ctrl-C, 143 for SIGTERM.
    status = 0 if result.finished or result.signal is None else 128 + result.signal
    if os.environ.get("RANK", "0") != "0":  # only the first process that torchrun started prints
        return status
    if not result.finished:
        print(f"saved at update {result.updates:,}; continue with:")
        print(f"  glassformer train --resume --out {quote(str(result.folder))}")
        return status
    minutes, run = result.seconds / 60, quote(str(result.folder))
    score = "" if result.score is None else f", {result.metric} {result.score:.2f} on the validation pairs"
    print(f"{result.folder}: {result.updates:,} updates in {minutes:.1f} min{score}")
    for concern in result.concerns:
        print(f"but {concern}")
    if times := max((concern.times for concern in result.concerns), default=0):
        limits = {"max_updates": read_choices(result.folder).get("max_updates")}
        settings = read_settings(result.folder).settled(limits)
        print(f"go on with:\n  {command_to_go_on(settings, result.folder, times)}")
    print("what to do next:")
    print(f"  glassformer translate {run} TEXT    or: < FILE")
    print(f"  glassformer evaluate {run} --source FILE    with pairs that it has not seen")
    print(f"  glassformer inspect {run} TEXT    where it looks while it translates")
    return 0
