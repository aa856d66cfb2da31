"""Translation of a document, of which all bytes but those of the translations stay as they are."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from glassformer.decoding import read_limited
from glassformer.documents import po, strings, subtitles, tmx, xliff
from glassformer.documents.units import Unit, apply
from glassformer.errors import ConfigError, DataError
from glassformer.files import check_writable, replacing
from glassformer.generation.config import SearchConfig, as_config
from glassformer.generation.files import Cuts
from glassformer.generation.segments.paragraphs import Segment, check_segment, translate_paragraphs
from glassformer.generation.segments.sentences import segments_of
from glassformer.generation.translator import Translator
from glassformer.pairs.lines import readable
from glassformer.run.config import read_config

READERS: Mapping[str, Callable[[bytes, str], list[Unit]]] = {
    ".xliff": xliff.read_units,
    ".xlf": xliff.read_units,
    ".po": po.read_units,
    ".pot": po.read_units,
    ".srt": subtitles.read_units,
    ".json": strings.read_units,
}
"""The readers of documents by the ending of their names; that of .tmx has to know the languages too."""
ENDINGS = (*READERS, ".tmx")
LARGEST = 1 << 26
"""Most bytes of a document, 64 MiB: its elements take many times its size."""
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
    """Units whose translation reached its limit before its end, counted from 1 among those that were translated."""


def is_document(path: str | Path) -> bool:
    """Return whether a file is a document by the ending of its name."""
    return Path(path).suffix.lower() in ENDINGS


def translate_document(
    translator: Translator,
    input: str | Path,
    output: str | Path,
    *,
    config: SearchConfig | None = None,
    segment: Segment = "line",
    languages: tuple[str, str] | None = None,
    overwrite_targets: bool = False,
    markup: Markup | None = None,
) -> DocumentResult:
    """Translate a document: XLIFF 1.2 or 2 (.xliff, .xlf), .tmx, .po, .pot, .srt, or the strings of .json.

    Only the bytes of translations change, and in XLIFF the state of their units, which becomes "translated". Units
    that have a translation keep it, unless `overwrite_targets` is set. The lines of a text are translated apart; with
    the `segment` "paragraph" its sentences too. `languages` are those of a TMX file, such as ("en", "de"); left out,
    those of the run. Texts with tags are given to `markup` as XML (of XLIFF and TMX) or HTML, and stay untranslated
    without it.

    `output` appears when it is complete. DataError says why a document can't be read: it is of another kind, damaged,
    not UTF-8, larger than 64 MiB, or declares entities.

    Example: docs/howto/documents.md.
    """
    input, output, config = Path(input), Path(output), as_config(config)
    check_segment(segment, config)
    if config.n_best > 1:
        raise ConfigError(f"a document has one translation of each text: n_best must be 1, got {config.n_best}")
    check_writable(output)
    with readable(input):
        content = read_limited(input, LARGEST, error=DataError)
    units = read_units(content, input, languages or _languages_of_run(translator))
    open_units = [unit for unit in units if overwrite_targets or not unit.is_translated]
    plain = [unit for unit in open_units if not unit.has_tags]
    tagged = [unit for unit in open_units if unit.has_tags]
    cuts = Cuts()
    texts = _translated(translator, [unit.source for unit in plain], config, segment, cuts)
    done = [*zip(plain, texts, strict=True)]
    if markup is not None:
        done += zip(tagged, markup([unit.source for unit in tagged]), strict=True)
    edits = [edit for unit, text in done for edit in unit.place(text)]
    with replacing(output) as file:
        file.write(apply(content, edits))
    return DocumentResult(len(done), len(units) - len(open_units), len(plain) + len(tagged) - len(done), cuts)


def read_units(content: bytes, path: Path, languages: tuple[str, str] | None) -> list[Unit]:
    """Return the units of a document; DataError where it is none, or can't be read."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError(f"{path} must be a document that ends with one of {', '.join(ENDINGS)}")
    reader = partial(tmx.read_units, languages=languages) if ending == ".tmx" else READERS[ending]
    return reader(content, str(path))


def _languages_of_run(translator: Translator) -> tuple[str, str] | None:
    """Return the languages that the translator's run folder names, if it has one and they are there."""
    return None if translator.folder is None else read_config(translator.folder).training.languages


def _translated(
    translator: Translator, sources: Sequence[str], config: SearchConfig, segment: Segment, cuts: Cuts
) -> list[str]:
    """Return the translation of each text, whose white space at the ends and between lines stays."""
    split = [segments_of(re.split(r"(?<=\n)", source)) for source in sources]
    lines = [line for one in split for line in one.texts]
    if segment == "paragraph":
        found = iter(translate_paragraphs(translator, lines, config))
    else:
        found = iter(translator.translations(lines, config))
    texts = []
    for number, one in enumerate(split, start=1):
        of_unit = [next(found) for _ in one.texts]
        cuts.count(of_unit, number)
        texts.append(one.joined([translation.text for translation in of_unit]))
    return texts
