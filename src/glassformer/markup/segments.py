"""Texts to translate, out of HTML and XML, each with the tags that must come back into its translation."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from glassformer.errors import DataError
from glassformer.generation.lexical.placeholders import FIRST_MARK, MOST_MARKS
from glassformer.markup.scan import Format, Part, decode_html, decode_xml, scan_html, scan_xml

SPACES = " \t\n\r\f\v\x1c\x1d\x1e\x1f\x85\u2028\u2029"
"""White space, of which the model reads any number as one space; the no-break space is not among it."""
RUN_OF_SPACES = re.compile(f"[{SPACES}]+")


@dataclass(eq=False)
class Element:
    """An element inside a segment, or what has no closing tag: then it is empty and `close` is "".

    `begin` and `end` are places in the segment's text.
    """

    open: str
    begin: int
    end: int = -1
    close: str = ""
    children: list["Element"] = field(default_factory=list)
    has_space: bool = False
    """True where spaces stood on both sides of an empty element."""


@dataclass(frozen=True)
class Segment:
    """A text to translate, with the elements that stand on its words."""

    text: str
    """Text that the model reads. A mark, a character of private use, stands for each part that stays as it is."""
    before: str
    """Source code before the text and after it."""
    after: str
    elements: list[Element]
    kept: dict[str, str]
    """Source code that each mark stands for."""


class Document:
    """A text in HTML or XML: segments to translate, and what stands between them.

    >>> document = Document("<p>One <b>two</b></p><!-- -->three", "html")
    >>> [segment.text for segment in document.segments]
    ['One two', 'three']
    >>> document.joined(["1 <b>2</b>", "3"])
    '<p>1 <b>2</b></p><!-- -->3'
    """

    def __init__(self, text: str, format: Format) -> None:
        """Take it apart; DataError for XML that isn't well-formed."""
        parts, decode = (scan_html(text), decode_html) if format == "html" else (scan_xml(text), decode_xml)
        self._pieces: list[str | Segment] = []
        run = list[Part]()
        for part in [*parts, Part("block", "")]:
            if part.kind != "block":
                run.append(part)
                continue
            self._pieces += [_segment(run, decode), part.raw]
            run = []

    @property
    def segments(self) -> list[Segment]:
        """The texts to translate."""
        return [piece for piece in self._pieces if isinstance(piece, Segment)]

    def joined(self, translations: Sequence[str]) -> str:
        """Return the document with these translations, as they are to be written, in place of its segments."""
        coming, joined = iter(translations), list[str]()
        for piece in self._pieces:
            joined += [piece] if isinstance(piece, str) else [piece.before, next(coming), piece.after]
        return "".join(joined)


def escape_text(text: str) -> str:
    """Return a text as HTML and XML have it between tags."""
    return escape(text, quote=False)


def _segment(parts: list[Part], decode: Callable[[str], str]) -> Segment | str:
    """Return what a run of parts without a block has to translate; as it is where there is nothing."""
    first, last, closings = _inner(parts)
    if not any(part.kind == "text" and decode(part.raw).strip() for part in parts[first:last]):
        return "".join(part.raw for part in parts)
    raws, closed = [part.raw for part in parts], set(closings.values())
    builder = _Builder(set("".join(decode(part.raw) for part in parts[first:last] if part.kind == "text")))
    for number in range(first, last):
        part = parts[number]
        if part.kind == "text":
            builder.add_text(decode(part.raw))
        elif part.kind == "atom":
            builder.add_kept(part.raw)
        elif number in closings:
            builder.open(part.raw)
        elif number in closed:
            builder.close(part.raw)
        else:
            builder.add_single(part.raw)
    head, tail = _outer_spaces(parts[first], decode), _outer_spaces(parts[last - 1], decode, at_end=True)
    return builder.segment("".join(raws[:first]) + head, tail + "".join(raws[last:]))


def _inner(parts: list[Part]) -> tuple[int, int, dict[int, int]]:
    """Return the first and the end of the parts inside what stays around them, and the closing tag of each element.

    Outside stay space, what is single, and elements that everything else is in.
    """
    closings = _pairs(parts)
    closed = set(closings.values())

    def is_outside(number: int) -> bool:
        part = parts[number]
        is_tag = part.kind in ("open", "close") and (number in closings or number in closed)
        return not is_tag and part.kind != "atom" and not (part.kind == "text" and part.raw.strip(SPACES))

    first, last = 0, len(parts)
    while True:
        while first < last and is_outside(first):
            first += 1
        while first < last and is_outside(last - 1):
            last -= 1
        if first >= last or closings.get(first) != last - 1:
            break
        first, last = first + 1, last - 1
    return first, last, closings


def _pairs(parts: list[Part]) -> dict[int, int]:
    """Return the place of the closing tag of each opening one, where they are well nested; others have no partner."""
    closings, waiting, names = dict[int, int](), list[int](), Counter[str]()
    for number, part in enumerate(parts):
        if part.kind == "open":
            waiting.append(number)
            names[part.name] += 1
        elif part.kind == "close" and names[part.name]:
            while parts[waiting[-1]].name != part.name:
                names[parts[waiting.pop()].name] -= 1
            closings[waiting.pop()] = number
            names[part.name] -= 1
    return closings


def _outer_spaces(part: Part, decode: Callable[[str], str], *, at_end: bool = False) -> str:
    """Return the white space with which a text begins or ends, as it is written."""
    if part.kind != "text":
        return ""
    raw = part.raw
    return raw[len(raw.rstrip(SPACES)) :] if at_end else raw[: len(raw) - len(raw.lstrip(SPACES))]


class _Builder:
    """Puts a segment together from left to right."""

    def __init__(self, characters: set[str]) -> None:
        """Take the characters that can't be marks, because the text has them."""
        self._texts = list[str]()
        self._length = 0
        self._ends_in_space = True  # so that none is at the beginning
        self._roots = list[Element]()
        self._open = list[Element]()
        self._here = list[Element]()  # what is single and has had no text after it
        self._kept = dict[str, str]()
        self._marks = (mark for n in range(MOST_MARKS) if (mark := chr(FIRST_MARK + n)) not in characters)

    def add_text(self, text: str) -> None:
        """Add text between tags."""
        text = RUN_OF_SPACES.sub(" ", text)
        if text[:1] == " " and self._ends_in_space:
            text = text[1:]
            for element in self._here:
                element.has_space = True
            self._here.clear()
        if not text:
            return
        self._texts.append(text)
        self._length += len(text)
        self._ends_in_space = text[-1] == " "
        self._here.clear()

    def add_kept(self, raw: str) -> None:
        """Add what stays as it is, and stands in the sentence as a word does."""
        mark = next(self._marks, None)
        if mark is None:
            raise DataError(f"a sentence may have at most {MOST_MARKS:,} elements that aren't translated: split it")
        self._kept[mark] = raw
        self._texts.append(mark)
        self._length += 1
        self._ends_in_space = False
        self._here.clear()

    def add_single(self, raw: str) -> None:
        """Add what has no closing tag."""
        element = Element(raw, self._length, self._length)
        self._siblings().append(element)
        if self._ends_in_space and self._length:
            self._here.append(element)

    def open(self, raw: str) -> None:
        """Begin an element."""
        element = Element(raw, self._length)
        self._siblings().append(element)
        self._open.append(element)

    def close(self, raw: str) -> None:
        """End the element that was begun last."""
        element = self._open.pop()
        element.end, element.close = self._length, raw

    def segment(self, before: str, after: str) -> Segment:
        """Return what was put together."""
        return Segment("".join(self._texts).rstrip(" "), before, after, self._roots, self._kept)

    def _siblings(self) -> list[Element]:
        return self._open[-1].children if self._open else self._roots
