"""Checks every shape annotation while the tests run, keeps them off the network, and on one thread each.

The models here are tiny: a second thread gains nothing, and two of them on busy cores wait for each other.
"""

import os
import random
import signal
import subprocess
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

from jaxtyping import install_import_hook

install_import_hook("glassformer", "beartype.beartype")

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from glassformer.data.corpus import Corpus, write_corpus
from glassformer.data.encode import EncodedPairs, PairCounts, PairEncoder
from glassformer.run.folder import Run, load_run, write_config, write_weights
from glassformer.text.pairs import Pair
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.config import TrainConfig
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def write_random_run(
    folder: Path, source: Tokenizer, target: Tokenizer, *, shared: bool = False, seed: int = 4, **changes: Any
) -> Run:
    """A run as training leaves it, its model random, with translations that aren't one token again and again."""
    torch.manual_seed(seed)
    sizes = dict(d_model=24, heads=3, encoder_layers=1, decoder_layers=2, d_ff=40)
    vocabularies = dict(source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, shared_vocab=shared)
    config = ModelConfig(**{**sizes, **vocabularies, **changes})
    model = Transformer(config)
    with torch.no_grad():
        for layer in model.decoder:
            layer.feed_forward_norm.weight.normal_(std=1.5)
        if model.output_bias is not None:
            model.output_bias.normal_(std=0.5)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, model.state_dict())
    write_config(folder, config, source, target, {"settings": {"note": "Grüße"}})
    return load_run(folder)


@pytest.fixture(scope="session")
def random_run() -> Callable[..., Run]:
    return write_random_run


def encode(
    pairs: Iterable[Pair], folder: Path, source: Tokenizer, target: Tokenizer, *, at_once: int = 1000, **limits: float
) -> Iterable[EncodedPairs]:
    """The pairs, so many at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = PairEncoder(str(source.save(folder / "left")), str(target.save(folder / "right")), **limits)
    iterator = iter(pairs)
    while chunk := list(islice(iterator, at_once)):
        yield encoder.encode([source for source, _ in chunk], [target for _, target in chunk])


@pytest.fixture(scope="session")
def prepare_corpus() -> Callable[..., tuple[Corpus, PairCounts]]:
    """Tokenises pairs with two tokenizers into a folder."""

    def prepare(pairs: Iterable[Pair], folder: Path, *args, **kwargs) -> tuple[Corpus, PairCounts]:
        counts = write_corpus(encode(pairs, folder, *args, **kwargs), folder)
        return Corpus(folder), counts

    return prepare


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


@pytest.fixture(scope="session")
def interrupting() -> Callable[..., AbstractContextManager[None]]:
    """`with interrupting(7):` a Ctrl-C, or another signal, comes during the seventh update."""
    return lambda update, number=signal.SIGINT: _after_update(update, lambda: signal.raise_signal(number))


@pytest.fixture
def crashing() -> Callable[[int], AbstractContextManager[None]]:
    """`with crashing(7):` the process is lost during the seventh update: nothing more is saved."""

    def crash() -> None:
        raise SystemError("lost")

    return lambda update: _after_update(update, crash)


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


@pytest.fixture(scope="session")
def reversed_symbols() -> Callable[..., list[str]]:
    return reversals
