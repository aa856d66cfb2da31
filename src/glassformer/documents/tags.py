"""Tags of HTML in the texts of a document that isn't HTML: such a text is written as HTML or XML, and read back."""

import re
from collections.abc import Callable, Sequence
from itertools import count
from xml.sax.saxutils import escape, unescape

from glassformer.markup.scan import KEPT, closes_itself, decode_html, is_kept

_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
TAG_OF_CUE = re.compile(r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>")
"""Match a tag of WebVTT, which may be a time, such as <00:19.000>."""
TIME_OF_CUE = re.compile(r"<\d[\d:.]*>")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Match a character that XML can't have."""
_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9:-]*|\d[\d:.]*)")
_WRITTEN = re.compile(r'<(?:g|x) id="(\d+)"(?: translate="no")?/?>|(</g>)|[^<]+')
_TAG_OR_END = re.compile(r"(</?[A-Za-z][^<>]*>)|\n")
_END = "<br class=end-of-line>"
"""The end of a line as HTML, where it ends a sentence."""
_ALONE = re.compile(r"<wbr title=alone-([0-9]+)>")
"""A tag as HTML that would keep all that follows from being translated, by its number in the text."""
_REFERENCE = re.compile(r"&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z][A-Za-z0-9]*);")


def has_html_tags(text: str) -> bool:
    """Return whether tags of HTML stand in a text."""
    return _TAG.search(text) is not None


def as_html(text: str) -> tuple[str, Callable[[str], str]]:
    """Return a text with tags as HTML, and what makes text of its translation as the document writes it.

    A text that has no references, such as `&amp;`, isn't escaped: then neither is its translation. Its lines are kept.
    A tag without a partner, such as a `<code>` that the text only mentions, keeps nothing from being translated.

    >>> html, written = as_html("Q&A <b>now</b>")
    >>> html, written("<b>Jetzt</b> &lt; Q&amp;A")
    ('Q&amp;A <b>now</b>', '<b>Jetzt</b> < Q&A')
    """
    is_escaped = _REFERENCE.search(text) is not None
    escaped = text if is_escaped else text.replace("&", "&amp;")
    tags = [tag[0] for tag in _TAG.finditer(escaped)]
    partners, numbers = _partners(tags), count()

    def as_part(found: re.Match[str]) -> str:
        if not found[1]:
            return _END
        number = next(numbers)
        is_alone = number not in partners and _name(found[1]) in KEPT and not found[1].startswith("</")
        return f"<wbr title=alone-{number}>" if is_alone else found[1]

    html = _TAG_OR_END.sub(as_part, escaped)

    def written(html: str) -> str:
        text = _ALONE.sub(lambda found: tags[int(found[1])], html.replace(_END, "\n"))
        return text if is_escaped else text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")

    return html, written


def as_xml(text: str) -> tuple[str, Callable[[str], str]]:
    """Return a text with tags of HTML as XML, and what makes text with the tags of its translation.

    An element is a `<g>`, and a tag without a partner an `<x/>`.

    >>> xml, written = as_xml("a & <b>c</b><br>")
    >>> xml, written('<g id="0">C</g> A &amp;<x id="2"/>')
    ('a &amp; <g id="0">c</g><x id="2"/>', '<b>C</b> A &<br>')
    """
    return _as_xml(text, _TAG, escape, unescape)


def escaped_as_xml(text: str) -> tuple[str, Callable[[str], str]]:
    """Return the text of a WebVTT cue, whose characters are escaped, as XML, and what makes one of its translation.

    >>> xml, written = escaped_as_xml("a &lt; &Uuml; <00:19.000>c")
    >>> xml, written('B &lt; A <x id="0"/>C')
    ('a &lt; Ü <x id="0"/>c', 'B &lt; A <00:19.000>C')
    """
    return _as_xml(text, TAG_OF_CUE, lambda part: escape(_NOT_XML.sub("", decode_html(part))), str)


def _as_xml(
    text: str, tag_of: re.Pattern[str], encoded: Callable[[str], str], decoded: Callable[[str], str]
) -> tuple[str, Callable[[str], str]]:
    """Return a text with tags as XML, and what makes text of its translation; the last two do so between tags."""
    tags = list(tag_of.finditer(text))
    closing = _partners([tag[0] for tag in tags])
    closed, pieces, done = set(closing.values()), list[str](), 0
    for number, tag in enumerate(tags):
        pieces.append(encoded(text[done : tag.start()]))
        stays = is_kept(_name(tag[0]), tag[0])
        if number in closing:
            pieces.append(f'<g id="{number}" translate="no">' if stays else f'<g id="{number}">')
        else:
            pieces.append("</g>" if number in closed else f'<x id="{number}"/>')
        done = tag.end()
    pieces.append(encoded(text[done:]))

    def written(xml: str) -> str:
        pieces, waiting = list[str](), list[int]()
        for found in _WRITTEN.finditer(xml):
            if found[1]:
                number = int(found[1])
                pieces.append(tags[number][0])
                if number in closing:
                    waiting.append(closing[number])
            elif found[2]:
                pieces.append(tags[waiting.pop()][0])
            else:
                pieces.append(decoded(found[0]))
        return "".join(pieces)

    return "".join(pieces), written


def _name(tag: str) -> str:
    found = _NAME.match(tag)
    assert found is not None
    return found[1].lower()


def _partners(tags: Sequence[str]) -> dict[int, int]:
    """Return the number of the closing tag of each opening one that has a partner, all well nested."""
    partners, waiting = dict[int, int](), list[int]()
    places = dict[str, list[int]]()
    for number, tag in enumerate(tags):
        name = _name(tag)
        if not tag.startswith("</"):
            if not closes_itself(tag):
                waiting.append(number)
                places.setdefault(name, []).append(number)
        elif places.get(name):
            opening = places[name].pop()
            while waiting[-1] != opening:
                places[_name(tags[waiting.pop()])].pop()
            waiting.pop()
            partners[opening] = number
    return partners
