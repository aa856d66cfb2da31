"""Losses that are no numbers, processes of the command line, and trainings without pictures."""

import math
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from glassformer.training import progress
from glassformer.training.config import TrainConfig
from glassformer.training.objective import Objective


@contextmanager
def _spoiling(updates: Collection[int]) -> Iterator[None]:
    update = 1

    def count(*_: object) -> None:
        nonlocal update
        update += 1

    def spoil(module: torch.nn.Module, inputs: object, losses: tuple[Tensor, Tensor]) -> tuple[Tensor, ...] | None:
        if isinstance(module, Objective) and torch.is_grad_enabled() and update in updates:
            return tuple(loss * math.nan for loss in losses)
        return None

    handles = register_optimizer_step_post_hook(count), register_module_forward_hook(spoil)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.fixture
def spoiling() -> Callable[..., AbstractContextManager[None]]:
    """`with spoiling({3, 7}):` the loss of the third and the seventh update, and so its gradient, is not a number."""
    return _spoiling


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """As without matplotlib: half a second less for each training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "can_draw", lambda: False)
        yield


class Commands:
    """Processes of the command line, which have come to their end when the test has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a program in the test's folder, in a process group of its own."""
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _flags(config: TrainConfig) -> list[str]:
    """What the command line is to be told for these settings."""
    flags = []
    for field in fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            name = f"--{field.name.replace('_', '-')}"
            flags += [name] if value is True else [name, str(value)]
    return flags


@pytest.fixture(scope="session")
def flags() -> Callable[[TrainConfig], list[str]]:
    return _flags


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    try:
        yield commands
    finally:
        commands.stop()
