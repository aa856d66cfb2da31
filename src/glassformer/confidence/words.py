"""The words of a translation: where each begins and ends, and which stand in the reference."""

import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from glassformer.text.tokenizer import Tokenizer
from glassformer.text.units import units_of
from glassformer.text.words import is_unspaced


class Span(NamedTuple):
    """A word of a text, by its characters from `start` up to `end` and its tokens from `first` up to `last`.

    Example: docs/howto/confidence.md.
    """

    text: str
    start: int
    end: int
    first: int
    last: int


def spans_of(ids: Sequence[int], tokenizer: Tokenizer) -> list[Span]:
    """Return the words of the text that these tokens are.

    A word ends where the text has a space, and before tokens that are the punctuation after it: how likely a comma is
    says nothing of the word. Where text is written without spaces, as Chinese is, each token is a word.
    """
    (text,) = tokenizer.decode([ids])
    so_far = tokenizer.decode([ids[: n + 1] for n in range(len(ids))])
    words: list[Span] = []
    place = first = 0
    for n, decoded in enumerate(so_far):
        start, place = place, max(place, _common(decoded, text))
        if not text[start:place].strip():  # white space, or the first bytes of a character: part of what follows
            continue
        if words and not _begins_word(text, start):
            words[-1] = words[-1]._replace(end=place, last=n + 1)
        else:
            words.append(Span("", start, place, first, n + 1))
        first = n + 1
    return [_trimmed(word, text) for word in words]


def source_words_of(ids: Sequence[int], tokenizer: Tokenizer) -> list[Span]:
    """Return the words of a source, without the code of a language that it begins with: nothing translates that."""
    coded = len(ids) > 0 and tokenizer.tokens(ids[:1])[0] in tokenizer.languages
    return [word for word in spans_of(ids, tokenizer) if not (coded and word.last == 1)]


def right_words(text: str, words: Sequence[Span], reference: str) -> list[bool]:
    """Return whether each word of a translation stands in the reference.

    A word is right if an alignment of the fewest insertions, deletions and substitutions of units (Levenshtein 1966)
    keeps all of its units. That is how the words of quality estimation are tagged OK or BAD, by translation edit rate
    without shifts (Specia et al. 2018, "Quality estimation for machine translation"). So a synonym of the
    reference's word is wrong, and so is a right word at another place.

    >>> words = [Span("a", 0, 1, 0, 1), Span("big", 2, 5, 1, 2), Span("dog", 6, 9, 2, 3)]
    >>> right_words("a big dog", words, "a dog")
    [True, False, True]
    """
    units = units_of(text)
    sides = [unit.text for unit in units], [unit.text for unit in units_of(reference)]
    kept = set[int]()
    for block in Levenshtein.opcodes(*sides):
        if block.tag == "equal":
            kept.update(range(block.src_start, block.src_end))
    wrong = [unit for n, unit in enumerate(units) if n not in kept]
    return [not any(unit.start < word.end and word.start < unit.end for unit in wrong) for word in words]


def _common(first: str, second: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    return sum(1 for _ in takewhile(bool, map(str.__eq__, first, second)))


def _begins_word(text: str, start: int) -> bool:
    """Return whether a word begins with the character at `start`, where a token begins."""
    after, before = text[start], text[start - 1]
    if after.isspace() or before.isspace() or is_unspaced(after) or is_unspaced(before):
        return True
    return not is_punctuation(before) and all(map(is_punctuation, text[start:].split(maxsplit=1)[0]))


def is_punctuation(character: str) -> bool:
    """Return whether a character is a mark of punctuation."""
    return unicodedata.category(character).startswith("P")


def _trimmed(word: Span, text: str) -> Span:
    """Return the word with its text, without the spaces around it."""
    whole = text[word.start : word.end]
    start = word.start + len(whole) - len(whole.lstrip())
    stripped = whole.strip()
    return word._replace(text=stripped, start=start, end=start + len(stripped))
