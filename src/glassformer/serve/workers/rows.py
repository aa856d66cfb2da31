"""The rows of a worker's answer to `TranslateTagged`, put into the documents that they are of. Loads no torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glassformer.alignment.links import Link
from glassformer.markup.place import place_tags
from glassformer.markup.segments import Document, Segment
from glassformer.text.words import Word

Row = Mapping[str, Any]


def put_in_documents(documents: Sequence[Document], rows: Iterable[Row]) -> list[str]:
    """Return the documents with the translations of their segments, a row each."""
    coming = iter(rows)
    return [document.joined([tagged(one, next(coming)) for one in document.segments]) for document in documents]


def tagged(segment: Segment, row: Row) -> str:
    """Return the translation of a segment with its tags."""
    words = [[Word("", *ends) for ends in row[side]] for side in ("source", "target")]
    return place_tags(segment, words[0], row["text"], words[1], [Link(*link) for link in row["links"]])
