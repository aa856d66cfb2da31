"""Pairs and settings so small that a training run takes a fraction of a second, and a Ctrl-C at a chosen update."""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from glassformer.training.config import TrainConfig

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
def interrupting() -> Callable[[int], AbstractContextManager[None]]:
    """`with interrupting(7):` a Ctrl-C comes during the seventh update."""
    return lambda update: _after_update(update, lambda: signal.raise_signal(signal.SIGINT))


@pytest.fixture
def crashing() -> Callable[[int], AbstractContextManager[None]]:
    """`with crashing(7):` the process is lost during the seventh update: nothing more is saved."""

    def crash() -> None:
        raise SystemError("lost")

    return lambda update: _after_update(update, crash)


@pytest.fixture(scope="session")
def reversed_symbols() -> Callable[..., list[str]]:
    return reversals
