"""The words of a translation, and how likely each is."""

import math
from collections.abc import Sequence
from typing import Any

from glassformer.confidence.estimate import ConfidenceEstimator
from glassformer.confidence.words import spans_of
from glassformer.text.tokenizer import Tokenizer


def words_of(ids: Sequence[int], log_probs: Sequence[float], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the words of a translation, each as `schemas.Word` describes it, but for how likely it is right."""
    return [
        word._asdict() | {"probability": min(1.0, math.exp(sum(log_probs[word.first : word.last]))), "right": None}
        for word in spans_of(ids, tokenizer)
    ]


def calibrated_words(
    source: Sequence[int], ids: Sequence[int], log_probs: Sequence[float], estimator: ConfidenceEstimator
) -> list[dict[str, Any]]:
    """Return the words of a translation with how likely each is right; both sides are ids without `</s>`."""
    (found,) = estimator.estimate_tokens([source], [ids])
    words = words_of(ids, log_probs, estimator.translator.target_tokenizer)
    return [word | {"right": one.probability} for word, one in zip(words, found.words, strict=True)]
