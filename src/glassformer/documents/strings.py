"""Strings of a JSON file, nested as deeply as they may be: all but the keys."""

import json
import re

from glassformer.decoding import decode_anything, decode_strictly
from glassformer.documents.tags import as_html, has_html_tags
from glassformer.documents.units import Edit, Unit, bytes_before, letters_in, text_of
from glassformer.errors import DataError
from glassformer.text.units import HALF

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
"""A string, and the colon that says that it is a key."""


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the strings of a JSON file that hold letters; DataError where it isn't JSON."""
    text = text_of(content, name)
    try:
        decode_strictly(content.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {error}") from None
    is_ascii = text.isascii() and "\\u" in text
    units, places = list[Unit](), bytes_before(text)
    for found in _STRING.finditer(text):
        if found[2] is not None:
            continue
        source = decode_anything(f'"{found[1]}"'.encode())
        if letters_in(source) and not HALF.search(source):
            start = places(found.start())
            units.append(_unit(source, start, places(found.end()), is_ascii=is_ascii))
    return units


def _unit(source: str, start: int, end: int, *, is_ascii: bool) -> Unit:
    """Return the unit whose translation is written at these bytes."""
    has_tags = has_html_tags(source)
    html, written = as_html(source)

    def place(translation: str) -> list[Edit]:
        text = written(translation) if has_tags else translation
        return [Edit(start, end, json.dumps(text, ensure_ascii=is_ascii).encode())]

    return Unit(html if has_tags else source, place, has_tags=has_tags)
