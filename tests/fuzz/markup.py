"""XML after a change: entities that grow or read other files, depth without end, parts lost, odd attributes."""

import re

from hypothesis import strategies as st
from mutations import SNIPPETS, Bytes, Draw, damaged, spoilt

SECRET = "a secret of another file"
"""What stands in a file that no mutated file has the right to show: ../home/secret."""


def _doctype(root: bytes, inside: bytes) -> bytes:
    return b"<!DOCTYPE " + root + b" [" + inside + b"]>"


LAUGHS = b'<!ENTITY e0 "ha">' + b"".join(b'<!ENTITY e%d "%s">' % (n, b"&e%d;" % (n - 1) * 10) for n in range(1, 10))
ENTITIES = (
    b'<!ENTITY e9 "ha">',
    LAUGHS,
    b'<!ENTITY e9 SYSTEM "../home/secret">',
    b'<!ENTITY e9 SYSTEM "../here/endless">',
    b'<!ENTITY e9 SYSTEM "../here/pipe">',
    b'<!ENTITY e9 SYSTEM "http://127.0.0.1:9/x">',
    b'<!ENTITY % e SYSTEM "http://127.0.0.1:9/x"> %e;',
    b'<!ENTITY e9 "&e9;">',
    b'<!ENTITY e9 "' + b"x" * 50_000 + b'">',
)
"""Declarations of an entity e9."""
PIECES = (
    b"<a>",
    b"</a>",
    b"<a/>",
    b"<a>" * 20_000,
    b"<a>" * 500 + b"</a>" * 500,
    b"<!--",
    b"-->",
    b"<![CDATA[x<y]]>",
    b"<?xml-stylesheet href='http://127.0.0.1:9/x'?>",
    b"<?xml version='1.0' encoding='utf-16'?>",
    b"<?xml version='1.0' encoding='cp037'?>",
    b"<?xml version='1.0' encoding='none'?>",
    b"&e9;",
    b"&amp;&lt;&#0;&#x1b;&#xD800;&#99999999;",
    b"&" * 5000,
    b" a='1' a='2'",
    b" xmlns:x='" + b"y" * 5000 + b"'",
    b" xml:lang=''",
    b" xml:lang='\xff'",
    *SNIPPETS,
)


def marked_up(base: bytes) -> Bytes:
    """Return XML, changed in one of these ways."""
    return st.one_of(pieced(base), pieced(base), pieced(base), declaring(base), spoilt(base), damaged(base))


@st.composite
def declaring(draw: Draw, base: bytes) -> bytes:
    """Return XML that declares an entity and uses it."""
    root = re.search(rb"<([a-zA-Z:]+)", base)
    if root is None:
        return base
    doctype = _doctype(root[1], draw(st.sampled_from(ENTITIES)))
    content = base[: root.start()] + doctype + base[root.start() :]
    return _at_a_tag(draw, content, root.start() + len(doctype), b"&e9;")


@st.composite
def pieced(draw: Draw, base: bytes) -> bytes:
    """Return XML with a tag or an attribute lost, doubled, or changed, or with an odd piece put in."""
    content = base
    for _ in range(draw(st.integers(1, 2))):
        tags = [found.span() for found in re.finditer(rb"<[^>]*>|\b[\w:]+=['\"][^'\"]*['\"]", content)]
        if not tags:
            return content
        begin, end = draw(st.sampled_from(tags))
        match draw(st.sampled_from(("lose", "double", "piece", "piece"))):
            case "lose":
                content = content[:begin] + content[end:]
            case "double":
                content = content[:end] + content[begin:end] + content[end:]
            case "piece":
                content = _at_a_tag(draw, content, begin, draw(st.sampled_from(PIECES)))
    return content


def _at_a_tag(draw: Draw, content: bytes, first: int, piece: bytes) -> bytes:
    """Put a piece behind one of the tags from a place on, or within it."""
    ends = [found.start() for found in re.finditer(b">", content[first:])] or [0]
    place = first + draw(st.sampled_from(ends)) + draw(st.integers(0, 1))
    return content[:place] + piece + content[place:]
