"""`glassformer translate`: lines to lines, as a stream or from file to file, and documents."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from glassformer.alignment.links import pharaoh
from glassformer.cluster.config import ClusterConfig
from glassformer.documents.endings import ENDINGS, kind_of
from glassformer.errors import ConfigError, DataError, counted
from glassformer.generation.config import SearchConfig, Segmentation
from glassformer.generation.lexical.placeholders import DEFAULT
from glassformer.run.config import read_config
from glassformer.settings.checks import Flag
from glassformer.terminal import loading, say

if TYPE_CHECKING:
    from glassformer.alignment.attention import AttentionAligner
    from glassformer.confidence.estimate import ConfidenceEstimator, LineConfidence
    from glassformer.generation.files import Cuts, FileCounts, LineDemands
    from glassformer.generation.lexical.glossary import Glossary
    from glassformer.generation.stream import Chunk
    from glassformer.generation.translator import Translation, Translator


SEARCH = {"search": tuple(one.name for one in fields(SearchConfig))}
NONE = "none"
"""The name of no placeholders."""
HEADINGS = {"cluster": tuple(one.name for one in fields(ClusterConfig)), **SEARCH}
"""Headings of the flags: those of a search, and all of this command's."""


@dataclass(frozen=True, kw_only=True)
class TranslateFlags:
    """Translate lines: arguments, standard input, or a file.

    Line n of the output is the translation of line n of the input; empty lines stay empty. With --n-best N above 1
    each line gives up to N lines: its number, a tab, a translation. If a translation from file to file is stopped,
    what is done is kept, and the same command with --resume continues. It refuses to continue if the settings have
    changed, or the device or precision that `auto` picks.

    An input that ends with .xliff, .xlf, .tmx, .po, .pot, .srt, .vtt, .json, .html or .htm is a document: its texts
    are translated and all its other bytes stay.

    With --cluster, input and output are folders, on this machine or in a store such as s3://bucket/folder. The input
    may have patterns: 'folder/*.parquet|*.txt.gz'. A row that can't be read is reported in OUTPUT/_problems.jsonl.
    Documents are refused there.
    """

    run: Annotated[Path, Flag(positional=True)]
    """The run folder that training left."""
    text: Annotated[tuple[str, ...], Flag(positional=True)] = ()
    """Lines to translate. Left out: --input, or else standard input."""
    ensemble: Annotated[tuple[Path, ...], Flag("RUN")] = ()
    """More runs, which choose each token together with the first: its probability is the mean of theirs. They must have
    the tokenizers of the first, whose attention is used. TEXT stands before this flag."""
    input: Path | None = None
    """File to translate, a line each, plain or packed. Left out: standard input."""
    output: Path | None = None
    """File to write; it appears when it is complete. Left out: standard output."""
    prefixes: Path | None = None
    """File with what each line's translation must begin with, a line for each line of the input; empty: anything."""
    format: Literal["plain", "xml", "html"] = "plain"
    """The kind of lines: plain text, or text with tags. A tag comes back around the translation of its words. A line of
    xml must be well-formed by itself; a line of html may be any piece of HTML."""
    glossary: Path | None = None
    """File of terms, one a line: the term, a tab, its translation (several forms with | between them). If a line has
    the term, its translation has one of the forms. A term without a translation is kept."""
    keep: Path | None = None
    """File of words that are kept as they are, a line each."""
    placeholders: Annotated[str | None, Flag("PATTERN")] = None
    """Copy what matches this regular expression as it is; default: {name}, %s, URLs, e-mail addresses, <x id="1"/>;
    none: nothing. Left out: default in documents, none in lines."""
    resume: bool = False
    """Continue from OUTPUT.partial, where the same command was stopped, to the same bytes as without the stop."""
    segment: Segmentation = "line"
    """line: translate each line as it is. paragraph: translate each line sentence by sentence, so that none is too
    long, and join the translations as the sentences stood."""
    sentences: int | None = None
    """With --segment paragraph: most sentences that go through the model at once. Left out: as many as the run was
    trained to read (`train --join-lines`)."""
    overwrite_targets: bool = False
    """Documents: translate the texts that have a translation too."""
    languages: Annotated[tuple[str, str], Flag("CODE")] | None = None
    """Documents: languages of a .tmx file, such as en de. Left out: those of the run."""
    alignments: Path | None = None
    """File for the word alignments: for each line of the output a line of links such as 0-0 1-2 (source before target).
    They come from the heads that `glassformer align RUN` has chosen."""
    confidence: Path | None = None
    """File for the confidence: for each line of the output a line of JSON with how likely each word is right, and which
    source words may be left out. The run needs a calibration: `glassformer evaluate RUN --fit-calibration`."""
    scores: bool = False
    """Put the score (log-probability / length penalty) and a tab before each translation."""
    device: Annotated[str, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: Annotated[str, Flag("TYPE")] = "auto"
    """float32, bfloat16, float16, int8, or auto: what is fastest here (int8 on recent CPUs)."""
    pool: ClusterConfig = field(default_factory=ClusterConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


def translate(flags: TranslateFlags) -> int:
    """Translate from file to file, as a stream, or a document; or a folder, on a cluster."""
    for name, path, stream in (("--input", flags.input, "input"), ("--output", flags.output, "output")):
        if path == Path("-"):
            raise ConfigError(f"{name} must be a file, got -: leave it out for standard {stream}")
    for run in (flags.run, *flags.ensemble):
        read_config(run)  # what is wrong with it is said before torch is loaded
    if flags.pool.is_wanted:
        return _translate_folder(flags)
    document = flags.input if flags.input is not None and kind_of(flags.input) else None
    if document is not None:
        _check_document(flags, document)
    elif flags.overwrite_targets or flags.languages is not None:
        raise ConfigError(f"--overwrite-targets and --languages are for documents ({', '.join(ENDINGS)})")
    elif flags.input is not None:
        _check_input(flags.input)
    _check_flags(flags)
    with loading():
        from glassformer.device import tame_memory
        from glassformer.files import check_writable
        from glassformer.generation.files import FileCounts, LineDemands, translate_file
        from glassformer.generation.translator import Translator
        from glassformer.markup.translate import check_search

    tame_memory()
    if flags.format != "plain":
        check_search(flags.search)
    for path in filter(None, (flags.alignments, flags.confidence, flags.output)):
        check_writable(path)
    placeholders = _placeholders(flags, DEFAULT if document is not None and not flags.search.sample else NONE)
    wanted = LineDemands(flags.segment, _glossary(flags), placeholders, flags.sentences)
    wanted.check(flags.search, has_prefixes=flags.prefixes is not None)
    _check_files(flags)
    translator = Translator.load_ensemble([flags.run, *flags.ensemble], flags.device, flags.precision)
    counts = FileCounts()
    beside = flags.alignments is not None or flags.confidence is not None
    if document is not None:
        counts = _translate_document(translator, flags, document, wanted)
    elif flags.input is None or flags.output is None or beside or flags.format != "plain":
        _translate_stream(translator, flags, wanted, counts)
    else:
        counts = translate_file(
            translator,
            flags.input,
            flags.output,
            config=flags.search,
            prefixes=flags.prefixes,
            scores=flags.scores,
            resume=flags.resume,
            **vars(wanted),
        )
    if counts.terms.lines or (wanted.is_lexical and document is None):
        say(str(counts.terms))
    if counts.cuts.lines:
        _warn_of_cuts(counts.cuts, flags)
    return 0


def _check_flags(flags: TranslateFlags) -> None:
    """Raise ConfigError for flags that can't be combined."""
    if flags.text and (flags.input is not None or flags.prefixes is not None or flags.resume):
        raise ConfigError("--input, --prefixes and --resume are for files, and can't be combined with TEXT")
    for text in flags.text:
        if not text.isascii() and text.encode(errors="replace").decode() != text:
            raise ConfigError(f"the text {text.encode(errors='backslashreplace').decode()} is not UTF-8")
    if flags.resume and (flags.input is None or flags.output is None):
        raise ConfigError("--resume needs --input and --output: a stream can't be read from its beginning again")
    if flags.alignments is not None and flags.resume:
        raise ConfigError("--alignments and --resume exclude each other: align the two files with `glassformer align`")
    if flags.format != "plain":
        _check_format(flags)
    if flags.confidence is not None and (flags.resume or flags.search.replace_unknown):
        raise ConfigError("--confidence can't be combined with --resume and --replace-unknown: leave them out")
    if flags.confidence is not None and (flags.glossary or flags.keep or _placeholders(flags)):
        raise ConfigError(
            "--confidence can't be combined with --glossary, --keep and --placeholders, which write words that no "
            "confidence is known of: leave them out"
        )
    if flags.confidence is not None and flags.search.max_source_tokens != SearchConfig.max_source_tokens:
        raise ConfigError("--confidence is of lines that are read whole: leave out --max-source-tokens")
    if flags.confidence is not None and flags.ensemble:
        raise ConfigError("--confidence is that of one run's model: leave out --ensemble")
    if flags.confidence is not None and flags.segment != "line":
        raise ConfigError("--confidence is of lines that are translated whole: leave out --segment")
    if (flags.glossary or flags.keep or _placeholders(flags)) and flags.search.sample:
        raise ConfigError("--glossary, --keep and --placeholders need a search: they can't be combined with --sample")
    for name, path in (("--alignments", flags.alignments), ("--confidence", flags.confidence)):
        if path == Path("-"):
            raise ConfigError(f"{name} must be a file, got -: standard output is for the translations")


def _check_files(flags: TranslateFlags) -> None:
    """Raise ConfigError where a file to write is one that is read."""
    from glassformer.files import check_apart
    from glassformer.run.config import own_files

    written = {name: getattr(flags, name) for name in ("alignments", "confidence", "output")}
    read = {name: getattr(flags, name) for name in ("input", "prefixes", "glossary", "keep")}
    for run in (flags.run, *flags.ensemble):
        check_apart(
            {f"--{name}": path for name, path in written.items()},
            {f"--{name}": path for name, path in read.items()} | own_files(run),
        )


def _translate_folder(flags: TranslateFlags) -> int:
    """Translate the files of a folder on a cluster."""
    if flags.input is None or flags.output is None:
        raise ConfigError("--cluster needs --input and --output: the folder to translate, and the one to write")
    if flags.text:
        raise ConfigError("--cluster is for folders, and can't be combined with TEXT")
    for name in ("ensemble", "prefixes", "alignments", "confidence", "languages", "overwrite_targets"):
        if getattr(flags, name):
            raise ConfigError(f"--{name.replace('_', '-')} can't be combined with --cluster")
    if flags.format != "plain":
        raise ConfigError(f"--format {flags.format} can't be combined with --cluster: translate its files one by one")
    with loading():
        from glassformer.cluster.bulk import translate_folder
    result = translate_folder(
        flags.run,
        flags.input,
        flags.output,
        config=flags.search,
        cluster=flags.pool,
        device=flags.device,
        precision=flags.precision,
        scores=flags.scores,
        resume=flags.resume,
        segment=flags.segment,
        sentences=flags.sentences,
        glossary=_glossary(flags),
        placeholders=_placeholders(flags),
        say=say,
    )
    say(f"{result.rows:,} rows of {result.files:,} files are translated")
    if result.problems:
        say(f"{result.problems:,} of them not, or not whole: {flags.output}/_problems.jsonl says which and why")
    return 0


def _glossary(flags: TranslateFlags) -> "Glossary | None":
    """Return the terms of the files that the flags name."""
    from glassformer.generation.lexical.glossary import Glossary

    if flags.glossary is None and flags.keep is None:
        return None
    return Glossary.read(flags.glossary, flags.keep)


def _placeholders(flags: TranslateFlags, left_out: str = NONE) -> str | None:
    """Return the pattern of the placeholders, or None where nothing is copied; `left_out` holds without the flag."""
    pattern = left_out if flags.placeholders is None else flags.placeholders
    return None if pattern == NONE else pattern


def _check_format(flags: TranslateFlags) -> None:
    """Raise ConfigError for a setting that text with tags can't have."""
    for name in ("alignments", "confidence", "prefixes", "resume", "scores"):
        if getattr(flags, name):
            raise ConfigError(f"--{name} is for plain text, and can't be combined with --format {flags.format}")


def _check_document(flags: TranslateFlags, document: Path) -> None:
    """Raise ConfigError for flags that a document can't be translated with."""
    if flags.output is None:
        raise ConfigError(f"{document} is a document, which is written whole: name its translation with --output")
    for name in ("resume", "scores", "prefixes", "alignments", "confidence"):
        if getattr(flags, name):
            raise ConfigError(f"--{name} is for lines, not for a document")
    allowed = ("plain", "html") if kind_of(document) == "html" else ("plain",)
    if flags.format not in allowed:
        raise ConfigError(f"--format is for lines: a document says itself what it is, got {flags.format}")
    if flags.search.n_best > 1:
        raise ConfigError(f"a document has one translation of each text: --n-best must be 1, got {flags.search.n_best}")


def _translate_document(
    translator: "Translator", flags: TranslateFlags, document: Path, wanted: "LineDemands"
) -> "FileCounts":
    """Translate a document and say what was left out; return the counts of cut translations, and of terms."""
    from glassformer.documents.document import translate_document

    assert flags.output is not None
    done = translate_document(
        translator,
        document,
        flags.output,
        config=flags.search,
        **vars(wanted),
        languages=flags.languages,
        overwrite_targets=flags.overwrite_targets,
    )
    kept = f", {done.kept:,} have a translation and keep it" if done.kept else ""
    say(f"{document}: {done.translated:,} of its texts translated{kept}")
    if done.tagged.terms.lines:
        say(f"in texts with tags: {done.tagged.terms}")
    if done.tagged.cuts.lines:
        what = f"{counted(done.tagged.cuts.lines, 'translation')} cut at the limit of tokens"
        say(f"in texts with tags: {what}: try {_fix_of_cuts(flags)}")
    return done.plain


def _warn_of_cuts(cuts: "Cuts", flags: TranslateFlags) -> None:
    """Say how many translations were cut, where, and what to do."""
    fix = _fix_of_cuts(flags)
    say(f"{cuts}: try {f'--segment paragraph or {fix}' if flags.segment == 'line' else fix}")


def _fix_of_cuts(flags: TranslateFlags) -> str:
    most = flags.search.max_length
    return f"a higher --max-length than {most}, or where the model repeats itself --no-repeat-ngram 3"


def _translate_stream(
    translator: "Translator", flags: TranslateFlags, wanted: "LineDemands", counts: "FileCounts"
) -> None:
    """Translate from standard input, to standard output, or both: each chunk is written as soon as it is done."""
    from glassformer.alignment.attention import AttentionAligner, choosing_command
    from glassformer.alignment.heads import read_aligning_heads
    from glassformer.confidence.estimate import ConfidenceEstimator
    from glassformer.files import names_file, replacing
    from glassformer.generation import stream
    from glassformer.generation.files import chunk_lines, progress_words, translations_of_chunk
    from glassformer.markup.files import translate_tagged_lines

    aligner = None if flags.alignments is None else AttentionAligner(translator)
    estimator = None if flags.confidence is None else ConfidenceEstimator(translator)

    if flags.text:
        total, chunks = len(flags.text), iter([(1, list(flags.text))])
        if total > 1 and sys.stderr.isatty() and all(len(text.split()) == 1 for text in flags.text):
            say(f'each word is translated by itself; quotes make them one text: "{" ".join(flags.text)}"')
        for name in filter(names_file, flags.text):
            how = f"--input {quote(name)}{' --output FILE' if kind_of(name) else ''}"
            say(f"{name} is a file, and its name is translated: {how} translates what it holds")
    elif flags.input is None:
        total, chunks = None, stream.chunks_of_stream(sys.stdin.buffer, stream.LINES_AT_ONCE)
        if sys.stdin.isatty():
            say("a line, then Enter; Ctrl-D ends")
            chunks = _prompted(chunks)
    else:
        total, chunks = stream.count_lines(flags.input), stream.chunks_of_file(flags.input, stream.LINES_AT_ONCE)
    if flags.format == "plain":
        chunks = stream.naming_unknown(chunks, translator.source_tokenizer, wanted.pattern)
    if not flags.text and (flags.output is not None or not sys.stdout.isatty()):
        chunks = stream.counting(chunks, progress_words(translator), "lines", total)
    with ExitStack() as stack:
        file = sys.stdout.buffer if flags.output is None else stack.enter_context(replacing(flags.output))
        beside = None if flags.alignments is None else stack.enter_context(replacing(flags.alignments))
        doubts = None if flags.confidence is None else stack.enter_context(replacing(flags.confidence))
        for first, lines, prefixes in stream.with_prefixes(chunks, flags.prefixes, translator.target_tokenizer, total):
            if flags.format != "plain":
                file.write(translate_tagged_lines(translator, lines, first, flags.format, flags.search, wanted, counts))
                file.flush()
                continue
            translated = translations_of_chunk(
                translator, lines, first, flags.search, prefixes, wanted=wanted, counts=counts
            )
            file.write(chunk_lines(translated, first, flags.search, scores=flags.scores))
            file.flush()
            if aligner is not None and beside is not None:
                beside.write(_alignments(aligner, lines, translated, wanted))
            if estimator is not None and doubts is not None:
                doubts.write(_confidence(estimator, lines, translated))
    if flags.format != "plain" and read_aligning_heads(flags.run, translator.engine.config) is None:
        say(f"tags find their words better once heads are chosen: {choosing_command(flags.run)}")


def _alignments(
    aligner: "AttentionAligner",
    lines: "list[str]",
    translated: "list[list[Translation]]",
    wanted: "LineDemands",
) -> bytes:
    """Return a line of links for each translation."""
    from glassformer.alignment.known import link_known

    pairs = [(line, one.text) for line, best in zip(lines, translated, strict=True) for one in best]
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    output = []
    for one, source, target in zip(aligner.align(sources, targets), sources, targets, strict=True):
        links = link_known(one.links, source, one.source, target, one.target, wanted.glossary, wanted.pattern)
        output.append(f"{pharaoh(links)}\n")
    return "".join(output).encode()


def _confidence(estimator: "ConfidenceEstimator", lines: "list[str]", translated: "list[list[Translation]]") -> bytes:
    """Return a line of JSON for each translation."""
    pairs = [(line, one) for line, best in zip(lines, translated, strict=True) for one in best]
    found = estimator.estimate([line for line, _ in pairs], [one for _, one in pairs])
    return "".join(f"{json.dumps(_as_json(one), ensure_ascii=False)}\n" for one in found).encode()


def _as_json(found: "LineConfidence") -> dict[str, Any]:
    """Return the confidence in a translation as JSON, its probabilities with four digits."""
    words = [word._replace(probability=round(word.probability, 4))._asdict() for word in found.words]
    omitted = [word._asdict() for word in found.omitted]
    return {"probability": round(found.probability, 4), "words": words, "omitted": omitted}


def _check_input(path: Path) -> None:
    """Raise DataError where the file has no lines of text; say where its lines are rows of a table."""
    from glassformer.files import PACKED_ENDINGS
    from glassformer.pairs import kinds

    unpacked = path.with_suffix("")
    if path.is_dir() or (not path.exists() and any(mark in path.name for mark in "*?[")):
        raise DataError(
            f"{path} is {'a folder' if path.is_dir() else 'a pattern'}, a file was expected: translate its files one "
            "after the other, or all lines of text in them with --cluster local"
        )
    if path.suffix.lower() in PACKED_ENDINGS and (of_document := kind_of(unpacked)):
        raise DataError(f"{path} is a packed document ({of_document}): unpack it first, and give {unpacked}")
    kind = kinds.kind_of(path)
    if kind not in (kinds.TEXT, kinds.CSV, kinds.JSON):
        raise DataError(f"{path} is a {kind} file, lines of text were expected: save its sources as text, a line each")
    if kind in (kinds.JSON, kinds.CSV):
        say(f"{path} has {kind}: each line is translated as it stands. For one column, save it as text, a line each")
    elif any("\t" in line for line in kinds.peek_lines(path, 1)):
        say(f"{path} has tabs: each line is translated as it stands, not its first column")


def _prompted(chunks: "Iterator[Chunk]") -> "Iterator[Chunk]":
    """Yield the same chunks; before each a mark asks for it, if standard error is a terminal."""
    mark, end = ("> ", "\n") if sys.stderr.isatty() else ("", "")
    print(mark, end="", file=sys.stderr, flush=True)
    for chunk in chunks:
        yield chunk
        print(mark, end="", file=sys.stderr, flush=True)
    print(end, end="", file=sys.stderr, flush=True)
