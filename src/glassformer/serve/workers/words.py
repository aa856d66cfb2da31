"""The words of a translation, and how likely each is."""

import math
import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from glassformer.text.tokenizer import Tokenizer
from glassformer.text.words import is_unspaced


def words_of(ids: Sequence[int], log_probs: Sequence[float], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the words of a translation, each as `schemas.Word` describes it.

    A word ends where the text has a space, and before tokens that are the punctuation after it: how likely a comma is
    says nothing of the word. Where text is written without spaces, as Chinese is, each token is a word.
    """
    (text,) = tokenizer.decode([ids])
    so_far = tokenizer.decode([ids[: n + 1] for n in range(len(ids))])
    words: list[dict[str, Any]] = []
    place = first = 0
    for n, decoded in enumerate(so_far):
        start, place = place, max(place, _common(decoded, text))
        if start == place:  # a space, or the first bytes of a character: part of what follows
            continue
        if words and not _begins_word(text, start):
            words[-1] |= {"end": place, "last": n + 1}
        else:
            words.append({"start": start, "end": place, "first": first, "last": n + 1})
        first = n + 1
    return [_described(word, text, log_probs) for word in words]


def _common(first: str, second: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    return sum(1 for _ in takewhile(bool, map(str.__eq__, first, second)))


def _begins_word(text: str, start: int) -> bool:
    """Return whether a word begins with the character at `start`, where a token begins."""
    after, before = text[start], text[start - 1]
    if after.isspace() or before.isspace() or is_unspaced(after) or is_unspaced(before):
        return True
    return not _is_punctuation(before) and all(map(_is_punctuation, text[start:].split(maxsplit=1)[0]))


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def _described(word: dict[str, Any], text: str, log_probs: Sequence[float]) -> dict[str, Any]:
    start, end = word["start"], word["end"]
    start += len(text[start:end]) - len(text[start:end].lstrip())
    end = start + len(text[start:end].rstrip())
    probability = min(1.0, math.exp(sum(log_probs[word["first"] : word["last"]])))
    return word | {"start": start, "end": end, "text": text[start:end], "probability": probability}
