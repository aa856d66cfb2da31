"""Words of a line, by script: letters in a row are a word, or each is one where words have no spaces between them."""

import re

UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao; Tibetan; Burmese; Khmer
    "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\uac00-\ud7af\uff66-\uff9d"  # kana, Hangul
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Scripts whose words stand side by side; Hangul is among them because particles follow its words without a space."""
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0dff"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Marks that belong to a word, which Python's \\w leaves out."""
_SPACED = re.compile(rf"(?:[^\W{UNSPACED}]|[{_MARKS}])")
_WORD = re.compile(rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[{_MARKS}])+|[^\w\s]")
_UNSPACED = re.compile(f"[{UNSPACED}]")


def words_of(line: str) -> list[tuple[str, int, int]]:
    """Return the words of a line, each with where it begins and ends; punctuation marks are words too.

    >>> words_of("A dog, 狗!")
    [('A', 0, 1), ('dog', 2, 5), (',', 5, 6), ('狗', 7, 8), ('!', 8, 9)]
    """
    return [(match[0], match.start(), match.end()) for match in _WORD.finditer(line)]


def is_spaced(character: str) -> bool:
    """Return whether the character is of a word that spaces part from other words."""
    return _SPACED.match(character) is not None


def is_unspaced(character: str) -> bool:
    """Return whether the character is a letter of a script whose words stand side by side."""
    return _UNSPACED.match(character) is not None


def are_one_word(left: str, right: str) -> bool:
    """Return whether the last character of `left` and the first of `right` belong to one word if they meet."""
    return bool(left and right) and is_spaced(left[-1]) and is_spaced(right[0])


def count_of(form: str, text: str) -> int:
    """Return how often a form stands in a text, as whole words where spaces part words.

    >>> count_of("Hund", "Hund, Hunde"), count_of("狗", "小狗和狗")
    (1, 2)
    """
    count, begin = 0, text.find(form)
    while begin >= 0:
        end = begin + len(form)
        is_whole = not are_one_word(text[:begin], form) and not are_one_word(form, text[end:])
        count += is_whole
        begin = text.find(form, end if is_whole else begin + 1)
    return count
