"""Translation of a document, of which all bytes but those of the translations stay as they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glassformer.decoding import read_limited
from glassformer.documents.endings import ENDINGS, kind_of, tags_of
from glassformer.documents.reading import LARGEST, lines_of, read_units
from glassformer.documents.units import apply
from glassformer.errors import ConfigError, DataError
from glassformer.files import check_apart, check_writable, replacing
from glassformer.generation.config import SearchConfig, Segmentation, as_config
from glassformer.generation.files import FileCounts, LineDemands, translations_of_chunk
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.placeholders import DEFAULT
from glassformer.generation.translator import Translator
from glassformer.markup.segments import Document
from glassformer.markup.translate import read_texts, translate_documents
from glassformer.pairs.lines import readable
from glassformer.run.config import read_config


@dataclass(frozen=True)
class DocumentResult:
    """The number of units of a document, and what became of them.

    Example: docs/howto/documents.md.
    """

    translated: int
    kept: int
    """Units that had a translation already, which stayed."""
    plain: FileCounts
    """Cut translations, and terms and placeholders, of the units without tags, which are counted from 1."""
    tagged: FileCounts
    """Cut translations, and terms and placeholders, of the units with tags, which are counted from 1 too."""


def translate_document(
    translator: Translator,
    input: str | Path,
    output: str | Path,
    *,
    config: SearchConfig | None = None,
    segment: Segmentation = "line",
    sentences: int | None = None,
    glossary: Glossary | None = None,
    placeholders: str | None = DEFAULT,
    languages: tuple[str, str] | None = None,
    overwrite_targets: bool = False,
) -> DocumentResult:
    """Translate a document: XLIFF 1.2 or 2 (.xliff, .xlf), .tmx, .po, .pot, .srt, .vtt, the strings of
    .json, or a web page (.html, .htm).

    Only the bytes of translations change, and in XLIFF the state of their units, which becomes "translated". Units
    that have a translation keep it, unless `overwrite_targets` is set. The lines of a text are translated apart; with
    the `segment` "paragraph" its sentences too, so many `sentences` at once (see `translate_paragraphs`). `glossary`
    and `placeholders` are as in `Translator.translate`, but placeholders are copied unless that is None: programs
    fail without theirs. `languages` are those of a TMX file, such as ("en", "de"); left
    out, those of the run. Tags in a text come back on the words that their words became, as `translate_markup` does it.

    `output` is another file than `input`, and appears when it is complete. Raises DataError for a document that can't
    be read: it is of another kind, damaged, not UTF-8, larger than 64 MiB, or declares entities. Raises ConfigError for
    settings that don't go together, and where text with tags is to be drawn.

    Example: docs/howto/documents.md.
    """
    input, output, config = Path(input), Path(output), as_config(config)
    kind = kind_of(input)
    if kind is None:
        raise DataError(f"{input} must be a document that ends with one of {', '.join(ENDINGS)}")
    wanted = LineDemands(segment, glossary, placeholders, sentences)
    wanted.check(config)
    if config.n_best > 1:
        raise ConfigError(f"a document has one translation of each text: n_best must be 1, got {config.n_best}")
    check_apart({"output": output}, {"input": input})
    check_writable(output)
    with readable(input):
        content = read_limited(input, LARGEST, error=DataError)
    units = read_units(content, kind, str(input), languages or _languages_of_run(translator))
    open_units = [unit for unit in units if overwrite_targets or not unit.is_translated]
    plain = [unit for unit in open_units if not unit.has_tags]
    tagged = [unit for unit in open_units if unit.has_tags]
    result = DocumentResult(len(open_units), len(units) - len(open_units), FileCounts(), FileCounts())
    read = read_texts([unit.source for unit in tagged], tags_of(kind), 1, "text {} with tags")
    # Those with tags come first, so that settings which they can't have are refused before the long work.
    texts = _translated_with_tags(translator, read, config, wanted, result.tagged) if read else []
    texts += _translated(translator, [unit.source for unit in plain], config, wanted, result.plain)
    edits = [edit for unit, text in zip([*tagged, *plain], texts, strict=True) for edit in unit.place(text)]
    with replacing(output) as file:
        file.write(apply(content, edits))
    return result


def _languages_of_run(translator: Translator) -> tuple[str, str] | None:
    """Return the languages that the translator's run folder names, if it has one and they are there."""
    return None if translator.folder is None else read_config(translator.folder).training.languages


def _translated(
    translator: Translator, sources: Sequence[str], config: SearchConfig, wanted: LineDemands, counts: FileCounts
) -> list[str]:
    """Return the translation of each text, whose white space at the ends and between lines stays."""
    split = [lines_of(source) for source in sources]
    lines = [line for one in split for line in one.texts]
    found = (best[0] for best in translations_of_chunk(translator, lines, 1, config, wanted=wanted))
    texts = list[str]()
    for number, one in enumerate(split, start=1):
        of_unit = [next(found) for _ in one.texts]
        counts.count_parts(number, of_unit)
        texts.append(one.joined([translation.text for translation in of_unit]))
    return texts


def _translated_with_tags(
    translator: Translator, texts: Sequence[Document], config: SearchConfig, wanted: LineDemands, counts: FileCounts
) -> list[str]:
    """Return the translation of each text, with its tags."""
    found = translate_documents(translator, texts, config, wanted)
    for number, one in enumerate(found, start=1):
        counts.count_parts(number, one.segments)
    return [one.text for one in found]
