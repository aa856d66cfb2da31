"""Units of translation memories and catalogues: TMX, XLIFF and gettext's PO, read by the Translate Toolkit."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from glassformer.errors import DataError
from glassformer.pairs import kinds
from glassformer.pairs.columns import ColumnChooser, base_language
from glassformer.pairs.lines import as_utf_8, decode_line, read_whole, readable, unpacked

CODES = ("bpt", "ept", "it", "ph", "ut")
"""Elements of a segment of TMX or XLIFF that hold codes of formatting, not text."""
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
"""The attribute xml:lang."""
CHARSET = re.compile(r'(?:^|"|\\n)Content-Type:[^\n]*\bcharset=([^\s;\\"]+)', re.MULTILINE | re.IGNORECASE)
"""Find the character set that the header of PO names, in plain text or in the file's lines with quotes and escapes."""
XLIFF_2 = re.compile(rb"<xliff\b[^>]*\bversion\s*=\s*[\"']2")


def units(path: Path, kind: str, languages: ColumnChooser) -> Iterator[tuple[str, str] | None]:
    """Yield source and target of each unit that has both, None for another; DataError where the file can't be used.

    `languages` chooses two of a TMX file's, such as en and de. Left to the file, the source is that of its header.
    """
    if kind == kinds.TMX:
        yield from _tmx_units(path, languages)
        return
    is_finished = _is_finished_in_xliff if kind == kinds.XLIFF else _is_finished_in_po
    for unit in _parsed(path, kind).units:
        if kind == kinds.XLIFF:
            for code in unit.xmlelement.iter(*(f"{{*}}{name}" for name in CODES)):
                code.clear(keep_tail=True)
        is_pair = unit.istranslatable() and unit.target and is_finished(unit)
        yield (str(unit.source), str(unit.target)) if is_pair else None


def _is_finished_in_po(unit: Any) -> bool:
    return not unit.isfuzzy()


def _is_finished_in_xliff(unit: Any) -> bool:
    """Return whether the unit has no state that asks for work; most tools write none.

    The state is that of the target, or since XLIFF 2 that of the segment.
    """
    target = unit.xmlelement.find("{*}target")
    state = unit.xmlelement.get("state") or ("" if target is None else target.get("state", ""))
    return state not in ("new", "initial") and not state.startswith("needs-")


def _tmx_units(path: Path, languages: ColumnChooser) -> Iterator[tuple[str, str] | None]:
    """Yield the segments of two languages of a TMX file, None for a unit that lacks one."""
    store = _parsed(path, kinds.TMX)
    spelled = dict[str, str]()  # each language as it is written first: EN is en
    held = list[dict[str, Any]]()
    for unit in store.units:
        named = ((language_of(node), node) for node in unit.getlanguageNodes())
        held.append({spelled.setdefault(code.lower(), code): node for code, node in named})
    names = list(dict.fromkeys(name for unit in held for name in unit))
    if not names:
        return
    of_header = store.document.getroot().find(".//{*}header")
    first = "" if of_header is None else of_header.get("srclang", "").lower()
    alike = [name for name in names if base_language(name) == base_language(first)]
    if first not in map(str.lower, names) and len(alike) == 1:  # en may stand for en-US
        first = alike[0].lower()
    names.sort(key=lambda name: name.lower() != first)
    left, right = languages.choose(names, "languages")
    for unit in held:
        source, target = (unit.get(names[side]) for side in (left, right))
        yield None if source is None or target is None else (_segment(source), _segment(target))


def language_of(variant: Any) -> str:
    """Return the language of an element `tuv` of TMX; "" where it names none."""
    return variant.get(LANGUAGE) or variant.get("lang") or ""


def _segment(node: Any) -> str:
    """Return the text of the segment of an element `tuv`; "" where it has none."""
    segment = node.find("{*}seg")
    return "" if segment is None else "".join(texts_of(segment))


def texts_of(element: Any) -> Iterator[str]:
    """Yield the text of a segment, without the codes of its formatting (TMX 1.4b, section 2.2)."""
    yield element.text or ""
    for child in element:
        if isinstance(child.tag, str) and child.tag.rpartition("}")[2] not in CODES:
            yield from texts_of(child)
        yield child.tail or ""


def _po_as_utf_8(path: Path, content: bytes) -> bytes:
    """Return a PO file in UTF-8, converted from the encoding that its header names; DataError where it is neither."""
    charset = CHARSET.search(content.decode("latin-1"))
    for encoding in ("utf-8", "" if charset is None else charset[1]):
        with suppress(LookupError, UnicodeDecodeError):
            return content.decode(encoding).encode()
    lines = enumerate(content.split(b"\n"), start=1)
    return "\n".join(decode_line(raw, number, str(path)) for number, raw in lines).encode()  # an error names the line


def _parsed(path: Path, kind: str) -> Any:
    """Return the file as the Translate Toolkit reads it; ImportError, which names the extra, where it is missing."""
    try:
        from translate.storage import po, tmx, xliff, xliff2
    except ImportError:
        raise ImportError(f'a {kind} file needs the extra formats: pip install "glassformer[formats]"') from None
    with readable(path), path.open("rb") as packed:
        raw = unpacked(packed)
        is_po = kind == kinds.PO
        content = _po_as_utf_8(path, read_whole(as_utf_8(raw), path)) if is_po else read_whole(raw, path)
    of_xliff = xliff2.Xliff2File if XLIFF_2.search(content) else xliff.xlifffile
    store = {kinds.TMX: tmx.tmxfile, kinds.XLIFF: of_xliff, kinds.PO: po.pofile}[kind]()
    try:
        store.parse(content)
    except (ValueError, SyntaxError, AssertionError, AttributeError) as error:  # the last two: its own, of odd files
        reason = str(error) or "an element is not where it belongs"
        raise DataError(f"{path} is a {kind} file that can't be read: {reason}") from None
    return store
