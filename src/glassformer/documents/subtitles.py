"""Cues of SubRip subtitles (.srt): each is translated as one text, and breaks into as many lines as before."""

import re

from glassformer.documents.units import Edit, Unit, letters_in, text_of
from glassformer.errors import DataError

_TIME = r"\d+:\d\d:\d\d[,.]\d{1,3}"
_CUE = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\n]*\n((?:[^\n]*\S[^\n]*(?:\n|\Z))*)", re.MULTILINE)
_WRAPPED = re.compile(
    r"((?:\{\\[^}\n]*\})*(?:<(?P<tag>[ibu]|font\b[^>]*)>)?)(.*?)((?(tag)</(?:[ibu]|font)>))", re.DOTALL
)
_TAG = re.compile(r"<[^>\n]*>|\{[^}\n]*\}")


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the texts of the cues; where each line begins with a dash, as speakers have it, each line is one."""
    text = text_of(content, name)
    cues = list(_CUE.finditer(text))
    if not cues:
        raise DataError(f"{name} has no cue such as 00:00:01,000 --> 00:00:02,000")
    units, done, size = list[Unit](), 0, 0
    for cue in cues:
        held = cue[1].rstrip()
        lines = held.splitlines(keepends=True)
        parts = lines if all(line.lstrip().startswith(("-", "–", "—")) for line in lines) else [held]
        place = cue.start(1)
        for part in parts:
            size += len(text[done:place].encode())
            units += _units(part, size)
            done, place = place, place + len(part)
    return units


def _units(text: str, start: int) -> list[Unit]:
    """Return the unit of a text that begins at this byte, without the codes around it; none without letters."""
    found = _WRAPPED.fullmatch(text.rstrip())
    before, body = (found[1], found[3]) if found else ("", text.rstrip())
    dash = re.match(r"[ \t]*[-–—]*[ \t]*", body)
    assert dash is not None
    start += len((before + dash[0]).encode())
    body = body[dash.end() :]
    if not letters_in(_TAG.sub("", body)):
        return []
    end, newline = start + len(body.encode()), "\r\n" if "\r\n" in body else "\n"
    lines = body.splitlines()

    def place(translation: str) -> list[Edit]:
        return [Edit(start, end, newline.join(break_lines(translation, len(lines))).encode())]

    return [Unit(" ".join(line.strip() for line in lines), place, has_tags=bool(_TAG.search(body)))]


def break_lines(text: str, count: int) -> list[str]:
    """Return a text in at most `count` lines of about equal length, broken at spaces.

    >>> break_lines("one two three four", 2)
    ['one two', 'three four']
    """
    lines = []
    text = " ".join(text.split())
    while count > 1 and " " in text:
        spaces = [place for place, char in enumerate(text) if char == " "]
        best = min(spaces, key=lambda place: abs(place - len(text) / count))
        lines.append(text[:best])
        text, count = text[best + 1 :], count - 1
    return [*lines, text]
