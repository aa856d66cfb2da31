"""Cues of WebVTT subtitles (.vtt): each is translated as one text, and breaks into as many lines as before."""

import re
from collections.abc import Iterator
from html import escape

from glassformer.documents.subtitles import break_lines
from glassformer.documents.tags import TAG_OF_CUE, TIME_OF_CUE, escaped_as_xml
from glassformer.documents.units import Edit, Unit, bytes_before, letters_in, text_of
from glassformer.errors import DataError
from glassformer.markup.scan import decode_html

MOST_AROUND = 20
"""Most tags and dashes before a text that are looked at: each is a search through the text."""
_SIGNATURE = re.compile(r"\ufeff?WEBVTT(?!\S)")
_LINE = re.compile(r"[^\r\n]+(?:\r\n?|\n|\Z)|\r\n?|\n")
_TIME = r"(?:\d+:)?\d\d:\d\d\.\d{3}"
_TIMES = re.compile(rf"[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}(?!\d)")
_MARKS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_REFERENCES = ("&nbsp;", "&lrm;", "&rlm;")
"""Hold references that may stand around a text, as marks of a direction may as characters."""
_BLANK = rf"[\s{_MARKS}]|{'|'.join(_REFERENCES)}"
_DASH = re.compile(rf"(?:<[^<>]*>|{_BLANK})*[-–—]")
"""Match the beginning of a line that a dash begins."""
_VOICE = re.compile(r"(?=<v[\s.>])")
_BEFORE = re.compile(rf"<(?P<name>\w*+)[^<>]*>|[-–—]+|(?:{_BLANK})+")
"""Match what may stand before a text."""
_END = re.compile(r"</(?P<name>\w++)[^<>]*>\Z")
_END_OF_LINE = re.compile(r"\r\n?|\n")


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the texts of the cues, a text for each voice; where each line begins with a dash, for each line."""
    text = text_of(content, name)
    if _SIGNATURE.match(text) is None:
        raise DataError(f"{name} doesn't begin with WEBVTT, as .vtt files do: is it of another kind?")
    cues = list(_cues(text))
    if not cues and "-->" in text:
        raise DataError(f"{name} has no cue with a text after times such as 00:01.000 --> 00:02.000")
    places = bytes_before(text)
    return [unit for place, part in _parts(cues) for unit in _units(part, places(place))]


def _cues(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of each cue's text, after the character at which they begin.

    They end at an empty line, or at the times of the next cue.
    """
    begin, lines, place = 0, list[str](), 0
    is_text = False
    for found in _LINE.finditer(text):
        line, place = found[0], found.end()
        if "-->" in line or not line.strip("\r\n"):
            if lines:
                yield begin, lines
            is_text, begin, lines = _TIMES.match(line) is not None, place, []
        elif is_text:
            lines.append(line)
    if lines:
        yield begin, lines


def _parts(cues: list[tuple[int, list[str]]]) -> Iterator[tuple[int, str]]:
    """Yield each text that is translated by itself, after the character at which it begins."""
    for place, lines in cues:
        texts = lines if all(map(_DASH.match, lines)) else ["".join(lines)]
        for part in (part for text in texts for part in _VOICE.split(text)):
            yield place, part
            place += len(part)


def _units(text: str, start: int) -> list[Unit]:
    """Return the unit of a text that begins at this byte, without what stands around it; none without letters."""
    before, body = _without_ends(text)
    if not letters_in(decode_html(TAG_OF_CUE.sub("", body))):
        return []
    start += len(before.encode())
    end, newline = start + len(body.encode()), (_END_OF_LINE.search(body) or "\n")[0]
    lines = [line.strip() for line in _END_OF_LINE.split(body) if decode_html(line).strip()]
    source = " ".join(lines)
    has_tags = TAG_OF_CUE.search(source) is not None
    xml, text_of_xml = escaped_as_xml(source)

    def place(translation: str) -> list[Edit]:
        written = text_of_xml(translation) if has_tags else escape(translation, quote=False)
        times = iter(TIME_OF_CUE.findall(source))  # they stand where their words went, and in their order
        written = TIME_OF_CUE.sub(lambda _: next(times), written)
        return [Edit(start, end, newline.join(break_lines(written, len(lines))).encode())]

    return [Unit(xml if has_tags else decode_html(source), place, has_tags=has_tags)]


def _without_ends(text: str) -> tuple[str, str]:
    """Return what stands before a text, such as a voice and a dash, and the text without what is around it."""
    before = ""
    for _ in range(MOST_AROUND):
        text = _without_blanks(text)
        if (end := _END.search(text)) and f"<{end['name']}" not in text:
            text = _without_blanks(text[: end.start()])  # what it ends began in another text
        found = _BEFORE.match(text)
        if found is None:
            break
        rest = text[found.end() :]
        if ending := found["name"] and f"</{found['name']}>":
            inner = rest.removesuffix(ending)
            if ending in inner or (inner != rest and f"<{found['name']}" in inner):
                break
            rest = inner
        before, text = before + found[0], rest
    return before, text


def _without_blanks(text: str) -> str:
    """Return a text without white space and marks of a direction at its end."""
    text = text.rstrip().rstrip(_MARKS)
    for reference in _REFERENCES:
        text = text.removesuffix(reference)
    return text.rstrip()
