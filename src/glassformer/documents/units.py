"""Texts of a document that are to be translated, and the bytes that hold their translations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from glassformer.errors import DataError
from glassformer.pairs.lines import advice_on_encoding


@dataclass(frozen=True)
class Edit:
    """New bytes for those from `start` to `end` of a file."""

    start: int
    end: int
    content: bytes


@dataclass(frozen=True)
class Unit:
    """A text of a document, and the edits that put its translation there."""

    source: str
    place: Callable[[str], list[Edit]]
    """Return the edits for a translation."""
    is_translated: bool = False
    """True where it has a translation already."""
    has_tags: bool = False
    """True where tags stand in the text; then `source` is the text with them."""


def apply(content: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the content with these edits, which don't overlap.

    >>> apply(b"a b c", [Edit(4, 5, b"C"), Edit(0, 1, b"A")])
    b'A b C'
    """
    parts, end = list[bytes](), 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        assert edit.start >= end, "two edits overlap"
        parts += [content[end : edit.start], edit.content]
        end = edit.end
    return b"".join([*parts, content[end:]])


def text_of(content: bytes, name: str) -> str:
    """Return a file's text, which is UTF-8; DataError where it isn't."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 (byte {error.start:,}): {advice_on_encoding(error)}") from None


def letters_in(text: str) -> bool:
    """Return whether a text has anything to translate."""
    return any(char.isalpha() for char in text)


def bytes_before(text: str) -> Callable[[int], int]:
    """Return a function that says how many bytes stand before a character; it is called in order."""
    characters = size = 0

    def before(place: int) -> int:
        nonlocal characters, size
        size += len(text[characters:place].encode())
        characters = place
        return size

    return before
