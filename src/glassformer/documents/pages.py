"""Web pages (.html, .htm): the texts between block elements, each with the tags that stand inside it."""

import re
from collections.abc import Iterator, Sequence
from shlex import quote

from glassformer.documents.units import Edit, Unit, bytes_before, letters_in, text_of
from glassformer.errors import DataError
from glassformer.markup.scan import Part, attributes_of, decode_html, scan_html
from glassformer.markup.segments import RUN_OF_SPACES, SPACES, escape_text

_AROUND = SPACES + "\ufeff"
"""White space around a text, and the byte order mark of a file."""
_CHARSET = re.compile(r"\bcharset\s*=\s*[\"']?([^\s\"';]+)", re.IGNORECASE)
_UTF_8 = ("utf-8", "utf8")
_OTHER_LETTERS = ("iso-2022", "hz", "utf-7")
"""Encodings in which bytes of ASCII are other characters, by how their names begin."""


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the texts between block elements that have letters.

    A text without tags is read as text, and others as HTML. A page of ASCII that doesn't say that it is UTF-8 gets
    other characters as references, such as `&#252;`: browsers guess its encoding, and often not UTF-8.
    """
    try:
        text = text_of(content, name)
    except DataError:
        if (declared := _declared(scan_html(content.decode("latin-1")))) and declared not in _UTF_8:
            raise _other_encoding(name, declared) from None
        raise
    parts = scan_html(text)
    declared = "utf-8" if text.startswith("\ufeff") else _declared(parts)
    if declared and declared not in _UTF_8:
        if not text.isascii():
            raise DataError(f"{name} says that it is in {declared}, and is UTF-8: let it say utf-8")
        if declared.startswith(_OTHER_LETTERS):
            raise _other_encoding(name, declared)
    encoding = "utf-8" if declared in _UTF_8 or not text.isascii() else "ascii"
    places = bytes_before(text)
    return [_unit(run, places(place), encoding) for place, run in _runs(parts)]


def _other_encoding(name: str, declared: str) -> DataError:
    """Return the error for a page in another encoding, which it declares."""
    how = f"convert it with iconv -f {quote(declared)} -t utf-8, and let it say utf-8"
    return DataError(f"{name} says that it is in {declared}: {how}")


def _declared(parts: Sequence[Part]) -> str:
    """Return the encoding that a page declares in a `<meta>`, in lower case; "" for none."""
    for part in parts:
        if part.name != "meta":
            continue
        given = attributes_of(part.raw)
        is_type = given.get("http-equiv", "").lower() == "content-type"
        found = _CHARSET.search(given.get("content", "")) if is_type else None
        if charset := found[1] if found else given.get("charset", "").strip():
            return charset.lower()
    return ""


def _runs(parts: Sequence[Part]) -> Iterator[tuple[int, list[Part]]]:
    """Yield the parts between two block elements, where they have letters, with the character they begin at."""
    place, start, run = 0, 0, list[Part]()
    for part in [*parts, Part("block", "")]:
        if part.kind != "block":
            run.append(part)
        else:
            if any(one.kind == "text" and letters_in(decode_html(one.raw)) for one in run):
                yield start, run
            start, run = place + len(part.raw), []
        place += len(part.raw)


def _unit(parts: list[Part], start: int, encoding: str) -> Unit:
    """Return the unit of these parts, which begin at this byte, without the white space around them."""
    raw = "".join(part.raw for part in parts)
    inner = raw.strip(_AROUND)
    start += len(raw[: raw.index(inner)].encode())
    end = start + len(inner.encode())
    has_tags = any(part.kind != "text" for part in parts)

    def place(translation: str) -> list[Edit]:
        html = translation if has_tags else escape_text(translation)
        return [Edit(start, end, html.encode(encoding, "xmlcharrefreplace"))]

    return Unit(inner if has_tags else RUN_OF_SPACES.sub(" ", decode_html(inner)), place, has_tags=has_tags)
