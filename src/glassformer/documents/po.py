"""Units of gettext's PO files: empty strings are filled; comments, flags and order stay."""

import re
from dataclasses import dataclass, field

from glassformer.documents.tags import as_html, has_html_tags
from glassformer.documents.units import Edit, Unit, bytes_before, letters_in, text_of
from glassformer.errors import DataError
from glassformer.pairs.memories import CHARSET

_FIELD = re.compile(r'\ufeff?[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)[ \t]*(?:\r?\n[ \t]*)?(?=")')
_STRING = re.compile(r'[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*\r?\n?')
_ESCAPE = re.compile(r"((?:\\(?:x[0-9A-Fa-f]{1,2}|[0-7]{1,3}))+)|\\(.)")
_CODE = re.compile(r"\\(?:x([0-9A-Fa-f]+)|([0-7]+))")
_UNICODE = ("utf-8", "utf8", "charset", "us-ascii", "ascii", "ansi_x3.4-1968")
"""Character sets that are UTF-8 or a part of it; CHARSET stands in templates."""
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_WRITTEN = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass
class _Entry:
    texts: dict[str, str] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The characters of each field's strings, without the end of the last line."""


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the units of a PO file; of one with a plural, each form is a unit. DataError where it can't be read.

    A form is translated from the singular where it is the first of several, else from the plural.
    """
    try:
        text = text_of(content, name)
    except DataError:
        _check_charset(content.decode("latin-1"), name)
        raise
    if not re.search(r"^\ufeff?[ \t]*msgid\b", text, re.MULTILINE):
        raise DataError(f"{name} has no msgid: is it a PO file?")
    units, newline = list[Unit](), "\r\n" if "\r\n" in text else "\n"
    places = bytes_before(text)
    for entry in _entries(text, name):
        if not entry.texts["msgid"] and "msgctxt" not in entry.texts:
            _check_charset(entry.texts.get("msgstr", ""), name)
        for key, (start, end) in entry.spans.items():
            if not key.startswith("msgstr"):
                continue
            is_plural = "msgid_plural" in entry.texts and (key != "msgstr[0]" or "msgstr[1]" not in entry.texts)
            source = entry.texts["msgid_plural" if is_plural else "msgid"]
            if letters_in(source):  # the header's is empty
                span = (places(start), places(end))
                units.append(_unit(source, span, newline, is_translated=bool(entry.texts[key])))
    return units


def _check_charset(header: str, name: str) -> None:
    """Raise DataError where the header says that the file isn't UTF-8, which what is written into it is."""
    found = CHARSET.search(header)
    if found and found[1].lower() not in _UNICODE:
        raise DataError(f"{name} says that it is in {found[1]}: convert it with msgconv -t utf-8")


def _unit(source: str, span: tuple[int, int], newline: str, *, is_translated: bool) -> Unit:
    """Return the unit whose translation is written at these bytes, on several lines where it has several."""
    has_tags = has_html_tags(source)
    html, written = as_html(source)

    def place(translation: str) -> list[Edit]:
        translation = written(translation) if has_tags else translation
        lines = [f"{line}\n" for line in translation.split("\n")]
        lines[-1] = lines[-1][:-1]
        strings = [f'"{_escaped(line)}"' for line in lines if line] or ['""']
        return [Edit(*span, newline.join(strings if len(strings) == 1 else ['""', *strings]).encode())]

    return Unit(html if has_tags else source, place, is_translated, has_tags)


def _entries(text: str, name: str) -> list[_Entry]:
    """Return the entries of a file, without those that are obsolete (#~)."""
    entries, place = list[_Entry](), 0
    entry = _Entry()
    while place < len(text):
        found = _FIELD.match(text, place)
        if found is None:
            end = text.find("\n", place) + 1 or len(text)
            line = text[place:end].removeprefix("\ufeff").strip()
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
    """Return the text of a string: codes in a row are bytes, as C has them."""

    def plain(found: re.Match[str]) -> str:
        if found[2]:
            return _PLAIN.get(found[2], found[2])
        codes = [int(one[1], 16) if one[1] else int(one[2], 8) & 0xFF for one in _CODE.finditer(found[1])]
        return bytes(codes).decode(errors="replace")

    return _ESCAPE.sub(plain, text)


def _escaped(text: str) -> str:
    return "".join(_WRITTEN.get(char, char) for char in text)
