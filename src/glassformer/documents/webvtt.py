"""Cues of WebVTT subtitles (.vtt): each is translated as one text, and breaks into as many lines as before."""

import re
from collections.abc import Iterator
from html import escape, unescape

from glassformer.documents.subtitles import break_lines
from glassformer.documents.tags import TAG_OF_CUE, escaped_as_xml
from glassformer.documents.units import Edit, Unit, bytes_before, letters_in, text_of
from glassformer.errors import DataError

MOST_AROUND = 20
"""Most tags and dashes before a text that are looked at: each is a search through the text."""
_SIGNATURE = re.compile(r"\ufeff?WEBVTT(?!\S)")
_TIME = r"(?:\d+:)?\d\d:\d\d\.\d{3}"
_CUE = re.compile(
    rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\n]*\n(?P<text>(?:(?![^\n]*-->)[^\n]*\S[^\n]*(?:\n|\Z))+)", re.MULTILINE
)
"""Match a cue: its times and settings, and the lines up to an empty one or to the times of the next cue."""
_SPEAKER = re.compile(r"<v(?=[\s.>])|(?:<[^<>\n]*>|[ \t])*[-–—]")
"""Match the beginning of a line that a speaker begins: the tag of a voice, or a dash."""
_AROUND = re.compile(r"<(?P<name>\w*)[^<>]*>|[-–—]+|\s+")
"""Match a tag, a dash or white space at the beginning of a text."""
_END = re.compile(r"</(?P<name>\w+)[^<>]*>\Z")


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the texts of the cues; where each line begins with a voice or a dash, each line is one."""
    text = text_of(content, name)
    if _SIGNATURE.match(text) is None:
        raise DataError(f"{name} doesn't begin with WEBVTT, as .vtt files do: is it of another kind?")
    cues = list(_CUE.finditer(text))
    if not cues:
        raise DataError(f"{name} has no cue with a text after times such as 00:01.000 --> 00:02.000")
    places = bytes_before(text)
    return [unit for place, part in _parts(cues) for unit in _units(part, places(place))]


def _parts(cues: list[re.Match[str]]) -> Iterator[tuple[int, str]]:
    """Yield the texts of the cues, or each line of several speakers, with the character at which it begins."""
    for cue in cues:
        place = cue.start("text")
        lines = cue["text"].splitlines(keepends=True)
        for part in lines if all(map(_SPEAKER.match, lines)) else [cue["text"]]:
            yield place, part
            place += len(part)


def _units(text: str, start: int) -> list[Unit]:
    """Return the unit of a text that begins at this byte, without what stands around it; none without letters."""
    before, body = _without_ends(text)
    if not letters_in(unescape(TAG_OF_CUE.sub("", body))):
        return []
    start += len(before.encode())
    end, newline = start + len(body.encode()), "\r\n" if "\r\n" in body else "\n"
    lines = body.splitlines()
    source = " ".join(line.strip() for line in lines)
    has_tags = TAG_OF_CUE.search(source) is not None
    xml, text_of_xml = escaped_as_xml(source)

    def place(translation: str) -> list[Edit]:
        written = text_of_xml(translation) if has_tags else escape(translation, quote=False)
        return [Edit(start, end, newline.join(break_lines(written, len(lines))).encode())]

    return [Unit(xml if has_tags else unescape(source), place, has_tags=has_tags)]


def _without_ends(text: str) -> tuple[str, str]:
    """Return what stands before a text, such as a voice and a dash, and the text without the tags around it."""
    before, text = "", text.rstrip()
    for _ in range(MOST_AROUND):
        if (end := _END.search(text)) and f"<{end['name']}" not in text:
            text = text[: end.start()].rstrip()  # what it ends began on another line
        found = _AROUND.match(text)
        if found is None:
            break
        rest = text[found.end() :]
        if ending := found["name"] and f"</{found['name']}>":
            inner = rest.removesuffix(ending)
            if ending in inner or (inner != rest and f"<{found['name']}" in inner):
                break
            rest = inner.rstrip()
        before, text = before + found[0], rest
    return before, text
