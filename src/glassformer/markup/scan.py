"""HTML and XML cut into tags and the text between them; joined, the parts are what was given, byte for byte."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import unescape
from typing import Literal, NamedTuple
from xml.parsers import expat

from glassformer.errors import DataError

Format = Literal["xml", "html"]
"""The language of a text's tags."""
Kind = Literal["text", "open", "close", "single", "atom", "block"]

BLOCKS = frozenset(
    (
        *("address", "article", "aside", "audio", "base", "blockquote", "body", "br", "button", "canvas", "caption"),
        *("center", "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6"),
        *("head", "header", "hgroup", "hr", "html", "iframe", "label", "legend", "li", "link", "main", "menu", "meta"),
        *("nav", "noframes", "noscript", "object", "ol", "optgroup", "option", "p", "pre", "search", "section"),
        *("select", "summary", "table", "tbody", "td", "template", "tfoot", "th", "thead", "title", "tr", "ul"),
        *("video",),
    )
)
"""Elements of HTML before and after which text is another sentence."""
EMPTY = frozenset(
    (
        *("area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source"),
        *("track", "wbr"),
    )
)
"""Elements of HTML that have no closing tag."""
CODE = frozenset(("script", "style", "xmp"))
"""Elements of HTML whose content has no tags."""
KEPT = frozenset(("code", "kbd", "math", "pre", "samp", "script", "style", "svg", "textarea", "var", "xmp"))
"""Elements of HTML whose content stays as it is."""
NEVER_EMPTY = KEPT - {"math", "svg"}
"""Elements of HTML that a tag opens even where it ends with a slash."""

UNCLOSED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "p": (
        frozenset(
            (
                *("address", "article", "aside", "blockquote", "center", "details", "dialog", "dir", "div", "dl"),
                *("fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header"),
                *("hgroup", "li", "main", "menu", "nav", "ol", "p", "pre", "search", "section", "table", "ul"),
            )
        ),
        frozenset(),
    ),
    "li": (frozenset(("li",)), frozenset(("ul", "ol", "menu", "dir"))),
    **dict.fromkeys(("dt", "dd"), (frozenset(("dt", "dd")), frozenset(("dl",)))),
    "tr": (frozenset(("tr", "tbody", "tfoot", "thead")), frozenset(("table",))),
    **dict.fromkeys(("td", "th"), (frozenset(("td", "th", "tr", "tbody", "tfoot")), frozenset(("table",)))),
    "option": (frozenset(("option", "optgroup")), frozenset()),
}
"""Elements of HTML that may lack their closing tag: the opening tags that close them, unless in one of these inside."""

END_OF_LINE = "<?end-of-line?>"
"""The end of a line that counts as XML, where it ends a sentence."""
XML_CODE = frozenset(("bpt", "ept", "it", "ph"))
"""Elements of XLIFF and TMX whose content is code of another format; they are empty for the sentence."""

_HTML_NAME = re.compile(r"<(/?)([A-Za-z][^\s/>]*)")
_XML_NAME = re.compile(r"<(/?)([^\s/>!?<]+)")
_AFTER_NAME = re.compile(r"[\s/]")
_SIGN = re.compile(r">|=\s*([\"'])")
_ATTRIBUTE = re.compile(r"([^\s\"'=<>/]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'=<>]+))?")
_OPEN_VALUE = re.compile(r"=\s*[^\s\"'=<>]*/>\Z")
_CODE_END = {name: re.compile(f"</{name}", re.IGNORECASE) for name in CODE}
_ZEROS = re.compile(r"&#0+(?=[0-9])")
_BEYOND = re.compile(r"&#[0-9]{8,};?")
"""A decimal reference that no character has. Python refuses to read thousands of digits."""
_REFERENCE = re.compile(r"&(?:#x([0-9A-Fa-f]+)|#([0-9]+)|(amp|lt|gt|quot|apos));")


class Part(NamedTuple):
    """A part of a text with tags, as it is written.

    An "atom" is an element that stays as it is and stands in the sentence as a word does. What is "single" has no
    closing tag: `<img>`, `<x/>`, a comment, a script. A "block" ends the sentence.
    """

    kind: Kind
    raw: str
    name: str = ""
    """The name of the element; HTML's in lower case."""


def scan_html(text: str) -> list[Part]:
    """Return the parts of a piece of HTML, whatever it is; what only looks like a tag is text.

    It takes time that grows with the length alone. A part that stays as it is and isn't closed reaches to the end, or
    where HTML lets its closing tag be left out, to what closes it.

    >>> [part.kind for part in scan_html("<p>Press <b>the <code>X</code></b><br>")]
    ['block', 'text', 'open', 'text', 'atom', 'close', 'block']
    """
    return _scan_html(text)[0]


def closes_itself(tag: str) -> bool:
    """Return whether a tag ends with a slash that isn't the end of a value without quotes.

    >>> [closes_itself(tag) for tag in ("<x/>", '<img alt="a"/>', "<img alt=a />", "<a href=http://b.org/>")]
    [True, True, True, False]
    """
    return tag.endswith("/>") and not _OPEN_VALUE.search(tag)


def unclosed_in(html: str) -> str:
    """Return what begins in a piece of HTML, stays as it is and isn't closed in it; "" for nothing.

    >>> unclosed_in("a <script>b(c)"), unclosed_in("a <!-- b"), unclosed_in("a <a href=b"), unclosed_in("a <p>b")
    ('<script>', '<!--', '<a', '')
    """
    return _scan_html(html)[1]


def _scan_html(text: str) -> tuple[list[Part], str]:
    """Return the parts of a piece of HTML, and what isn't closed of what stays as it is."""
    parts, whole = list[Part](), _Whole()
    for part in _parts(text, is_html=True):
        if whole.is_closed_by(part):
            parts += whole.unfinished()
        if whole.name:
            parts += whole.taking(part)
        elif part.kind == "open" and is_kept(part.name, part.raw):
            kind = "block" if part.name in BLOCKS else "single" if part.name in CODE else "atom"
            whole = _Whole(part, kind)
        else:
            parts.append(part._replace(kind="block") if part.name in BLOCKS else part)
    if whole.name:
        unclosed = "" if whole.name in UNCLOSED else f"<{whole.name}>"
    else:
        unclosed = _begun(parts[-1]) if parts else ""
    return _joined([*parts, *whole.unfinished()]), unclosed


def _begun(part: Part) -> str:
    """Return how a comment or a tag begins that has no end; "" of another part."""
    if part.raw.startswith("<!--"):
        return "" if part.raw.endswith("-->") else "<!--"
    return "" if part.kind == "text" or part.raw.endswith(">") else part.raw.split()[0]


def scan_xml(text: str) -> list[Part]:
    """Return the parts of a piece of XML; DataError unless it is well-formed.

    >>> [part.kind for part in scan_xml('Press <g id="1">the<x id="2"/> key</g>')]
    ['text', 'open', 'text', 'single', 'text', 'close']
    """
    _check_xml(text)
    parts, whole = list[Part](), _Whole()
    for part in _parts(text, is_html=False):
        if whole.name:
            parts += whole.taking(part)
        elif part.kind == "open" and (part.name in XML_CODE or _is_protected(part)):
            whole = _Whole(part, "single" if part.name in XML_CODE else "atom")
        else:
            parts.append(part)
    return _with_pairs_of_codes(parts)


def _with_pairs_of_codes(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with two codes that belong together as the tags of an element, where they are well nested.

    They are `bpt` and `ept` of XLIFF and TMX, `sc` and `ec` of XLIFF 2.
    """
    found = list(parts)
    waiting: list[tuple[list[int], Counter[str]]] = [([], Counter())]  # codes that begin, in each element that is open
    for number, part in enumerate(parts):
        begun, keys = waiting[-1]
        if part.kind == "open":
            waiting.append(([], Counter()))
        elif part.kind == "close":
            waiting.pop()
        elif part.kind == "single" and part.name in ("bpt", "sc"):
            begun.append(number)
            keys[_key_of_code(part)] += 1
        elif part.kind == "single" and part.name in ("ept", "ec") and (key := _key_of_code(part)) and keys[key]:
            while (own := _key_of_code(parts[begun[-1]])) != key:
                begun.pop()
                keys[own] -= 1
            keys[key] -= 1
            name, first = f"pair {key}", begun.pop()
            found[first] = parts[first]._replace(kind="open", name=name)
            found[number] = part._replace(kind="close", name=name)
    return found


def _key_of_code(code: Part) -> str:
    """Return what two codes that belong together have in common; "" where there is nothing."""
    attributes = attributes_of(code.raw.partition(">")[0])
    return next((attributes[name] for name in ("rid", "startref", "i", "id") if attributes.get(name)), "")


def decode_html(raw: str) -> str:
    """Return the text that a piece of HTML between tags stands for; a number beyond all characters for U+FFFD."""
    return unescape(_BEYOND.sub("\ufffd", _ZEROS.sub("&#", raw)))


def decode_xml(raw: str) -> str:
    """Return the text that a piece of XML between tags stands for."""
    return _REFERENCE.sub(_referred, raw)


def _referred(reference: re.Match[str]) -> str:
    hexadecimal, decimal, name = reference.groups()
    if name:
        return unescape(f"&{name};")
    return chr(int(hexadecimal, 16) if hexadecimal else int(decimal.lstrip("0") or "0"))


class _Whole:
    """An element that stays as it is, as it is read: its parts up to the tag that closes it."""

    def __init__(self, first: Part | None = None, kind: Kind = "atom") -> None:
        self.name = first.name if first else ""
        self._kind: Kind = kind
        self._raws = [first.raw] if first else []
        self._depth = 1
        self._inside = Counter[str]()  # elements that are open in it

    def is_closed_by(self, part: Part) -> bool:
        """Return whether it ends before a part without a closing tag of its own, as paragraphs and items of lists may.

        So it does before a tag that opens its like, and before one that closes what it is in. What stands in a sentence
        as a word ends with the block around it.
        """
        if self.name not in UNCLOSED or (part.name == self.name and part.kind == "close"):
            ends_a_block = part.kind == "close" and part.name in BLOCKS
            return self._kind == "atom" and ends_a_block and not self._inside[part.name]
        if part.kind == "close":
            return not self._inside[part.name]
        closing, around = UNCLOSED[self.name]
        return part.kind == "open" and part.name in closing and not any(self._inside[name] for name in around)

    def taking(self, part: Part) -> list[Part]:
        """Take one more part; return the element once it is closed."""
        self._raws.append(part.raw)
        if part.kind in ("open", "close"):
            self._inside[part.name] += 1 if part.kind == "open" else -1
        if part.name == self.name and part.kind in ("open", "close"):
            self._depth += 1 if part.kind == "open" else -1
        return [] if self._depth else self.unfinished()

    def unfinished(self) -> list[Part]:
        """Return what there is as a part, if there is anything, and forget it."""
        if not self.name:
            return []
        found = Part(self._kind, "".join(self._raws), self.name)
        self.name = ""
        return [found]


def _parts(text: str, *, is_html: bool) -> Iterator[Part]:
    """Yield text and each piece of markup alone."""
    names, place = _HTML_NAME if is_html else _XML_NAME, 0
    while place < len(text):
        end = _end_of_markup(text, place, is_html=is_html)
        raw = text[place:end]
        if end == place:  # up to the next tag; what only looks like one is text
            following = text.find("<", place + 1)
            end = len(text) if following < 0 else following
            yield Part("text", text[place:end])
        elif not (found := names.match(raw)):
            is_atom = raw.startswith("<![CDATA[") and not is_html
            is_block = raw == END_OF_LINE or raw[:9].lower() == "<!doctype"
            yield Part("atom" if is_atom else "block" if is_block else "single", raw)
        else:
            name = found[2].lower() if is_html else found[2]
            if found[1]:
                yield Part("single" if is_html and name in EMPTY else "close", raw, name)
            elif (is_html and name in EMPTY) or (closes_itself(raw) and not (is_html and name in NEVER_EMPTY)):
                yield Part("single", raw, name)
            else:
                yield Part("open", raw, name)
                if is_html and name in CODE:
                    closing = _CODE_END[name].search(text, end)
                    stop = closing.start() if closing else len(text)
                    yield Part("text", text[end:stop])
                    end = stop
        place = end


def _joined(parts: list[Part]) -> list[Part]:
    """Return the parts with pieces of text that stand side by side as one, and none that is empty."""
    joined = list[Part]()
    run = list[str]()
    for part in [*parts, Part("block", "")]:
        if part.kind == "text":
            run.append(part.raw)
            continue
        if text := "".join(run):
            joined.append(Part("text", text))
        run.clear()
        joined.append(part)
    return joined[:-1]


def is_kept(name: str, tag: str) -> bool:
    """Return whether an element of HTML stays as it is: by its name, translate="no" or class="notranslate"."""
    if name in KEPT:
        return True
    if "translate" not in tag.lower():
        return False
    attributes = attributes_of(tag)
    return attributes.get("translate", "").lower() == "no" or "notranslate" in attributes.get("class", "").split()


def _is_protected(part: Part) -> bool:
    """Return whether an element of XML stays as it is: by translate="no", or XLIFF's mtype="protected"."""
    if "translate" not in part.raw and "mtype" not in part.raw:
        return False
    attributes = attributes_of(part.raw)
    return attributes.get("translate") == "no" or attributes.get("mtype") == "protected"


def attributes_of(raw: str) -> dict[str, str]:
    """Return the attributes of a tag; of several of one name the first, as browsers do."""
    found = dict[str, str]()
    name = _AFTER_NAME.search(raw, 1)
    for match in _ATTRIBUTE.finditer(raw, name.end() if name else len(raw)):
        found.setdefault(match[1].lower(), (match[2] or "").strip("\"'"))
    return found


def _end_of_markup(text: str, start: int, *, is_html: bool) -> int:
    """Return where the tag, comment or declaration ends that begins at `start`; `start` itself where there is none.

    What has no end reaches to the end of the text.
    """
    for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", ">" if is_html else "?>"), ("<!", ">")):
        if text.startswith(opening, start):
            begin = start + (2 if opening == "<!--" else len(opening))  # <!--> is a comment without text
            end = text.find(closing, begin)
            return len(text) if end < 0 else end + len(closing)
    if not (_HTML_NAME if is_html else _XML_NAME).match(text, start):
        return start
    place = start + 1
    while found := _SIGN.search(text, place):
        if found[0] == ">":
            return found.end()
        place = text.find(found[1], found.end()) + 1  # a value in quotes
        if not place:
            break
    return len(text)


def _check_xml(text: str) -> None:
    """Raise DataError unless a text would be well-formed inside an element."""
    if "<!DOCTYPE" in text:
        raise DataError("it has a document type, which isn't read: take it out, or use the format html")
    if not text.isascii() and text.encode(errors="replace").decode() != text:
        raise DataError("it has half a surrogate pair, which no xml may have: take it out")
    parser = expat.ParserCreate()
    try:
        parser.Parse("<g>", False)
        parser.Parse(text, False)
        parser.Parse("</g>", True)
    except expat.ExpatError as error:
        whole = f"<g>{text}".encode()
        read = whole[: parser.ErrorByteIndex].decode(errors="ignore")
        wrong = f"{expat.ErrorString(error.code)} at character {len(read) - 2:,}"
        if parser.ErrorByteIndex >= len(whole):  # only the end of all is wrong
            wrong = "an element isn't closed"
        raise DataError(
            f"it is not well-formed xml ({wrong}): close each tag and write & as &amp;, or use the format html"
        ) from None
