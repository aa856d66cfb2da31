"""Words: what white space separates, and where text is written without it, each token."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""First words of the Unicode names of letters that are written without spaces between words."""


class Word(NamedTuple):
    """A word of a line, by the characters from `start` up to `end`."""

    text: str
    start: int
    end: int


def is_unspaced(character: str) -> bool:
    """Return whether a letter is of a script that is written without spaces between words."""
    return unicodedata.name(character, "").startswith(UNSPACED)


def split_words(line: str, starts: Sequence[int] | None = None) -> list[Word]:
    """Return the words of a line: what white space separates.

    Beside a letter of a script without spaces, a word begins at each of `starts`, the characters with which tokens
    begin; left out, at each such letter.

    >>> [word.text for word in split_words("two  words, 两个字")]
    ['two', 'words,', '两', '个', '字']
    >>> [word.text for word in split_words("我爱Python", starts=[0, 2])]
    ['我爱', 'Python']
    """
    begins = range(len(line)) if starts is None else set(starts)
    words = list[Word]()
    for match in re.finditer(r"\S+", line):
        first, last = match.span()
        cuts = [
            place
            for place in range(first + 1, last)
            if place in begins and (is_unspaced(line[place]) or is_unspaced(line[place - 1]))
        ]
        edges = [first, *cuts, last]
        words += [Word(line[a:b], a, b) for a, b in pairwise(edges)]
    return words


def words_of_tokens(starts: Sequence[int], words: Sequence[Word]) -> list[int]:
    """Return the number of the word that each token is of, given where tokens begin; words must not be empty.

    >>> words_of_tokens([0, 2, 5, 7, 10], split_words("A man  rides"))
    [0, 1, 1, 2, 2]
    """
    numbers, number = list[int](), 0
    for start in starts:
        while number + 1 < len(words) and words[number + 1].start <= start:
            number += 1
        numbers.append(number)
    return numbers
