"""Translation of text with tags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, get_args

from glassformer.errors import ConfigError, DataError, shown
from glassformer.generation.config import SearchConfig, Segmentation, as_config
from glassformer.generation.files import LineDemands
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.segments.paragraphs import joined_translation, translate_in_segments
from glassformer.generation.segments.sentences import Segments
from glassformer.generation.translator import Translation, Translator
from glassformer.markup.aligning import LinkedPair, TagAligner, joined_pair
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
    segment: Segmentation = "line",
    sentences: int | None = None,
    glossary: Glossary | None = None,
    placeholders: str | None = None,
) -> list[str]:
    """Return the best translation of each text in HTML or XML, with each tag around the translation of its words.

    `format` is "html" (any piece of HTML, however it is written) or "xml" (each text must be well-formed, and is one
    segment; DataError if it isn't well-formed). In HTML each text between block elements is translated by itself. Every
    tag and attribute comes back once, unchanged, and nested as before. Elements with `translate="no"` stay as they are,
    and in HTML also code (such as `code` and `pre`) and elements of the class notranslate. With the `segment`
    "paragraph" a text between block elements is translated sentence by sentence, or `sentences` of them at once (see
    `translate_paragraphs`). `progress` is told how many segments are done. `glossary` (one for all texts) and
    `placeholders` are as in `Translator.translate`.

    The aligning heads decide where tags go: `choose_heads` finds the best ones, once for a run folder. Raises
    ConfigError for settings that draw a translation or return several.

    Example: docs/howto/tags.md.
    """
    check_lines("texts", texts)
    read = read_texts(texts, format)
    wanted = LineDemands(segment, glossary, placeholders, sentences)
    return [one.text for one in translate_documents(translator, read, config, wanted, progress)]


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
    config: SearchConfig | None,
    wanted: LineDemands,
    progress: Callable[[int], None] = lambda segments: None,
) -> list[TaggedTranslation]:
    """Return the translation of each document, as `translate_markup` describes it."""
    config = as_config(config)
    check_search(config)
    wanted.check(config)
    segments = [one for document in documents for one in document.segments]
    if wanted.placeholders is None and any(one.kept for one in segments):
        wanted = replace(wanted, placeholders=ONLY_MARKS)
    lines = [one.text for one in segments]
    rules = dict[str, Any](glossary=wanted.glossary, placeholders=wanted.placeholders)
    if wanted.segment == "paragraph":
        parts = translate_in_segments(translator, lines, config, progress, sentences=wanted.sentences, **rules)
        translations = [joined_translation(*part, config) for part in parts]
    else:
        translations = translator.translations(lines, config, progress, **rules)
        parts = [(Segments([line], ["", ""]), [one]) for line, one in zip(lines, translations, strict=True)]
    tagged = [part if one.elements else None for one, part in zip(segments, parts, strict=True)]
    linked = _linked(translator, tagged, wanted)
    placed = [
        place_tags(one, pair.source, translation.text, pair.target, pair.links)
        for one, translation, pair in zip(segments, translations, linked, strict=True)
    ]
    coming = iter(zip(translations, placed, strict=True))
    found = list[TaggedTranslation]()
    for document in documents:
        own = [next(coming) for _ in document.segments]
        found.append(TaggedTranslation(document.joined([text for _, text in own]), [one for one, _ in own]))
    return found


def check_search(config: SearchConfig) -> None:
    """Raise ConfigError for a search that tags can't come back from."""
    if config.sample:
        raise ConfigError("text with tags is translated by a search, not by drawing: leave out `sample`")
    if config.n_best > 1:
        raise ConfigError(f"text with tags has one translation, got n_best {config.n_best}: leave it out")


def _linked(
    translator: Translator,
    parts: Sequence[tuple[Segments, Sequence[Translation]] | None],
    wanted: LineDemands,
) -> list[LinkedPair]:
    """Return the words of each text and of its translation with their links, aligned sentence by sentence.

    A text without tags, given as None, has no words.
    """
    sources, targets = list[str](), list[str]()
    for segments, translations in filter(None, parts):
        sources += segments.texts
        targets += [one.text for one in translations]
    pairs = iter(TagAligner(translator).align(sources, targets, wanted.pattern, wanted.glossary) if sources else ())
    found = list[LinkedPair]()
    for part in parts:
        segments, translations = part or (Segments([], [""]), [])
        own = islice(pairs, len(translations))
        found.append(joined_pair(own, segments, [one.text for one in translations]))
    return found
