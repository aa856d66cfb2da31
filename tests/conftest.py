"""Checks every shape annotation while the tests run, keeps them off the network, and on one thread each.

The models here are tiny: a second thread gains nothing, and two of them on busy cores wait for each other.
"""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

from jaxtyping import install_import_hook

install_import_hook("glassformer", "beartype.beartype")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.run import Run, load_run, write_config, write_weights
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
