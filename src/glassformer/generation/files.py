"""Translation from file to file that takes hours, and continues after a stop.

    OUT.partial        the output for the first lines of the input, whole chunks
    OUT.partial.json   for how many lines, their digest, how many bytes of output they gave, and the settings

The second is what counts: it is written after the bytes that it tells of, so whatever stops the process, what it says
is there. OUT itself appears at the end, complete.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.decoding import Natural, read_json
from glassformer.errors import ConfigError, DataError
from glassformer.files import check_writable, write_json
from glassformer.generation import stream
from glassformer.generation.config import SearchConfig, as_config
from glassformer.generation.translator import Translator
from glassformer.pairs.files import PairFiles
from glassformer.pairs.lines import read_lines
from glassformer.run.config import read_config
from glassformer.run.lock import try_lock
from glassformer.run.names import CONFIG, WEIGHTS
from glassformer.text.vocabulary import VOCABULARY


def translate_file(
    translator: Translator,
    input: str | Path,
    output: str | Path,
    *,
    config: SearchConfig | None = None,
    prefixes: str | Path | None = None,
    scores: bool = False,
    resume: bool = False,
) -> None:
    """Translate the lines of the file `input` (UTF-8, plain or .gz) into the file `output`.

    `output` appears when it is complete. What is done at a stop stays in `output`.partial, and the same call with
    `resume` continues to the same bytes as without the stop. It refuses if the beginning of the input, the settings,
    the device, the precision or the files of the translator's run folder are others; a translator made by
    `Translator.of` has no folder, and that its model is the same is for the caller to see to.

    `prefixes` is a file with what each line's translation must begin with, a line for each line of the input (empty:
    anything). With `scores` each translation stands after its score and a tab, with `config.n_best` above 1 after the
    number of its line and a tab. On a terminal a line of progress shows on standard error. DataError or ConfigError
    says which file or setting can't be used.

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
    ...     translate_file(translator, source, target)
    ...     target.read_text().count("\\n")
    3
    """
    input, output, config = Path(input), Path(output), as_config(config)
    prefix_file = None if prefixes is None else Path(prefixes)
    if prefix_file is not None:
        PairFiles(prefix_file).check()
    settings = _settings(translator, config, prefix_file, scores=scores)
    with partial_output(output, settings, resume=resume) as partial:
        lines = read_lines(input)
        partial.skip(lines, input)
        total = stream.count_lines(input)
        chunks = stream.in_chunks(lines, stream.LINES_AT_ONCE, first=partial.lines + 1)
        chunks = stream.naming_unknown(chunks, translator.source_tokenizer)
        chunks = stream.counting(chunks, progress_words(translator), "lines", total)
        try:
            for first, chunk, beginnings in stream.with_prefixes(chunks, prefix_file, total, done=partial.lines):
                partial.append(chunk, translate_chunk(translator, chunk, first, config, beginnings, scores=scores))
        except BaseException as error:
            if partial.lines:
                error.add_note(
                    f"{partial.path} has the translations of {partial.lines:,} lines: continue with --resume"
                )
            raise


def translate_chunk(
    translator: Translator,
    lines: Sequence[str],
    first: int,
    config: SearchConfig,
    prefixes: Sequence[str] | None = None,
    *,
    scores: bool = False,
) -> bytes:
    """Return the output for a chunk of an input's lines, of which the first has the number `first`.

    The number is also added to the seed, so that equal lines of different chunks are drawn differently.
    """
    config = replace(config, seed=(config.seed + first - 1) % (1 << 32))
    output = []
    for number, best in enumerate(translator.translate_n_best(lines, config, prefixes=prefixes), start=first):
        for translation in best:
            columns = [str(number)] if config.n_best > 1 else []
            columns += [f"{translation.score:.4f}"] if scores else []
            output.append("\t".join([*columns, translation.text]) + "\n")
    return "".join(output).encode()


def progress_words(translator: Translator) -> str:
    """Return what the progress line says is being done."""
    return f"translating in {translator.precision}"


def _settings(translator: Translator, config: SearchConfig, prefixes: Path | None, *, scores: bool) -> dict[str, Any]:
    """Return what must be the same for a stopped translation to continue."""
    return {
        "run folder (digest)": None if translator.folder is None else _digest_of_run(translator.folder),
        "device": translator.device.type,
        "precision": str(translator.precision),
        "scores": scores,
        "prefixes (digest)": None if prefixes is None else _digest([prefixes]),
        **asdict(config),
    }


def _digest_of_run(folder: Path) -> str:
    """Return a digest of those files of a run folder that translations depend on."""
    config = read_config(folder)
    names = [CONFIG, WEIGHTS, *config.tokenizers]
    names += [str(Path(name).with_suffix(VOCABULARY)) for name in config.tokenizers]
    return _digest(folder / name for name in names)


def _digest(paths: Iterable[Path]) -> str:
    """Return a digest of the content of these files; missing ones are passed over."""
    digest = hashlib.blake2b(digest_size=6)
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


@dataclass(frozen=True)
class Record:
    """The extent of a partial output, and the settings it was made with."""

    settings: Mapping[str, Any]
    lines: Natural = 0
    """Number of lines of the input that are done."""
    digest: str = ""
    """A digest of those lines."""
    bytes: Natural = 0
    """Number of bytes of output that they gave."""


class PartialOutput:
    """The output for the first lines of an input, to which the output for the next ones is added."""

    def __init__(self, path: Path, file: BinaryIO, record: Record) -> None:
        self.path = path
        self._file = file
        self._record = record
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def lines(self) -> int:
        """Number of lines of the input that are done."""
        return self._record.lines

    def skip(self, lines: Iterator[str], name: object) -> None:
        """Skip the lines that are done in those of the input `name`; DataError if it begins with other lines."""
        for line in islice(lines, self.lines):
            self._digest.update(f"{line}\n".encode())
        if self.lines and self._digest.hexdigest() != self._record.digest:
            raise DataError(
                f"{name} doesn't begin with the {self.lines:,} lines whose output is in {self.path}: give the input "
                "that it was started with, or remove it to start over"
            )

    def append(self, lines: Sequence[str], output: bytes) -> None:
        """Add the output for the next lines; once this returns, no stop can lose it."""
        self._file.write(output)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._digest.update("".join(f"{line}\n" for line in lines).encode())
        count, size = self.lines + len(lines), self._record.bytes + len(output)
        self._record = Record(self._record.settings, count, self._digest.hexdigest(), size)
        write_json(_json_of(self.path), asdict(self._record))

    def cut(self) -> None:
        """Cut the files to whole chunks, and remove them if there is none."""
        if self.lines:
            os.truncate(self.path, self._record.bytes)
            write_json(_json_of(self.path), asdict(self._record))  # again: a Ctrl-C may have stopped its writing
        else:
            _json_of(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)


@contextmanager
def partial_output(output: Path, settings: Mapping[str, Any], *, resume: bool) -> Iterator[PartialOutput]:
    """Collect output that becomes the file `output` when all went well; otherwise what there is stays beside it.

    With `resume` what is there is continued, if its settings (of JSON's types) are the same; without, nothing may be
    there.
    """
    check_writable(output)
    path = output.with_name(f"{output.name}.partial")
    if resume and output.exists() and not path.exists():
        raise DataError(
            f"{output} is there and {path.name} isn't: there is nothing to resume; leave out --resume to write it anew"
        )
    with path.open("ab") as file:
        if not try_lock(file.fileno()):
            raise DataError(
                f"another process is writing to {path}: wait until it has finished, or choose another output"
            )
        record = _resumable(path, settings, resume)
        partial = PartialOutput(path, file, record)
        try:
            with file:  # closed before it is cut to whole chunks
                file.truncate(record.bytes)
                write_json(_json_of(path), asdict(record))
                yield partial
        except BaseException:
            partial.cut()
            raise
    path.replace(output)
    _json_of(path).unlink()


def _json_of(path: Path) -> Path:
    """Return the path of a partial output's record."""
    return path.with_name(f"{path.name}.json")


def _resumable(path: Path, settings: Mapping[str, Any], resume: bool) -> Record:
    """Return the record of what is there; ConfigError or DataError if it can't be continued, or would be lost."""
    size = path.stat().st_size
    record = _read(_json_of(path)) if size else Record(settings)
    remove = f"remove {path} to start over"
    if record is None or size < record.bytes:
        raise DataError(f"{path} is not what {_json_of(path).name} says, or that is missing or damaged: {remove}")
    if not record.lines:
        return Record(settings)
    if not resume:
        raise DataError(
            f"{path} has the output for {record.lines:,} lines, of a run that was stopped: continue with --resume, or "
            f"{remove}"
        )
    old, new = record.settings, settings
    if differ := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        was, now = (", ".join(f"{name} {values.get(name)}" for name in differ) for values in (old, new))
        message = f"{path} was started with {was}, and is to be continued with {now}: give the same, or {remove}"
        raise ConfigError(message)
    return record


def _read(path: Path) -> Record | None:
    """Return the record, or None if it is missing or damaged."""
    try:
        return read_json(path, Record, error=DataError)
    except (OSError, DataError):
        return None
