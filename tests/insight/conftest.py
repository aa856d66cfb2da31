"""A random run whose attention is far from even, and pairs to study it on."""

import pytest
import torch
from torch import Tensor

from glassformer.insight.study import Sentences
from glassformer.run.folder import Run
from glassformer.text.tokenizer import SymbolTokenizer


@pytest.fixture
def pairs() -> list[tuple[str, str]]:
    return [("a b c d", "u v"), ("b a", "v w x"), ("", "u"), ("c c a", "x"), ("d b", "w w"), ("a c b", "u u v")]


@pytest.fixture
def run(random_run, tmp_path) -> Run:
    run = random_run(tmp_path / "run", SymbolTokenizer("abcd"), SymbolTokenizer("uvwx"), encoder_layers=2)
    with torch.no_grad():
        for attention in run.model.attentions.values():
            attention.in_proj_weight.mul_(3)
    return run


@pytest.fixture
def sentences(run, pairs) -> Sentences:
    return Sentences.from_pairs(run, pairs, 100)


@pytest.fixture
def encoded(run, pairs) -> list[tuple[Tensor, Tensor]]:
    """The pairs that have text on both sides as ids, with their ends."""
    sources, targets = zip(*(pair for pair in pairs if all(pair)), strict=True)
    sides = run.source_tokenizer.encode(sources), run.target_tokenizer.encode(targets)
    return [(torch.tensor([*source, 0]), torch.tensor([*target, 0])) for source, target in zip(*sides, strict=True)]
