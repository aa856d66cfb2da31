"""The word that a placeholder is for the model: one that it copies by itself."""

from typing import NamedTuple

from glassformer.generation.batches import log_probs_of_targets
from glassformer.generation.engines.engine import Engine
from glassformer.text.tokenizer import EOS, UNK, Tokenizer

MOST_TRIED = 4096


class StandIn(NamedTuple):
    """The tokens of a word that stands for placeholders, on either side."""

    source: int = UNK
    target: int = UNK


def find_stand_in(engine: Engine, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> StandIn:
    """Return the word, of those that are one token on both sides, that the model copies with the highest probability.

    In the source it has a space before it, in the translation where one has it too. Without any it is the unknown
    token.
    """
    sources, targets = (
        {text: i for i, text in zip(range(UNK + 1, one.pad), one.texts(range(UNK + 1, one.pad)), strict=True)}
        for one in (source_tokenizer, target_tokenizer)
    )
    shared = [
        (i, targets.get(text, targets.get(text[1:])))
        for text, i in sources.items()
        if text[:1] == " " and text[1:].isalnum()
    ]
    whole = [StandIn(i, j) for i, j in shared if j is not None][:MOST_TRIED]
    if not whole:
        return StandIn()
    copies = log_probs_of_targets(engine, [[one.source, EOS] for one in whole], [[one.target, EOS] for one in whole])
    return whole[int(copies.sum(1).argmax())]
