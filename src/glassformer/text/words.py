"""Words as alignments count them: what white space separates, and where text is written without it, each token.

Where words and the marks beside them have to be told apart, `units` does it.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff"  # South-East Asia
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d\U0001b000-\U0001b16f"  # kana
    "\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Letters of Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese, which are written without spaces between words;
a part of a regular expression."""
_UNSPACED = re.compile(f"[{UNSPACED}]")


class Word(NamedTuple):
    """A word of a line, by the characters from `start` up to `end`."""

    text: str
    start: int
    end: int


def is_unspaced(character: str) -> bool:
    """Return whether a letter is of a script that is written without spaces between words."""
    return _UNSPACED.match(character) is not None


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
