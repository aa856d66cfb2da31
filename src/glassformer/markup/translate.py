"""Translation of text with tags."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from glassformer.errors import ConfigError, DataError, shown
from glassformer.generation.config import SearchConfig, as_config
from glassformer.generation.lexical.lines import Glossaries
from glassformer.generation.lexical.placeholders import compiled
from glassformer.generation.translator import Translation, Translator
from glassformer.markup.aligning import TagAligner
from glassformer.markup.place import place_tags
from glassformer.markup.scan import Format
from glassformer.markup.segments import Document
from glassformer.text.tokenizer import check_lines

FORMATS: tuple[Format, ...] = get_args(Format)
ONLY_MARKS = "(?!)"
"""A pattern of placeholders that no text matches: only marks are copied."""


@dataclass(frozen=True)
class TaggedTranslation:
    """The translation of a text with tags."""

    text: str
    segments: list[Translation]
    """The translation of each text between block elements, without tags."""


def translate_markup(
    translator: Translator,
    texts: Sequence[str],
    format: Format,
    config: SearchConfig | None = None,
    progress: Callable[[int], None] = lambda segments: None,
    *,
    glossary: Glossaries = None,
    placeholders: str | None = None,
) -> list[str]:
    """Return the best translation of each text in HTML or XML, with its tags on the words that their words became.

    `format` is "html" (any piece of HTML, however it is written) or "xml" (well-formed, each text one segment;
    DataError for what isn't). Text between block elements of HTML is translated apart. Tags and attributes come back as
    they were, each once, nested as they were. Elements that say `translate="no"`, and in HTML code and the class
    notranslate, stay as they are. `progress` is told how many segments are done; `glossary` (one for all) and
    `placeholders` are as in `Translator.translate`.

    Which heads align decides where tags go: `choose_heads` finds the best once for a run folder. Raises ConfigError for
    settings that draw or return several translations.

    Example: docs/howto/tags.md.
    """
    check_lines("texts", texts)
    read = read_texts(texts, format)
    found = translate_documents(translator, read, config, progress, glossary=glossary, placeholders=placeholders)
    return [one.text for one in found]


def read_texts(texts: Sequence[str], format: Format, first: int = 0, name: str = "texts[{}]") -> list[Document]:
    """Return texts taken apart; DataError names the one that isn't of the format by its number."""
    if format not in FORMATS:
        raise ConfigError(f"format must be one of {' and '.join(FORMATS)}, got {shown(format)}")
    read = list[Document]()
    for number, text in enumerate(texts, first):
        try:
            read.append(Document(text, format))
        except DataError as error:
            raise DataError(f"{name.format(number)}: {error}") from None
    return read


def translate_documents(
    translator: Translator,
    documents: Sequence[Document],
    config: SearchConfig | None = None,
    progress: Callable[[int], None] = lambda segments: None,
    *,
    glossary: Glossaries = None,
    placeholders: str | None = None,
) -> list[TaggedTranslation]:
    """Return the translation of each document, as `translate_markup` describes it."""
    config = as_config(config)
    check_search(config)
    segments = [segment for document in documents for segment in document.segments]
    if placeholders is None and any(segment.kept for segment in segments):
        placeholders = ONLY_MARKS
    lines = [segment.text for segment in segments]
    translations = translator.translations(lines, config, progress, glossary=glossary, placeholders=placeholders)
    placed = _placed(translator, documents, translations, None if placeholders is None else compiled(placeholders))
    coming = iter(zip(translations, placed, strict=True))
    found = list[TaggedTranslation]()
    for document in documents:
        own = [next(coming) for _ in document.segments]
        found.append(TaggedTranslation(document.joined([text for _, text in own]), [one for one, _ in own]))
    return found


def check_search(config: SearchConfig) -> None:
    """Raise ConfigError for a search that tags can't come back from."""
    if config.sample:
        raise ConfigError("text with tags is translated by a search, not by drawing: leave out sample")
    if config.n_best > 1:
        raise ConfigError(f"text with tags has one translation, got n_best {config.n_best}: leave it out")


def _placed(
    translator: Translator,
    documents: Sequence[Document],
    translations: Sequence[Translation],
    copied: re.Pattern[str] | None,
) -> list[str]:
    """Return the translation of each segment as it is to be written."""
    segments = [segment for document in documents for segment in document.segments]
    tagged = [n for n, segment in enumerate(segments) if segment.elements]
    pairs = {}
    if tagged:
        sources, targets = [segments[n].text for n in tagged], [translations[n].text for n in tagged]
        pairs = dict(zip(tagged, TagAligner(translator).align(sources, targets, copied), strict=True))
    placed = list[str]()
    for n, (segment, translation) in enumerate(zip(segments, translations, strict=True)):
        source, target, links = pairs.get(n, ([], [], []))
        placed.append(place_tags(segment, source, translation.text, target, links))
    return placed
