"""Cues of SubRip subtitles (.srt): each is translated as one text, and breaks into as many lines as before."""

import re
from collections.abc import Iterator
from itertools import accumulate

from glassformer.documents.tags import as_html
from glassformer.documents.units import Edit, Unit, bytes_before, letters_in, text_of
from glassformer.errors import DataError

_TIME = r"\d+:\d\d:\d\d[,.]\d{1,3}"
_HEAD = re.compile(rf"^\ufeff?[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\n]*(?:\n|\Z)", re.MULTILINE)
_NUMBER = re.compile(r"^[ \t]*\d+[ \t]*\r?\n\Z", re.MULTILINE)
"""The number of a cue, at the end of the text before its times."""
_PARAGRAPH = re.compile(r"^(?:[^\n]*\S[^\n]*(?:\n|\Z))+", re.MULTILINE)
_WRAPPED = re.compile(
    r"((?:\{\\[^}\n]*\})*<(?P<tag>[ibu]|font)\b[^<>]*>)((?:(?!</?(?P=tag)\b).)*)</(?P=tag)>", re.DOTALL | re.IGNORECASE
)
_CODES = re.compile(r"(?:\{\\[^}\n]*\})*")
"""Match the codes at the beginning of a text."""
_PLAIN_CODES = re.compile(r"(?:\{\\(?![bius]1\})[^}\n]*\})*")
"""Match the codes at the beginning of a text, up to one that begins a style."""
_BEFORE_DASH = re.compile(r"(?:(?:<[^<>\n]*>|\{\\[^}\n]*\}|[ \t])*(?=[-–—]))?")
"""Match the tags and codes at the beginning of a text, where a dash follows them."""
_BEGINS = re.compile(r"<(\w+)|\{\\([bius])1\}")
"""Match a tag, or the code of a style, that another one ends."""
_DASHES = re.compile(r"[ \t]*[-–—]*[ \t]*")
_TAG = re.compile(r"<[^<>\n]*>|\{[^{}\n]*\}")
_CODE = re.compile(r'\{[^{}\n"]*\}')
_BREAK = re.compile(r"[^\S\xa0\u202f]+(?![^<>]*>)(?![^{}]*\})")
"""White space at which a line may break: outside of tags and codes, and no no-break space, as French has before ?."""
_STYLE = re.compile(r"\{\\([bius])([01])\}")
"""A code that begins a style, such as {\\i1}, or ends it."""
_WRITTEN_CODE = re.compile(r'<(?:wbr|/?style-[bius]) title="(\{[^{}\n"]*\})">')
"""A code in braces as HTML: a style is an element, others stand between words."""


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the texts of the cues; where each line begins with a dash, as speakers have it, each line is one."""
    text = text_of(content, name)
    heads = list(_HEAD.finditer(text))
    if not heads:
        raise DataError(f"{name} has no cue such as 00:00:01,000 --> 00:00:02,000")
    places = bytes_before(text)
    return [unit for place, part in _parts(text, heads) for unit in _units(part, places(place))]


def _parts(text: str, heads: list[re.Match[str]]) -> Iterator[tuple[int, str]]:
    """Yield the texts of the cues, each with the character at which it begins.

    A cue reaches to the next one, whether there is an empty line before that or not; text between empty lines is a
    text of its own.
    """
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        body = text[head.end() : end]
        if end < len(text):
            body = _NUMBER.sub("", body)
        for found in _PARAGRAPH.finditer(body):
            held = found[0].rstrip()
            place = head.end() + found.start()
            lines = held.splitlines(keepends=True)
            have_dashes = all(_parted(_BEFORE_DASH, line)[1].lstrip().startswith(("-", "–", "—")) for line in lines)
            parts = lines if have_dashes else [held]
            for part in parts:
                yield place, part
                place += len(part)


def _parted(begin: re.Pattern[str], text: str) -> tuple[str, str]:
    """Return what a pattern that matches any text takes of its beginning, and the rest."""
    found = begin.match(text)
    assert found is not None
    return found[0], text[found.end() :]


def _without_begin(text: str) -> tuple[str, str]:
    """Return the tags and codes at the beginning of a text that stand around it or end later, and the rest of it."""
    for begin in (_BEFORE_DASH, _CODES, _PLAIN_CODES):
        before, body = _parted(begin, text)
        ends = [f"</{tag}>".lower() if tag else f"{{\\{style}0}}" for tag, style in _BEGINS.findall(before)]
        if before and not any(end in body.lower().removesuffix(end) for end in ends):
            return before, body
    return "", text


def _units(text: str, start: int) -> list[Unit]:
    """Return the unit of a text that begins at this byte, without the codes around it; none without letters."""
    text = text.rstrip()
    found = _WRAPPED.fullmatch(text)
    before, body = (found[1], found[3]) if found else _without_begin(text)
    dash, body = _parted(_DASHES, body)
    start += len((before + dash).encode())
    if not letters_in(_TAG.sub("", body)):
        return []
    end, newline = start + len(body.encode()), "\r\n" if "\r\n" in body else "\n"
    lines = body.splitlines()
    source, has_tags = " ".join(line.strip() for line in lines), bool(_TAG.search(body))
    html, text_of_html = as_html(source)

    def place(translation: str) -> list[Edit]:
        if has_tags:
            translation = _WRITTEN_CODE.sub(r"\1", text_of_html(translation))
        return [Edit(start, end, newline.join(break_lines(translation, len(lines))).encode())]

    return [Unit(_CODE.sub(_as_tag, html) if has_tags else source, place, has_tags=has_tags)]


def _as_tag(code: re.Match[str]) -> str:
    """Return a code in braces as a tag."""
    style = _STYLE.fullmatch(code[0])
    name = "wbr" if style is None else f"style-{style[1]}" if style[2] == "1" else f"/style-{style[1]}"
    return f'<{name} title="{code[0]}">'


def break_lines(text: str, count: int) -> list[str]:
    """Return a text in at most `count` lines of about equal length, broken at spaces outside of tags.

    >>> break_lines("one two three four", 2)
    ['one two', 'three four']
    """
    words, lines = _BREAK.split(text.strip()), list[str]()
    while count > 1 and len(words) > 1:
        ends = list(accumulate(len(word) + 1 for word in words[:-1]))
        best = min(range(len(ends)), key=lambda n: abs(ends[n] - 1 - (ends[-1] + len(words[-1])) / count))
        lines.append(" ".join(words[: best + 1]))
        words, count = words[best + 1 :], count - 1
    return [*lines, " ".join(words)]
