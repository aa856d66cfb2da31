"""Checks every shape annotation while the tests run, keeps them off the network, and on one thread each.

The models here are tiny: a second thread gains nothing, and two of them on busy cores wait for each other.
"""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

from jaxtyping import install_import_hook

install_import_hook("glassformer", "beartype.beartype")

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.data.corpus import Corpus
from glassformer.data.encode import Counts, Encoded, Encoder
from glassformer.run.folder import Run, load_run, write_config, write_weights
from glassformer.text.pairs import Pair
from glassformer.text.tokenizer import Tokenizer
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
) -> Iterable[Encoded]:
    """The pairs, so many at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = Encoder(str(source.save(folder / "left")), str(target.save(folder / "right")), **limits)
    iterator = iter(pairs)
    while chunk := list(islice(iterator, at_once)):
        yield encoder.encode([source for source, _ in chunk], [target for _, target in chunk])


@pytest.fixture(scope="session")
def prepare_corpus() -> Callable[..., tuple[Corpus, Counts]]:
    """Tokenises pairs with two tokenizers into a folder."""

    def prepare(pairs: Iterable[Pair], folder: Path, *args, **kwargs) -> tuple[Corpus, Counts]:
        counts = Corpus.prepare(encode(pairs, folder, *args, **kwargs), folder)
        return Corpus(folder), counts

    return prepare
