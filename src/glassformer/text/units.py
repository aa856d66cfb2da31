"""Units of a line, smaller than `words`: letters in a row, single marks, and letters where words have no spaces.

Terms of a glossary match by them, tags stand on them, and a translation is compared with a reference by them.
"""

import re
from collections.abc import Iterable, Iterator

from glassformer.text.words import UNSPACED, Word

HALF = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair, as JSON and names of files may hold: no encoding has it."""
_SINGLE = f"{UNSPACED}\u1100-\u11ff\u3130-\u318f\uac00-\ud7af\uffa0-\uffdc"
"""Letters each of which is a unit; Hangul is among them because particles follow its words without a space."""
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u08d3-\u08ff\u0900-\u0963\u0966-\u0df3\u0df5-\u0dff"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u200c\u200d\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Marks that belong to a word, which Python's \\w leaves out; the danda, a full stop, is none of them."""
_SPACED = re.compile(rf"(?:[^\W{_SINGLE}]|[{_MARKS}])")
_UNIT = re.compile(rf"[{_SINGLE}]|(?:[^\W{_SINGLE}]|[{_MARKS}])+|[^\w\s]")
_IS_SINGLE = re.compile(f"[{_SINGLE}]")


def units_of(line: str) -> list[Word]:
    """Return the units of a line.

    >>> [unit.text for unit in units_of("don't, 狗!")]
    ['don', "'", 't', ',', '狗', '!']
    """
    return [Word(match[0], match.start(), match.end()) for match in _UNIT.finditer(line)]


def is_spaced(character: str) -> bool:
    """Return whether the character is of a word that spaces part from other words."""
    return _SPACED.match(character) is not None


def is_single(character: str) -> bool:
    """Return whether the character is a letter that is a unit by itself."""
    return _IS_SINGLE.match(character) is not None


def are_one_word(left: str, right: str) -> bool:
    """Return whether the last character of `left` and the first of `right` belong to one word if they meet."""
    return bool(left and right) and is_spaced(left[-1]) and is_spaced(right[0])


def count_of(forms: Iterable[str], text: str) -> int:
    """Return how often forms stand in a text side by side, as whole words where spaces part words.

    >>> count_of(["Hund"], "Hund, Hunde"), count_of(["狗", "小狗"], "小狗和狗")
    (1, 2)
    """
    return len(places_of(forms, text))


def places_of(forms: Iterable[str], text: str, start: int = 0) -> list[tuple[int, int]]:
    """Return where forms begin and end in a text, side by side from `start` on, as whole words where spaces part words.

    >>> places_of(["Hund", "roter Hund"], "roter Hund, Hunde, Hund")
    [(0, 10), (19, 23)]
    """
    places, done = list[tuple[int, int]](), start
    for end, begin in sorted((end, begin) for form in forms for begin, end in _places(form, text)):
        if begin >= done:
            places.append((begin, end))
            done = end
    return places


def _places(form: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield where a form begins and ends in a text, as a whole word."""
    begin = text.find(form)
    while begin >= 0:
        end = begin + len(form)
        if not are_one_word(text[max(0, begin - 1) : begin], form) and not are_one_word(form, text[end : end + 1]):
            yield begin, end
        begin = text.find(form, begin + 1)
