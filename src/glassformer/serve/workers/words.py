"""The words of a translation, and how likely each is."""

import math
from collections.abc import Sequence
from typing import Any

from glassformer.confidence.words import spans_of
from glassformer.text.tokenizer import Tokenizer


def words_of(ids: Sequence[int], log_probs: Sequence[float], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the words of a translation, each as `schemas.Word` describes it; the model's own probabilities."""
    return [
        word._asdict() | {"probability": min(1.0, math.exp(sum(log_probs[word.first : word.last])))}
        for word in spans_of(ids, tokenizer)
    ]
