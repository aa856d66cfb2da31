"""The texts of documents, read by the ending of their names. Loads no torch: the server reads them too."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from glassformer.documents import pages, po, strings, subtitles, tmx, xliff
from glassformer.documents.endings import ENDINGS
from glassformer.documents.units import Unit
from glassformer.errors import DataError
from glassformer.generation.segments.sentences import Segments, segments_of

READERS: Mapping[str, Callable[[bytes, str], list[Unit]]] = {
    ".xliff": xliff.read_units,
    ".xlf": xliff.read_units,
    ".po": po.read_units,
    ".pot": po.read_units,
    ".srt": subtitles.read_units,
    ".json": strings.read_units,
    ".html": pages.read_units,
    ".htm": pages.read_units,
}
"""The readers of documents by the ending of their names; that of .tmx has to know the languages too."""
LARGEST = 1 << 26
"""Most bytes of a document, 64 MiB: its elements take many times its size."""


def read_units(content: bytes, path: Path, languages: tuple[str, str] | None) -> list[Unit]:
    """Return the units of a document; DataError where it is none, or can't be read."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError(f"{path} must be a document that ends with one of {', '.join(ENDINGS)}")
    return read_kind(content, ending, str(path), languages)


def read_kind(content: bytes, ending: str, name: str, languages: tuple[str, str] | None) -> list[Unit]:
    """Return the units of a document of the kind whose names have this ending; `name` is what its errors call it."""
    reader = partial(tmx.read_units, languages=languages) if ending == ".tmx" else READERS[ending]
    return reader(content, name)


def lines_of(text: str) -> Segments:
    """Return the lines of a unit's text, without the white space around them and between them, and that white space."""
    return segments_of(re.split(r"(?<=\n)", text))
