"""Units of a TMX file: the variant of the target language is filled, or added after the others."""

from xml.sax.saxutils import quoteattr

from glassformer.documents.elements import Element, XmlFile
from glassformer.documents.units import Edit, Unit, letters_in
from glassformer.errors import ConfigError, DataError


def read_units(content: bytes, name: str, languages: tuple[str, str] | None) -> list[Unit]:
    """Return the units of a TMX file that have a segment in the first of the two languages.

    Raises DataError where it is no TMX file, and ConfigError where the languages are not known.
    """
    file = XmlFile(content, name)
    if file.root.name != "tmx":
        raise DataError(f"{name} is XML with the root element {file.root.name}, tmx was expected")
    if languages is None:
        raise ConfigError(
            f"{name} holds several languages, and the run doesn't say which two it translates: give `languages`, such "
            "as en de"
        )
    found = [_unit(file, one, *languages) for one in file.root.descendants("tu")]
    if not any(found):
        raise DataError(f"{name} has no segment in the language {languages[0]}")
    return [unit for unit in found if unit is not None and (unit.has_tags or letters_in(unit.source))]


def _unit(file: XmlFile, owner: Element, source: str, target: str) -> Unit | None:
    variants = [child for child in owner.children if child.name == "tuv"]
    from_, into = _pair(variants, source, target)
    segment = from_ and from_.find("seg")
    filled = into and into.find("seg")
    if from_ is None or segment is None or (into is not None and filled is None):
        return None

    def place(translation: str) -> list[Edit]:
        text = file.written(translation, segment)
        if filled is None:
            seg = segment.tag.encode()
            inner, outer = file.content[from_.inside : segment.start], file.content[segment.end : from_.closing]
            tag = from_.tag.encode()
            language = f" xml:lang={quoteattr(target)}".encode()
            head, tail = (space if not space.strip() else b"" for space in (inner, outer))
            inside = head + b"<" + seg + b">" + text + b"</" + seg + b">" + tail
            new = file.space_before(from_) + b"<" + tag + language + b">" + inside + b"</" + tag + b">"
            return [Edit(variants[-1].end, variants[-1].end, new)]
        if filled.closing == filled.end:
            return [Edit(filled.start, filled.end, f"<{filled.tag}>".encode() + text + f"</{filled.tag}>".encode())]
        return [Edit(filled.inside, filled.closing, text)]

    return Unit(
        source=file.source_of(segment),
        place=place,
        is_translated=filled is not None and bool(filled.text.strip() or filled.children),
        has_tags=file.has_tags(segment),
    )


def _pair(variants: list[Element], source: str, target: str) -> tuple[Element | None, Element | None]:
    """Return the variants in two languages, which are never the same one.

    Each is the first in its language, or else the first in one of its regions, en-GB for en, that isn't the other's.
    """
    languages = [(one.attributes.get("xml:lang") or one.attributes.get("lang") or "").lower() for one in variants]
    regions = [language.partition("-")[0] for language in languages]
    found: list[Element | None] = [None, None]
    for known in (languages, regions):
        for side, code in enumerate((source, target)):
            named = (one for one, name in zip(variants, known, strict=True) if name == code.lower())
            found[side] = found[side] or next((one for one in named if all(one is not other for other in found)), None)
    from_, into = found
    return from_, into
