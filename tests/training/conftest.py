"""Pairs and settings so small that a training run takes a fraction of a second, and a mishap at a chosen update."""

import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from glassformer.training import progress
from glassformer.training.config import TrainConfig
from glassformer.training.objective import Objective

TINY = dict(
    tokenizer="symbols",
    d_model=16,
    heads=2,
    encoder_layers=1,
    decoder_layers=1,
    d_ff=23,
    batch_tokens=64,
    learning_rate=3e-3,
    warmup=10,
    cooldown=0.0,
    validate_every=10,
    score_pairs=5,
    average=2,
    precision="float32",
    device="cpu",
)


def reversals(count: int, seed: int, symbols: str = "abcdefg", shortest: int = 2, longest: int = 6) -> list[str]:
    """TSV lines of symbols and the same symbols in reverse."""
    draw = random.Random(seed)
    sources = [draw.choices(symbols, k=draw.randint(shortest, longest)) for _ in range(count)]
    return [f"{' '.join(source)}\t{' '.join(reversed(source))}" for source in sources]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv (200 pairs) and valid.tsv (20)."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, count, seed in (("train", 200, 1), ("valid", 20, 2)):
        (folder / f"{name}.tsv").write_text("\n".join(reversals(count, seed)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny(pairs: Path) -> Callable[..., TrainConfig]:
    """Settings of a tiny run, with changes."""

    def make(out: Path, **changes: Any) -> TrainConfig:
        return TrainConfig(
            **{**TINY, "source": pairs / "train.tsv", "valid_source": pairs / "valid.tsv", "out": out, **changes}
        )

    return make


@pytest.fixture
def settings(tiny: Callable[..., TrainConfig], tmp_path: Path) -> Callable[..., TrainConfig]:
    """The same, for a run folder in the test's own folder."""
    return lambda out="run", **changes: tiny(tmp_path / out, **changes)


@contextmanager
def _after_update(update: int, act: Callable[[], Any]) -> Iterator[None]:
    updates = 0

    def count(*_: object) -> None:
        nonlocal updates
        updates += 1
        if updates == update:
            act()

    handle = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture
def interrupting() -> Callable[..., AbstractContextManager[None]]:
    """`with interrupting(7):` a Ctrl-C, or another signal, comes during the seventh update."""
    return lambda update, number=signal.SIGINT: _after_update(update, lambda: signal.raise_signal(number))


@pytest.fixture
def crashing() -> Callable[[int], AbstractContextManager[None]]:
    """`with crashing(7):` the process is lost during the seventh update: nothing more is saved."""

    def crash() -> None:
        raise SystemError("lost")

    return lambda update: _after_update(update, crash)


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


HOLDER = (
    "import sys; from pathlib import Path; from glassformer.run.lock import held\n"
    "with held(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
)


@contextmanager
def _holding(folder: Path) -> Iterator[subprocess.Popen]:
    """Another process trains in the run folder."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="session")
def holding() -> Callable[[Path], AbstractContextManager[subprocess.Popen]]:
    """`with holding(folder) as process:` another process trains in the run folder."""
    return _holding


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


@pytest.fixture(scope="session")
def reversed_symbols() -> Callable[..., list[str]]:
    return reversals
