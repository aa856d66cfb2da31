"""Translation of a document, of which all bytes but those of the translations stay as they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glassformer.decoding import read_limited
from glassformer.documents.reading import LARGEST, lines_of, read_units
from glassformer.documents.units import apply
from glassformer.errors import ConfigError, DataError
from glassformer.files import check_apart, check_writable, replacing
from glassformer.generation.config import SearchConfig, as_config
from glassformer.generation.files import Cuts, FileCounts, FileSettings, translations_of_chunk
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.lines import LexicalCounts
from glassformer.generation.lexical.placeholders import DEFAULT
from glassformer.generation.segments.sentences import Segmentation
from glassformer.generation.translator import Translator
from glassformer.pairs.lines import readable
from glassformer.run.config import read_config

Markup = Callable[[Sequence[str]], Sequence[str]]
"""Translates texts that hold tags, of XML in XLIFF and TMX, of HTML in other documents; returns them with the same."""


@dataclass(frozen=True)
class DocumentResult:
    """The number of units of a document, and what became of them.

    Example: docs/howto/documents.md.
    """

    translated: int
    kept: int
    """Units that had a translation already, which stayed."""
    tagged: int
    """Units with tags in their text, which were left untranslated."""
    cuts: Cuts
    """Units whose translation reached its limit before its end, counted from 1 among those without tags."""
    terms: LexicalCounts = field(default_factory=LexicalCounts)
    """Terms and placeholders of the units without tags, which are counted in the same way."""


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
    markup: Markup | None = None,
) -> DocumentResult:
    """Translate a document: XLIFF 1.2 or 2 (.xliff, .xlf), .tmx, .po, .pot, .srt, the strings of .json,
    or a web page (.html, .htm).

    Only the bytes of translations change, and in XLIFF the state of their units, which becomes "translated". Units
    that have a translation keep it, unless `overwrite_targets` is set. The lines of a text are translated apart; with
    the `segment` "paragraph" its sentences too, so many `sentences` at once (see `translate_paragraphs`). `glossary`
    and `placeholders` are as in `Translator.translate`, but placeholders are copied unless that is None: programs
    fail without theirs. `languages` are those of a TMX file, such as ("en", "de"); left
    out, those of the run. Texts with tags are given to `markup`, as XML (of XLIFF and TMX) or HTML, and stay
    untranslated without it.

    `output` is another file than `input`, and appears when it is complete. DataError says why a document can't be
    read: it is of another kind, damaged, not UTF-8, larger than 64 MiB, or declares entities.

    Example: docs/howto/documents.md.
    """
    input, output, config = Path(input), Path(output), as_config(config)
    wanted = FileSettings(segment, glossary, placeholders, sentences)
    wanted.check(config)
    if config.n_best > 1:
        raise ConfigError(f"a document has one translation of each text: n_best must be 1, got {config.n_best}")
    check_apart({"output": output}, {"input": input})
    check_writable(output)
    with readable(input):
        content = read_limited(input, LARGEST, error=DataError)
    units = read_units(content, input, languages or _languages_of_run(translator))
    open_units = [unit for unit in units if overwrite_targets or not unit.is_translated]
    plain = [unit for unit in open_units if not unit.has_tags]
    tagged = [unit for unit in open_units if unit.has_tags]
    counts = FileCounts()
    texts = _translated(translator, [unit.source for unit in plain], config, wanted, counts)
    done = [*zip(plain, texts, strict=True)]
    if markup is not None:
        done += zip(tagged, markup([unit.source for unit in tagged]), strict=True)
    edits = [edit for unit, text in done for edit in unit.place(text)]
    with replacing(output) as file:
        file.write(apply(content, edits))
    left = len(plain) + len(tagged) - len(done)
    return DocumentResult(len(done), len(units) - len(open_units), left, counts.cuts, counts.terms)


def _languages_of_run(translator: Translator) -> tuple[str, str] | None:
    """Return the languages that the translator's run folder names, if it has one and they are there."""
    return None if translator.folder is None else read_config(translator.folder).training.languages


def _translated(
    translator: Translator, sources: Sequence[str], config: SearchConfig, wanted: FileSettings, counts: FileCounts
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
