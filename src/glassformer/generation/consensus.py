"""Of several translations of a line the one that the others agree with most (minimum Bayes risk).

The likeliest translation needn't be the one that is right about most: where much can be said, it is often too short.
Kumar & Byrne 2004; of what a beam has found: Ehling et al. 2007.
"""

import math
from collections import Counter
from collections.abc import Sequence

LONGEST = 4
"""Words in the sequences that are compared."""
FLATTENED = 0.25
"""Power of the probabilities: a beam's translations are alike, and their probabilities far apart."""

Grams = list[Counter[tuple[str, ...]]]


def by_agreement(texts: Sequence[str], log_probs: Sequence[float] | None = None) -> list[int]:
    """The places of the translations, first the one that is expected to be most like what is right.

    argmax over h of the sum over r of p(r) BLEU(h, r), each translation in turn taken for the right one, with
    p(r) = softmax(log_probs / 4), or without log_probs (drawn translations) equal. BLEU is of single sentences,
    smoothed (Lin & Och 2004), of words, or of characters where no translation has a space.
    """
    spaced = any(" " in text for text in texts)
    units = [text.split() if spaced else list(text) for text in texts]
    grams = [_grams(one) for one in units]
    log_probs = log_probs or [0.0] * len(texts)
    weights = [math.exp(FLATTENED * (one - max(log_probs))) for one in log_probs]

    def expected(place: int) -> float:
        own, length = grams[place], len(units[place])
        return sum(weight * _bleu(own, length, grams[other], len(units[other])) for other, weight in enumerate(weights))

    return sorted(range(len(texts)), key=lambda place: -expected(place))


def _grams(units: Sequence[str]) -> Grams:
    return [Counter(tuple(units[i : i + n]) for i in range(len(units) - n + 1)) for n in range(1, LONGEST + 1)]


def _bleu(own: Grams, length: int, right: Grams, right_length: int) -> float:
    """Of a sentence of this length against one of the other: 0 to 1."""
    if not length or not right_length:
        return float(length == right_length)
    total = 0.0
    for n, (found, wanted) in enumerate(zip(own, right, strict=True)):
        matches = sum(min(count, wanted[gram]) for gram, count in found.items() if gram in wanted)
        if not n and not matches:
            return 0.0
        total += math.log((matches + (n > 0)) / (max(length - n, 0) + (n > 0)))
    return math.exp(total / LONGEST + min(0.0, 1 - right_length / length))
