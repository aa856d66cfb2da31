"""Choice of the translation that the others of its line agree with most (minimum Bayes risk).

The likeliest translation needn't be the one that is right about most: where much can be said, it is often too short.
Sources: Kumar & Byrne 2004; for what a beam has found, Ehling et al. 2007.
"""

import math
from collections import Counter
from collections.abc import Sequence

from glassformer.generation.config import SearchConfig
from glassformer.generation.search import Hypothesis
from glassformer.text.tokenizer import Tokenizer

LONGEST = 4
"""The most words in the sequences that are compared."""
FLATTENED = 0.25
"""The power to which probabilities are raised: a beam's translations are alike, their probabilities far apart."""

Grams = list[Counter[tuple[str, ...]]]


def most_agreed(tokenizer: Tokenizer, hypotheses: Sequence[Hypothesis], config: SearchConfig) -> list[Hypothesis]:
    """Return the hypotheses that the others agree with most, at most `n_best`."""
    texts = tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
    log_probs = None if config.sample else [hypothesis.log_prob for hypothesis in hypotheses]
    return [hypotheses[i] for i in by_agreement(texts, log_probs)[: config.n_best]]


def by_agreement(texts: Sequence[str], log_probs: Sequence[float] | None = None) -> list[int]:
    """Return the indices of the translations, first the one that is expected to be most like the right one.

    A translation h is ranked by the sum over r of p(r) BLEU(h, r), each translation r in turn taken for the right one,
    with p(r) = softmax(log_probs / 4), or equal without log_probs (drawn translations). BLEU compares single sentences,
    smoothed (Lin & Och 2004), by words, or by characters where no translation has a space.
    """
    spaced = any(" " in text for text in texts)
    units = [text.split() if spaced else list(text) for text in texts]
    grams = [_grams(one) for one in units]
    log_probs = log_probs or [0.0] * len(texts)
    weights = [math.exp(FLATTENED * (one - max(log_probs))) for one in log_probs]

    def expected(i: int) -> float:
        own, length = grams[i], len(units[i])
        return sum(weight * _bleu(own, length, grams[other], len(units[other])) for other, weight in enumerate(weights))

    return sorted(range(len(texts)), key=lambda i: -expected(i))


def _grams(units: Sequence[str]) -> Grams:
    return [Counter(tuple(units[i : i + n]) for i in range(len(units) - n + 1)) for n in range(1, LONGEST + 1)]


def _bleu(own: Grams, length: int, right: Grams, right_length: int) -> float:
    """Return the BLEU, 0 to 1, of a sentence of this length against the right one."""
    if not length or not right_length:
        return float(length == right_length)
    total = 0.0
    for n, (ours, theirs) in enumerate(zip(own, right, strict=True)):
        matches = sum(min(count, theirs[gram]) for gram, count in ours.items() if gram in theirs)
        if not n and not matches:
            return 0.0
        total += math.log((matches + (n > 0)) / (max(length - n, 0) + (n > 0)))
    return math.exp(total / LONGEST + min(0.0, 1 - right_length / length))
