"""Kinds of documents by the endings of their names. Loads none of their readers: every command looks at it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from glassformer.markup.scan import Format

DocumentKind = Literal["xliff", "tmx", "po", "srt", "vtt", "json", "html"]

ENDINGS_OF: Mapping[DocumentKind, tuple[str, ...]] = {
    "xliff": (".xliff", ".xlf"),
    "tmx": (".tmx",),
    "po": (".po", ".pot"),
    "srt": (".srt",),
    "vtt": (".vtt",),
    "json": (".json",),
    "html": (".html", ".htm"),
}
"""The endings of the names of each kind, the usual one first."""
ENDINGS = tuple(ending for endings in ENDINGS_OF.values() for ending in endings)


def kind_of(path: str | Path) -> DocumentKind | None:
    """Return the kind of document that a file is, by the ending of its name; None for no document.

    >>> kind_of("a.XLF"), kind_of("a.txt")
    ('xliff', None)
    """
    ending = Path(path).suffix.lower()
    return next((kind for kind, endings in ENDINGS_OF.items() if ending in endings), None)


def tags_of(kind: DocumentKind) -> "Format":
    """Return how the tags of a document's texts are given: as XML in XLIFF and TMX, which are XML, and in WebVTT."""
    return "xml" if kind in ("xliff", "tmx", "vtt") else "html"
