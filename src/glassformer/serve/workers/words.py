"""The words of a translation, and how likely each is."""

import math
from collections.abc import Mapping, Sequence
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


def words_in(text: str, words: Sequence[dict[str, Any]], put_in: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return words with their places in a text in which others stand for some of their tokens.

    `words` is what `words_of` returns, with the word that the model wrote in place of what was `put_in`, which is given
    by the place of its token.
    """
    placed, end = list[dict[str, Any]](), 0
    for word in words:
        stands_for = [put_in[n] for n in range(word["first"], word["last"]) if n in put_in]
        name = stands_for[0] if stands_for else word["text"]
        begin = text.find(name, end)
        if begin >= 0:
            end = begin + len(name)
            placed.append(word | {"text": name, "start": begin, "end": end})
    return placed


def calibrated_words(
    source: Sequence[int], ids: Sequence[int], log_probs: Sequence[float], estimator: ConfidenceEstimator
) -> list[dict[str, Any]]:
    """Return the words of a translation with how likely each is right; both sides are ids without `</s>`."""
    (found,) = estimator.estimate_tokens([source], [ids])
    words = words_of(ids, log_probs, estimator.translator.target_tokenizer)
    return [word | {"right": one.probability} for word, one in zip(words, found.words, strict=True)]
