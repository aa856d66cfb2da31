"""The texts of documents, read by their kind. Loads no torch: the server reads them too."""

import re
from collections.abc import Callable, Mapping
from functools import partial

from glassformer.documents import pages, po, strings, subtitles, tmx, webvtt, xliff
from glassformer.documents.endings import DocumentKind
from glassformer.documents.units import Unit
from glassformer.generation.segments.sentences import Segments, segments_of

READERS: Mapping[DocumentKind, Callable[[bytes, str], list[Unit]]] = {
    "xliff": xliff.read_units,
    "po": po.read_units,
    "srt": subtitles.read_units,
    "vtt": webvtt.read_units,
    "json": strings.read_units,
    "html": pages.read_units,
}
"""The readers of documents, but that of TMX, which has to know the languages too."""
LARGEST = 1 << 26
"""Most bytes of a document, 64 MiB: its elements take many times its size."""


def read_units(content: bytes, kind: DocumentKind, name: str, languages: tuple[str, str] | None) -> list[Unit]:
    """Return the units of a document; DataError, which calls it by its name, where it can't be read."""
    reader = partial(tmx.read_units, languages=languages) if kind == "tmx" else READERS[kind]
    return reader(content, name)


def lines_of(text: str) -> Segments:
    """Return the lines of a unit's text, without the white space around them and between them, and that white space."""
    return segments_of(re.split(r"(?<=\n)", text))
