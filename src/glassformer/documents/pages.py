"""Web pages (.html, .htm): the texts between block elements, each with the tags that stand inside it."""

import re
from collections.abc import Iterator

from glassformer.documents.units import Edit, Unit, bytes_before, letters_in, text_of
from glassformer.markup.scan import Part, decode_html, scan_html
from glassformer.markup.segments import SPACES, escape_text

_AROUND = SPACES + "\ufeff"
"""White space around a text, and the byte order mark of a file."""
_CHARSET = re.compile(r"<meta\b[^>]*\bcharset\s*=\s*[\"']?\s*([^\s\"'/>;]+)", re.IGNORECASE)
_DECLARED_WITHIN = 1024
"""Characters in which a page declares its encoding: browsers look no further (HTML, section 13.2.3.2)."""
_UTF_8 = ("utf-8", "utf8")
_SPACES = re.compile(f"[{SPACES}]+")


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the texts between block elements that have letters.

    A text without tags is read as text, and others as HTML. A page of ASCII that doesn't say that it is UTF-8 gets
    other characters as references, such as `&#252;`: browsers guess its encoding, and often not UTF-8.
    """
    text = text_of(content, name)
    encoding = "ascii" if text.isascii() and not _says_utf_8(text) else "utf-8"
    places = bytes_before(text)
    return [_unit(parts, places(place), encoding) for place, parts in _runs(text)]


def _says_utf_8(text: str) -> bool:
    declared = _CHARSET.search(text, 0, _DECLARED_WITHIN)
    return declared is not None and declared[1].lower() in _UTF_8


def _runs(text: str) -> Iterator[tuple[int, list[Part]]]:
    """Yield the parts between two block elements, where they have letters, with the character they begin at.

    White space around them is left out.
    """
    place, start, run = 0, 0, list[Part]()
    for part in [*scan_html(text), Part("block", "")]:
        if part.kind != "block":
            run.append(part)
        else:
            if any(one.kind == "text" and letters_in(decode_html(one.raw)) for one in run):
                yield start, run
            start, run = place + len(part.raw), []
        place += len(part.raw)


def _unit(parts: list[Part], start: int, encoding: str) -> Unit:
    """Return the unit of these parts, which begin at this byte."""
    raw = "".join(part.raw for part in parts)
    inner = raw.strip(_AROUND)
    start += len(raw[: raw.index(inner)].encode())
    end = start + len(inner.encode())
    has_tags = any(part.kind != "text" for part in parts)

    def place(translation: str) -> list[Edit]:
        html = translation if has_tags else escape_text(translation)
        return [Edit(start, end, html.encode(encoding, "xmlcharrefreplace"))]

    return Unit(inner if has_tags else _SPACES.sub(" ", decode_html(inner)), place, has_tags=has_tags)
