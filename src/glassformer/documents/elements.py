"""Elements of an XML file and the bytes at which they stand; entities of a file's own are refused."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape

from glassformer.documents.tags import as_xml, has_html_tags
from glassformer.errors import DataError
from glassformer.markup.scan import END_OF_LINE, scan_xml

DEEPEST, MOST_ELEMENTS = 100, 1_000_000
"""Most elements within one another, and in all: each takes some hundred bytes."""
ENCODINGS = ("utf-8", "us-ascii", "ascii", "iso-8859-1")
_ENCODING = re.compile(rb"<\?xml[^>]*?\bencoding\s*=\s*[\"']([A-Za-z0-9._-]+)")
_TAG = re.compile(rb"<[^\s/>]+(?:\s+[^\s=]+\s*=\s*(?:\"[^\"]*\"|'[^']*'))*\s*/?>")
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML can't hold."""


@dataclass
class Element:
    """An element with its text, and where its tags begin and end in the file."""

    tag: str
    """The name as it is written, with its prefix."""
    attributes: dict[str, str]
    parent: "Element | None"
    start: int
    """The byte at which its first tag begins."""
    inside: int
    """The byte at which its content begins."""
    closing: int = 0
    """The byte at which its last tag begins; where it is one tag with its first, the byte after that."""
    end: int = 0
    """The byte after its last tag."""
    text: str = ""
    """The text before its first child, or of all of it where it has none."""
    children: "list[Element]" = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return its name without the prefix."""
        return self.tag.rpartition(":")[2]

    @property
    def prefix(self) -> str:
        """Return the prefix of its name, with the colon."""
        return self.tag[: len(self.tag) - len(self.name)]

    def find(self, name: str) -> "Element | None":
        """Return its first child of this name."""
        return next((child for child in self.children if child.name == name), None)

    def descendants(self, name: str) -> "Iterator[Element]":
        """Yield the elements of this name within it, in order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.descendants(name)

    def inherited(self, attribute: str) -> str:
        """Return the attribute of the nearest element around it that has it, or its own; "" without one."""
        here: Element | None = self
        while here is not None:
            if attribute in here.attributes:
                return here.attributes[attribute]
            here = here.parent
        return ""


def _with_marked_ends(xml: str) -> str:
    """Return a piece of XML whose lines count with a mark at the end of each line of its text."""
    ends = (one.raw.replace("\n", END_OF_LINE) if one.kind == "text" else one.raw for one in scan_xml(xml))
    return "".join(ends)


class XmlFile:
    """An XML file: its bytes and its elements."""

    def __init__(self, content: bytes, name: str) -> None:
        """Read the file; `name` is what the DataError calls one that can't be read."""
        self.content = content
        self.name = name
        declared = _ENCODING.match(content.removeprefix(b"\xef\xbb\xbf"))
        self.encoding = declared[1].decode().lower() if declared else "utf-8"
        if self.encoding not in ENCODINGS or content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{name} is in {self.encoding}: save it as UTF-8")
        self.root = self._read()

    def source_of(self, element: Element) -> str:
        """Return an element's text, of one with tags as XML.

        Text that is broken into lines is one line, unless `xml:space` says that white space counts.
        """
        if element.children:
            text = self.content[element.inside : element.closing].decode(self.encoding)
        else:
            text = as_xml(element.text)[0] if has_html_tags(element.text) else element.text
        if "\n" not in text:
            return text
        keeps_lines = element.inherited("xml:space") == "preserve"
        if not self.has_tags(element):
            return text if keeps_lines else " ".join(text.split())
        return _with_marked_ends(text) if keeps_lines else text

    def has_tags(self, element: Element) -> bool:
        """Return whether an element's text has tags: the file's own, or escaped ones of HTML."""
        return bool(element.children) or has_html_tags(element.text)

    def written(self, text: str, source: Element) -> bytes:
        """Return the translation of an element as the file writes it; that of one with tags has tags of its own."""
        text = text.replace(END_OF_LINE, "\n")
        if source.children:
            return text.encode(self.encoding, "xmlcharrefreplace")
        if has_html_tags(source.text):
            text = as_xml(source.text)[1](text)
        return escape(_UNWRITABLE.sub("", text)).encode(self.encoding, "xmlcharrefreplace")

    def space_before(self, element: Element) -> bytes:
        """Return the white space between an element and the tag before it; none where text is before it."""
        start = element.start
        while self.content[start - 1 : start].isspace():
            start -= 1
        return self.content[start : element.start] if self.content[start - 1 : start] == b">" else b""

    def _read(self) -> Element:
        parser = expat.ParserCreate()
        parser.buffer_text, parser.buffer_size = True, 1 << 20
        outside = Element("", {}, None, 0, 0)
        stack, count = [outside], 0

        def begin(tag: str, attributes: dict[str, str]) -> None:
            nonlocal count
            count += 1
            if len(stack) > DEEPEST or count > MOST_ELEMENTS:
                raise DataError(f"{self.name} has too many elements, or they are nested too deeply")
            start = parser.CurrentByteIndex
            found = _TAG.match(self.content, start)
            if found is None:
                raise DataError(f"{self.name} has a tag that can't be found again (byte {start:,})")
            element = Element(tag, attributes, stack[-1], start, found.end())
            stack[-1].children.append(element)
            stack.append(element)

        def finish(tag: str) -> None:
            element = stack.pop()
            if self.content[element.inside - 2 : element.inside] == b"/>":
                element.closing = element.end = element.inside
            else:
                element.closing = parser.CurrentByteIndex
                element.end = self.content.index(b">", element.closing) + 1

        def take(text: str) -> None:
            if not stack[-1].children:
                stack[-1].text += text

        def refuse(*_: object) -> None:
            raise DataError(f"{self.name} declares entities, which are not read: save it without them")

        parser.StartElementHandler, parser.EndElementHandler = begin, finish
        parser.CharacterDataHandler = take
        parser.EntityDeclHandler = parser.SkippedEntityHandler = refuse
        try:
            parser.Parse(self.content, True)
        except expat.ExpatError as error:
            raise DataError(f"{self.name} is not XML that can be read: {error}") from None
        return outside.children[0]
