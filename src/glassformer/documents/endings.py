"""Kinds of documents by the endings of their names. Loads none of their readers: every command looks at it."""

from pathlib import Path

XML = (".xliff", ".xlf", ".tmx")
"""Documents of XML, in which the tags of a text are given as XML."""
PAGES = (".html", ".htm")
"""Web pages."""
OTHERS = (".po", ".pot", ".srt", ".json", *PAGES)
"""Documents in which the tags of a text are given as HTML."""
ENDINGS = (*XML, *OTHERS)


def is_document(path: str | Path) -> bool:
    """Return whether a file is a document by the ending of its name.

    >>> is_document("a.XLIFF"), is_document("a.txt")
    (True, False)
    """
    return Path(path).suffix.lower() in ENDINGS


def is_page(path: str | Path) -> bool:
    """Return whether a file is a web page by the ending of its name."""
    return Path(path).suffix.lower() in PAGES


def has_html(path: str | Path) -> bool:
    """Return whether tags in a document's texts are given as HTML, and not as XML, as in XLIFF and TMX."""
    return Path(path).suffix.lower() not in XML
