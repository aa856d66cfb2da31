"""The direction of pairs, told by text whose direction is known."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.data.corpus import AT_ONCE, Corpus
from glassformer.pairs.files import Pair
from glassformer.text.tokenizer import UNK, Tokenizer

MORE_KNOWN = 0.1
"""Difference of the shares of unknown tokens, one way round and the other, above which that decides."""
MORE_LIKELY = 0.5
"""Nats per token by which text must be more likely the other way round, for sides that seem swapped."""


def seem_turned(training: Corpus, pairs: Sequence[Pair], source: Tokenizer, target: Tokenizer) -> bool:
    """Return whether the sources of pairs are rather like the targets of training, and their targets like its sources.

    It compares how many tokens the other side's vocabulary knows, and where these are about as many, how often the
    tokens stand on that side in the first AT_ONCE tokens of training.
    """
    sides = [(source, _log_shares(training.source.ids, source)), (target, _log_shares(training.target.ids, target))]
    texts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    unknown, nats, tokens = _measure(texts, sides)
    turned_unknown, turned_nats, turned_tokens = _measure(texts[::-1], sides)
    fewer = unknown / tokens - turned_unknown / turned_tokens
    if abs(fewer) > MORE_KNOWN:
        return fewer > 0
    return nats - turned_nats > MORE_LIKELY * tokens


def _log_shares(ids: Tensor, tokenizer: Tokenizer) -> Float[Tensor, " vocab"]:
    """Return the log of each token's share of these; half of one is added to each count."""
    counts = torch.bincount(ids[:AT_ONCE], minlength=tokenizer.vocab_size) + 0.5
    return (counts / counts.sum()).log()


def _measure(
    texts: Sequence[Sequence[str]], sides: Sequence[tuple[Tokenizer, Float[Tensor, " _"]]]
) -> tuple[int, float, int]:
    """Return the number of unknown tokens of both texts, -log of the probability of all tokens, and their number."""
    unknown, nats, tokens = 0, 0.0, 0
    for lines, (tokenizer, log_shares) in zip(texts, sides, strict=True):
        ids = torch.tensor([i for line in tokenizer.encode(lines) for i in line], dtype=torch.long)
        unknown += int((ids == UNK).sum())
        nats -= float(log_shares[ids].sum())
        tokens += len(ids)
    return unknown, nats, max(1, tokens)
