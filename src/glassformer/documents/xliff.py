"""Units of XLIFF 1.2 and 2: targets and their states are written in place."""

import re
from collections.abc import Iterator
from functools import partial

from glassformer.documents.elements import Element, XmlFile
from glassformer.documents.units import Edit, Unit, letters_in
from glassformer.errors import DataError

UNTRANSLATED = ("new", "needs-translation", "initial")
"""States of what isn't translated yet: many tools then leave a copy of the source as the target."""
_TAGS = re.compile(rb"<(?![!?])(?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*>")
"""The tags of elements; what CDATA holds is text."""
_FINER_STATE = re.compile(rb"\s+(?:subState|state-qualifier)\s*=\s*(?:\"[^\"]*\"|'[^']*')")
_STATE = re.compile(rb"\bstate\s*=\s*(?:\"[^\"]*\"|'[^']*')")


def read_units(content: bytes, name: str) -> list[Unit]:
    """Return the units of an XLIFF file; DataError where it is none, or of a version that is not known."""
    file = XmlFile(content, name)
    if file.root.name != "xliff":
        raise DataError(f"{name} is XML with the root element {file.root.name}, xliff was expected")
    version = file.root.attributes.get("version", "")
    if version.startswith("1."):
        owners = [one for one in file.root.descendants("trans-unit") if one.find("source")]
        found = [unit for one in owners for unit in _segments(file, one) or [_unit(file, one, one)]]
    elif version.startswith("2."):
        found = [_unit(file, one, None) for one in file.root.descendants("segment") if one.find("source")]
    else:
        raise DataError(f"{name} is XLIFF of the version {version or 'of no number'}: 1.2 and 2 can be read")
    return [unit for unit in found if unit is not None]


def _unit(file: XmlFile, owner: Element, state_in_target: Element | None) -> Unit | None:
    """Return the unit of a `trans-unit` or a `segment`; None where nothing in it may be translated."""
    source, target = owner.find("source"), owner.find("target")
    assert source is not None
    if owner.inherited("translate") == "no" or not (letters_in(source.text) or source.children):
        return None

    def place(translation: str) -> list[Edit]:
        text = file.written(translation, source)
        state = b' state="translated"' if state_in_target else b""
        edits = [] if state_in_target else _state_edits(file, owner)
        if target is None:
            after = owner.find("seg-source") or source
            tag = f"{source.prefix}target".encode()
            new = b"".join([file.space_before(source), b"<", tag, state, b">", text, b"</", tag, b">"])
            return [*edits, Edit(after.end, after.end, new)]
        if state_in_target:
            edits += _state_edits(file, target)
        return [*edits, _filling(file, target, text)]

    return Unit(
        source=file.source_of(source),
        place=place,
        is_translated=target is not None and _is_translation(file, target, source, owner),
        has_tags=file.has_tags(source),
    )


def _segments(file: XmlFile, owner: Element) -> list[Unit]:
    """Return a unit for each segment that `seg-source` marks (XLIFF 1.2), where the target has the same marks; or none.

    A segment without letters is copied.
    """
    source, target = owner.find("seg-source"), owner.find("target")
    if source is None or target is None or owner.inherited("translate") == "no":
        return []
    of_source, of_target = ([*_marks_of(side)] for side in (source, target))
    marks, waiting = ({one.attributes.get("mid", ""): one for one in side} for side in (of_source, of_target))
    if len(marks) < len(of_source) or len(waiting) < len(of_target) or "" in marks or marks.keys() != waiting.keys():
        return []
    is_translated = _is_translation(file, target, source, owner)
    texts = {mid: mark for mid, mark in marks.items() if letters_in(mark.text) or mark.children}
    copies = [
        _filling(file, waiting[mid], file.content[mark.inside : mark.closing])
        for mid, mark in marks.items()
        if mid not in texts
    ]

    def place(mid: str, others: list[Edit], translation: str) -> list[Edit]:
        return [_filling(file, waiting[mid], file.written(translation, marks[mid])), *others]

    of_first = [*_state_edits(file, target), *copies]  # the edits that are made once
    return [
        Unit(file.source_of(mark), partial(place, mid, [] if number else of_first), is_translated, file.has_tags(mark))
        for number, (mid, mark) in enumerate(texts.items())
    ]


def _marks_of(element: Element) -> Iterator[Element]:
    """Yield the elements within it that mark a segment, of which none is within another; codes may be around them."""
    for child in element.children:
        if child.name == "mrk" and child.attributes.get("mtype", "seg") == "seg":
            yield child
        else:
            yield from _marks_of(child)


def _filling(file: XmlFile, element: Element, text: bytes) -> Edit:
    """Return the edit that puts a text into an element, in place of what it has."""
    if element.closing < element.end:
        return Edit(element.inside, element.closing, text)
    slash = file.content.rindex(b"/", element.start, element.inside)  # as in <target/>
    return Edit(slash, element.end, b">" + text + f"</{element.tag}>".encode())


def _is_translation(file: XmlFile, target: Element, source: Element, unit: Element) -> bool:
    """Return whether a target holds a translation: not where it is a copy of its source, by what its state says."""
    if _is_empty(file, target):
        return False
    state = (target if unit.name == "trans-unit" else unit).attributes.get("state", "")
    here, there = (file.content[one.inside : one.closing] for one in (target, source))
    return here != there or state not in UNTRANSLATED


def _is_empty(file: XmlFile, target: Element) -> bool:
    """Return whether a target has no text, and no more than the marks of segments (`mrk`) that wait for it."""
    if not target.children:
        return not target.text.strip()
    return _only_waits(target) and not _TAGS.sub(b"", file.content[target.inside : target.closing]).strip()


def _only_waits(element: Element) -> bool:
    """Return whether all codes in an element are around marks of segments (`mrk`), and none is within one."""
    return all(_only_waits(child) if child.children else child.name == "mrk" for child in element.children)


def _state_edits(file: XmlFile, element: Element) -> list[Edit]:
    """Return the edits that make the state of an element say that it is translated."""
    first = file.content[element.start : element.inside]
    finer = _FINER_STATE.search(first)  # of the state that it was: it goes with it
    gone = [] if finer is None else [Edit(element.start + finer.start(), element.start + finer.end(), b"")]
    if "state" not in element.attributes:
        place = element.start + 1 + len(element.tag.encode(file.encoding))
        return [*gone, Edit(place, place, b' state="translated"')]
    found = next(one for one in _STATE.finditer(first) if first[one.start() - 1 : one.start()].isspace())
    return [*gone, Edit(element.start + found.start(), element.start + found.end(), b'state="translated"')]
