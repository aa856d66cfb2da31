"""`glassformer train`: train a model, or continue a training that was stopped."""

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import tyro
from tyro.conf import FlagCreatePairsOff

from glassformer.training.config import TrainConfig

if TYPE_CHECKING:
    from glassformer.training.result import TrainResult


def train(config: TrainConfig) -> int:
    """Train into the run folder `config.out`."""
    from glassformer.training.train import train as run_training

    return _report(run_training(config))


def resume(folder: Path, arguments: Sequence[str]) -> int:
    """Continue the training of a run folder, with the settings that `arguments` (flags of `train`) change.

    The flags are parsed once more, over the settings that the training started with: so a given one counts even where
    its value is the default.
    """
    from glassformer.training.train import read_settings
    from glassformer.training.train import resume as resume_training

    started = read_settings(folder)
    asked = tyro.cli(TrainConfig, args=arguments, default=started, config=(FlagCreatePairsOff,))
    names = {setting.name for setting in fields(TrainConfig)} - {"out", "resume", "overwrite"}
    changes = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(started, name)}
    return _report(resume_training(folder, **changes))


def _report(result: "TrainResult") -> int:
    """Print what a training came to, and return the exit status."""
    status = 0 if result.signal is None else 128 + result.signal  # as shells count: 130 for Ctrl-C, 143 for SIGTERM
    if os.environ.get("RANK", "0") != "0":  # only the first process that torchrun started prints
        return status
    if not result.finished:
        print(f"saved at update {result.updates:,}; continue with:")
        print(f"  glassformer train --resume --out {quote(str(result.folder))}")
        return status
    minutes = result.seconds / 60
    score = "" if result.score is None else f", {result.metric} {result.score:.2f}"
    print(f"{result.folder}: {result.updates:,} updates in {minutes:.1f} min{score}")
    print(f"translate with:\n  glassformer translate {quote(str(result.folder))} < FILE")
    return 0
