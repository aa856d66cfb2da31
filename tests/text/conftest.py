"""Corpora of pairs that stand in a test."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest

from glassformer.text.corpus import Corpus
from glassformer.text.encode import Counts, Encoded, Encoder
from glassformer.text.pairs import Pair
from glassformer.text.tokenizer import Tokenizer


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
