"""Translation from file to file that takes hours, and continues after a stop with what `partial` has kept."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from glassformer.errors import ArgumentError, counted, noting, shown
from glassformer.files import check_apart
from glassformer.generation import stream
from glassformer.generation.config import SearchConfig, Segmentation, as_config
from glassformer.generation.engines.precision import Precision
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.lines import LexicalCounts, check_searches
from glassformer.generation.lexical.placeholders import compiled
from glassformer.generation.partial import PartialOutput, is_finished, partial_output
from glassformer.generation.segments.paragraphs import check_segment, translate_paragraphs, use_of_parts
from glassformer.generation.translator import Translation, Translator
from glassformer.pairs.files import PairFiles
from glassformer.pairs.lines import read_lines
from glassformer.run.config import read_config
from glassformer.run.names import CONFIG, WEIGHTS
from glassformer.text.vocabulary import VOCABULARY


@dataclass
class Cuts:
    """The lines whose translation reached its limit before its end: how many, and which came first.

    Example: docs/howto/documents.md.
    """

    lines: int = 0
    first: int | None = None
    """Number of the first of them, counted from 1."""

    def count(self, translations: Sequence[Translation], number: int) -> None:
        """Count the line of this number if one of its translations is cut."""
        if any(one.cut for one in translations):
            self.lines += 1
            self.first = number if self.first is None else self.first

    def __str__(self) -> str:
        what = "1 translation was" if self.lines == 1 else f"{self.lines:,} translations were"
        return f"{what} cut at the limit of tokens, the first of line {self.first:,}"


@dataclass
class FileCounts:
    """Counts the translations of a file that were cut, and the terms and placeholders in them.

    Example: docs/howto/documents.md.
    """

    cuts: Cuts = field(default_factory=Cuts)
    terms: LexicalCounts = field(default_factory=LexicalCounts)

    def count(self, number: int, translations: Sequence[Translation]) -> None:
        """Count the best translations of the line of this number."""
        self.cuts.count(translations, number)
        if translations and (use := translations[0].lexical) is not None:
            self.terms.add(number, use)

    def count_parts(self, number: int, parts: Sequence[Translation]) -> None:
        """Count the line of this number, whose parts were translated apart."""
        self.cuts.count(parts, number)
        if (use := use_of_parts(parts)) is not None:
            self.terms.add(number, use)


@dataclass(frozen=True)
class LineDemands:
    """Holds the demands on each line's translation, besides the settings of the search."""

    segment: Segmentation = "line"
    glossary: Glossary | None = None
    placeholders: str | None = None
    sentences: int | None = None

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The expression of the placeholders."""
        return None if self.placeholders is None else compiled(self.placeholders)

    @property
    def is_lexical(self) -> bool:
        """Return whether there are terms or placeholders to look for."""
        return self.glossary is not None or self.placeholders is not None

    def check(self, config: SearchConfig, *, has_prefixes: bool = False) -> None:
        """Raise ConfigError where the settings can't be combined, ArgumentError for what is no glossary."""
        check_segment(self.segment, config, has_prefixes=has_prefixes, sentences=self.sentences)
        if self.glossary is not None and not isinstance(self.glossary, Glossary):
            raise ArgumentError(f"glossary must be a Glossary, got {shown(self.glossary)}: pass Glossary(...) of it")
        if self.is_lexical:
            check_searches(config)


def translate_file(
    translator: Translator,
    input: str | Path,
    output: str | Path,
    *,
    config: SearchConfig | None = None,
    prefixes: str | Path | None = None,
    scores: bool = False,
    resume: bool = False,
    segment: Segmentation = "line",
    sentences: int | None = None,
    glossary: Glossary | None = None,
    placeholders: str | None = None,
) -> FileCounts:
    """Translate the lines of the file `input` (UTF-8, plain or .gz) into the file `output`.

    `output` must be another file than `input`; it appears when it is complete. If the call is stopped, what is done
    stays in `output`.partial. The same call with `resume` then continues, and writes the same bytes as without the
    stop. It refuses to continue if the beginning of the input, the settings, the device, the precision or the files of
    the translator's run folders have changed. A translator made by `Translator.of` has no run folder: the caller must
    see to it that its model is the same.

    `prefixes` is a file with a line for each line of the input, with which its translation must begin (an empty line
    allows anything). With `scores`, a score and a tab stand before each translation. With `config.n_best` above 1, the
    number of the line and a tab stand before these. With the `segment` "paragraph" lines are translated sentence by
    sentence, or `sentences` of them at once (see `translate_paragraphs`). `glossary` and `placeholders` are as in
    `Translator.translate`.

    Returns the counts of cut translations, and of terms and placeholders, in the lines that this call has translated.
    On a terminal a line of progress shows on standard error. Raises DataError or ConfigError, which says which file or
    setting can't be used.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from glassformer import ModelConfig, Transformer, Translator, translate_file
    >>> from glassformer.text.tokenizer import SymbolTokenizer
    >>> letters = SymbolTokenizer("abc")
    >>> sizes = ModelConfig.tiny(source_vocab_size=letters.vocab_size, target_vocab_size=letters.vocab_size)
    >>> _ = torch.manual_seed(1)
    >>> translator = Translator.of(Transformer(sizes), letters, letters)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = Path(folder, "source.txt"), Path(folder, "target.txt")
    ...     _ = source.write_text("a b\\n\\nc\\n")
    ...     counts = translate_file(translator, source, target)
    ...     target.read_text().count("\\n")
    3
    """
    input, output, config = Path(input), Path(output), as_config(config)
    prefix_file = None if prefixes is None else Path(prefixes)
    check_apart({"output": output}, {"input": input, "prefixes": prefix_file})
    if prefix_file is not None:
        PairFiles(prefix_file).check()
    wanted = LineDemands(segment, glossary, placeholders, sentences)
    wanted.check(config, has_prefixes=prefix_file is not None)
    settings = _settings(translator, config, wanted, scores=scores, prefixes=prefix_file)
    counts = FileCounts()
    with partial_output(output, settings, resume=resume) as partial:
        lines = read_lines(input)
        partial.skip(lines, input)
        total = stream.count_lines(input)
        chunks = chunks_to_translate(translator, lines, partial.lines, total, wanted)
        with noting(lambda: _kept(partial, "continue with --resume")):
            beside = stream.with_prefixes(chunks, prefix_file, translator.target_tokenizer, total, done=partial.lines)
            for first, chunk, beginnings in beside:
                output_of_chunk = translate_chunk(
                    translator, chunk, first, config, beginnings, scores=scores, wanted=wanted, counts=counts
                )
                partial.append(chunk, output_of_chunk)
    return counts


def translate_once(translator: Translator, input: Path, output: Path, config: SearchConfig) -> None:
    """Write what `translate_file` writes with scores; go on where that was stopped, or do nothing if it is complete.

    For work that is begun again after a stop, and doesn't know how far it came.
    """
    if is_finished(output):
        return
    settings = _settings(translator, config, LineDemands(), scores=True)
    with partial_output(output, settings, resume=True) as partial:
        lines = read_lines(input)
        partial.skip(lines, input)
        chunks = chunks_to_translate(translator, lines, partial.lines, stream.count_lines(input), LineDemands())
        with noting(lambda: _kept(partial, "the same command continues")):
            for first, chunk in chunks:
                partial.append(chunk, translate_chunk(translator, chunk, first, config, scores=True))


def _settings(
    translator: Translator, config: SearchConfig, wanted: LineDemands, *, scores: bool, prefixes: Path | None = None
) -> dict[str, Any]:
    """Return the settings of a translator's output."""
    return settings_of_output(
        run_digest=digest_of_runs(translator.folders),
        device=translator.device.type,
        precision=translator.precision,
        config=config,
        wanted=wanted,
        scores=scores,
        prefixes=prefixes,
    )


def chunks_to_translate(
    translator: Translator, lines: Iterable[str], done: int, total: int | None, wanted: LineDemands
) -> Iterator[stream.Chunk]:
    """Yield the lines that follow those that are done, in chunks, and show progress and unknown text."""
    chunks = stream.in_chunks(lines, stream.LINES_AT_ONCE, first=done + 1)
    chunks = stream.naming_unknown(chunks, translator.source_tokenizer, wanted.pattern)
    return stream.counting(chunks, progress_words(translator), "lines", total)


def _kept(partial: PartialOutput, advice: str) -> str:
    """Return how much of a stopped translation is kept, and how it is continued; "" where nothing is."""
    return f"{partial.path} has the translations of {counted(partial.lines, 'line')}: {advice}" if partial.lines else ""


def translate_chunk(
    translator: Translator,
    lines: Sequence[str],
    first: int,
    config: SearchConfig,
    prefixes: Sequence[str] | None = None,
    *,
    scores: bool = False,
    wanted: LineDemands | None = None,
    counts: FileCounts | None = None,
) -> bytes:
    """Return the output for a chunk of an input's lines, of which the first has the number `first`."""
    found = translations_of_chunk(translator, lines, first, config, prefixes, wanted=wanted, counts=counts)
    return chunk_lines(found, first, config, scores=scores)


def translations_of_chunk(
    translator: Translator,
    lines: Sequence[str],
    first: int,
    config: SearchConfig,
    prefixes: Sequence[str] | None = None,
    *,
    wanted: LineDemands | None = None,
    counts: FileCounts | None = None,
) -> list[list[Translation]]:
    """Return the best translations of each line of a chunk, of which the first has the number `first`.

    The number is added to the seed, so that equal lines of different chunks are drawn differently. What comes of
    the lines is added to `counts`.
    """
    config = replace(config, seed=(config.seed + first - 1) % (1 << 32))
    wanted = wanted or LineDemands()
    lexical = dict[str, Any](glossary=wanted.glossary, placeholders=wanted.placeholders)
    if wanted.segment == "paragraph":
        one_each = translate_paragraphs(translator, lines, config, sentences=wanted.sentences, **lexical)
        found = [[one] for one in one_each]
    else:
        found = translator.translate_n_best(lines, config, prefixes=prefixes, **lexical)
    if counts is not None:
        for number, best in enumerate(found, start=first):
            counts.count(number, best)
    return found


def chunk_lines(
    translations: Sequence[Sequence[Translation]], first: int, config: SearchConfig, *, scores: bool = False
) -> bytes:
    """Return the lines of output for the translations of a chunk."""
    output = []
    for number, best in enumerate(translations, start=first):
        for translation in best:
            columns = [str(number)] if config.n_best > 1 else []
            columns += [f"{translation.score:.4f}"] if scores else []
            output.append("\t".join([*columns, translation.text]) + "\n")
    return "".join(output).encode()


def progress_words(translator: Translator) -> str:
    """Return what the progress line says is being done."""
    return f"translating in {translator.precision}"


def settings_of_output(
    *,
    run_digest: str | None,
    device: str,
    precision: Precision,
    config: SearchConfig,
    wanted: LineDemands,
    scores: bool,
    prefixes: Path | None = None,
) -> dict[str, Any]:
    """Return what must be the same for a stopped translation to continue, as values that JSON can hold."""
    given = {
        "glossary (digest)": None if wanted.glossary is None else wanted.glossary.digest,
        "placeholders": wanted.placeholders,
        "segment": None if wanted.segment == "line" else wanted.segment,
        "sentences": wanted.sentences,
    }
    return {
        "run folder (digest)": run_digest,
        "device": device,
        "precision": str(precision),
        "scores": scores,
        "prefixes (digest)": None if prefixes is None else digest_of_files([prefixes]),
        **{name: value for name, value in given.items() if value is not None},
        **asdict(config),
    }


def files_of_run(folder: Path) -> list[Path]:
    """Return those files of a run folder that translations depend on."""
    config = read_config(folder)
    names = [CONFIG, WEIGHTS, *config.tokenizers]
    names += [str(Path(name).with_suffix(VOCABULARY)) for name in config.tokenizers]
    return [folder / name for name in names]


def digest_of_run(folder: Path) -> str:
    """Return a digest of those files of a run folder that translations depend on."""
    return digest_of_files(files_of_run(folder))


def digest_of_runs(folders: Sequence[Path]) -> str | None:
    """Return a digest for each of the runs that translate together, or None where there is none."""
    return " ".join(map(digest_of_run, folders)) or None


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return a digest of the content of these files; missing ones are passed over."""
    digest = hashlib.blake2b(digest_size=6)
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()
