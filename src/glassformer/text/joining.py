"""Sentences side by side in one line: with a space between them, or without one, as their scripts have it."""

import re
from collections.abc import Sequence

DENSE = "\u3000-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff"
"""Characters of Chinese and Japanese, which put no space between sentences, as the inside of a character class."""
_DENSE = re.compile(f"[{DENSE}]")
_OTHERS = re.compile(f"[^\\s{DENSE}]+")
_APART = re.compile(f"[{DENSE}] (?=[{DENSE}])")


def is_dense(text: str) -> bool:
    """Return whether a text is Chinese or Japanese, whose sentences have no space between them.

    Words of other scripts in it count as much as one character. It isn't if its words, or a good part of its phrases,
    are written with spaces between them.

    >>> is_dense("他来了。"), is_dense("He came."), is_dense("他 来 了 。")
    (True, False, False)
    """
    if text.isascii():
        return False
    dense = len(_DENSE.findall(text))
    return dense > len(_OTHERS.findall(text)) and 4 * len(_APART.findall(text)) < dense


def join_sentences(texts: Sequence[str]) -> str:
    """Return sentences as one line: a space comes between two of them unless both are Chinese or Japanese.

    >>> join_sentences(["It rained. ", "It poured."]), join_sentences(["下雨了。", "下大雨了。"])
    ('It rained. It poured.', '下雨了。下大雨了。')
    """
    joined, before = "", False
    for text in texts:
        stripped = text.strip()
        dense = is_dense(stripped)
        joined += ("" if not joined or (before and dense) else " ") + stripped
        before = dense
    return joined
