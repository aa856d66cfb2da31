"""Units of gettext's PO files: empty strings are filled; comments, flags and order stay."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from glassformer.documents.units import Edit, Unit, letters_in, text_of
from glassformer.errors import DataError

_FIELD = re.compile(r'[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)[ \t]*(?=")')
_STRING = re.compile(r'[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*\r?\n?')
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)")
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_WRITTEN = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass
class _Entry:
    texts: dict[str, str] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The characters of each field's strings, without the end of the last line."""


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the units of a PO file; of one with a plural, each form is a unit. DataError where it can't be read."""
    text = text_of(content, name)
    if not re.search(r"^\s*msgid\b", text, re.MULTILINE):
        raise DataError(f"{name} has no msgid: is it a PO file?")
    units, newline = list[Unit](), "\r\n" if "\r\n" in text else "\n"
    places = _bytes_before(text)
    for entry in _entries(text, name):
        for key, (start, end) in entry.spans.items():
            if not key.startswith("msgstr"):
                continue
            is_plural = key not in ("msgstr", "msgstr[0]") and "msgid_plural" in entry.texts
            source = entry.texts["msgid_plural" if is_plural else "msgid"]
            if letters_in(source):  # the header's is empty
                span = (places(start), places(end))
                units.append(Unit(source, _placing(span, newline), bool(entry.texts[key])))
    return units


def _bytes_before(text: str) -> Callable[[int], int]:
    """Return a function that says how many bytes stand before a character; it is called in order."""
    characters = size = 0

    def before(place: int) -> int:
        nonlocal characters, size
        size += len(text[characters:place].encode())
        characters = place
        return size

    return before


def _placing(span: tuple[int, int], newline: str) -> Callable[[str], list[Edit]]:
    """Return what writes a translation at these bytes, on several lines where it has several."""

    def place(translation: str) -> list[Edit]:
        lines = translation.splitlines(keepends=True) or [""]
        written = [f'"{_escaped(line)}"' for line in (lines if len(lines) == 1 else ["", *lines])]
        return [Edit(*span, newline.join(written).encode())]

    return place


def _entries(text: str, name: str) -> list[_Entry]:
    """Return the entries of a file, without those that are obsolete (#~)."""
    entries, place = list[_Entry](), 0
    entry = _Entry()
    while place < len(text):
        found = _FIELD.match(text, place)
        if found is None:
            end = text.find("\n", place) + 1 or len(text)
            line = text[place:end].strip().removeprefix("\ufeff")
            if line and not line.startswith("#"):
                number = text.count("\n", 0, place) + 1
                raise DataError(f"{name}, line {number}: it is no line of a PO file")
            if line.startswith("#") and "msgid" in entry.texts:
                entry = _Entry()
            place = end
            continue
        key = found[1]
        if key in ("msgid", "msgctxt") and "msgid" in entry.texts:
            entry = _Entry()
        if key in ("msgstr", "msgstr[0]"):
            if "msgid" not in entry.texts:
                raise DataError(f"{name}, line {text.count(chr(10), 0, place) + 1}: msgstr without msgid")
            entries.append(entry)
        place, parts = found.end(), list[str]()
        start, end = text.index('"', found.end()), found.end()
        while string := _STRING.match(text, place):
            parts.append(_unescaped(string[1]))
            place, end = string.end(), text.rindex('"', place, string.end()) + 1
        if not parts:
            raise DataError(f"{name}, line {text.count(chr(10), 0, start) + 1}: a string doesn't end")
        entry.texts[key], entry.spans[key] = "".join(parts), (start, end)
    return entries


def _unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code[0] in "01234567" else _PLAIN.get(code, code)

    return _ESCAPE.sub(plain, text)


def _escaped(text: str) -> str:
    return "".join(_WRITTEN.get(char, char) for char in text)
