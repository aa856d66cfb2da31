"""What trainings leave, losses that are no numbers, and processes of the command line."""

import json
import math
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from glassformer.training.config import TrainConfig
from glassformer.training.objective import Objective
from glassformer.training.train import train


@contextmanager
def _spoiling(updates: Collection[int] = (), *, validations: bool = False) -> Iterator[None]:
    update = 0

    def spoil(module: torch.nn.Module, inputs: object, losses: tuple[Tensor, Tensor]) -> tuple[Tensor, ...] | None:
        nonlocal update
        if not isinstance(module, Objective):
            return None
        update += torch.is_grad_enabled()
        spoilt = update in updates if torch.is_grad_enabled() else validations
        return tuple(loss * math.nan for loss in losses) if spoilt else None

    handle = register_module_forward_hook(spoil)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture
def interrupted(settings, interrupting) -> Callable[..., TrainConfig]:
    """Trains until a Ctrl-C comes during this update; returns the settings of the run, which is in the folder run."""

    def train_until(update: int, **changes: Any) -> TrainConfig:
        with interrupting(update):
            train(config := settings(**changes))
        return config

    return train_until


@pytest.fixture
def spoiling() -> Callable[..., AbstractContextManager[None]]:
    """`with spoiling({3, 7}):` the loss of the third and the seventh update, and so its gradient, is not a number.

    `with spoiling(validations=True):` that of every validation.
    """
    return _spoiling


@pytest.fixture(scope="module")
def unchecked_trainings() -> Iterator[None]:
    """Turn off the checks of shapes and types, for files that judge what long trainings leave: a third of their time.

    The shapes in a training are checked by test_step, test_loss, test_checkpoint, test_validation and others.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


class RunFiles:
    """Reads what a training has left in its run folder."""

    def names(self, folder: Path) -> set[str]:
        return {path.name for path in folder.iterdir()}

    def metrics(self, folder: Path) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    def reports(self, folder: Path) -> list[dict[str, Any]]:
        """The lines that tell of training, not of a validation."""
        return [line for line in self.metrics(folder) if "loss" in line]

    def course(self, folder: Path) -> dict[tuple[str, int], float]:
        """Losses and scores in metrics.jsonl by kind and update, each once."""
        lines, kinds = self.metrics(folder), ("loss", "valid_loss", "score")
        found = [((kind, line["update"]), line[kind]) for line in lines for kind in kinds if kind in line]
        assert len(found) == len(dict(found))
        return dict(found)

    def weights(self, folder: Path) -> dict[str, Tensor]:
        return load_file(folder / "model.safetensors")

    def outcome(self, folder: Path) -> tuple[str, list[dict[str, Any]]]:
        """A digest of the weights, and all figures but those of the clock: what stopping must not change."""
        digest = sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        timed = ("seconds", "tokens_per_second")
        return digest, [{k: v for k, v in line.items() if k not in timed} for line in self.metrics(folder)]


@pytest.fixture(scope="session")
def files() -> RunFiles:
    return RunFiles()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program in the test's folder, in a process group of its own, which comes to its end with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **environment: str) -> subprocess.Popen[str]:
        options: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        options |= dict(cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
        started.append(subprocess.Popen(command, start_new_session=True, **options))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def every_update_forked(serving_forks) -> Iterator[list[str]]:
    """The beginning of a command that runs every_update.py in a fork of a process that has loaded torch."""
    with serving_forks(Path(__file__).with_name("every_update.py")) as begun:
        yield begun


@pytest.fixture(scope="session")
def torchrun_forked(serving_forks) -> Iterator[list[str]]:
    """The beginning of a command that is torchrun in a fork of a process that has loaded torch."""
    with serving_forks(Path(__file__).with_name("agent.py")) as begun:
        yield begun


@pytest.fixture(scope="session")
def flags() -> Callable[[TrainConfig], list[str]]:
    """What the command line is to be told for these settings."""

    def flags_of(config: TrainConfig) -> list[str]:
        flags = []
        for field in fields(config):
            name, value = f"--{field.name.replace('_', '-')}", getattr(config, field.name)
            if value != field.default:
                flags += [name] if value is True else [name, str(value)]
        return flags

    return flags_of
