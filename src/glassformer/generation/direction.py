"""The direction of pairs, told by a model that translates one way."""

from collections.abc import Iterable
from itertools import islice

from glassformer.generation.translator import Translator
from glassformer.pairs.files import Pair

ASKED, LONGEST = 64, 500
"""Pairs that a model is asked about at the most, and characters of their sides."""
BETTER = 0.7
"""Share of the loss below which the loss the other way round must be, for sides that seem swapped."""
SWAPPED = "the model predicts the sources of these pairs better than their targets: are the two sides swapped?"


def prefers_swapped(translator: Translator, pairs: Iterable[Pair]) -> bool:
    """Return whether the model predicts the sources from the targets better than the targets from the sources.

    It compares the losses per token over the first pairs that have text on both sides and aren't long.
    """
    usable = (pair for pair in pairs if all(side.strip() and len(side) <= LONGEST for side in pair))
    some = list(islice(usable, ASKED))
    if not some:
        return False
    sources, targets = [source for source, _ in some], [target for _, target in some]
    return _loss(translator, targets, sources) < BETTER * _loss(translator, sources, targets)


def _loss(translator: Translator, sources: list[str], targets: list[str]) -> float:
    """Return the mean loss per token, in nats."""
    tokens = sum(len(ids) + 1 for ids in translator.target_tokenizer.encode(targets))
    return -sum(translator.score(sources, targets)) / tokens
