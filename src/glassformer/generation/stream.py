"""Lines of files and streams in chunks, as they come, so that a file of any length takes the same memory."""

import codecs
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from glassformer.errors import DataError, abridged, counted
from glassformer.meter import Meter
from glassformer.pairs.lines import LONGEST_LINE, PACKED, UTF_16, decode_line, read_lines, too_long
from glassformer.text.tokenizer import Tokenizer

LINES_AT_ONCE = 2048
CHECKED, WARNINGS, SHOWN = 10_000, 5, 10
"""Lines that are checked for unknown text, which splits them once more; most warnings of it; most pieces in one."""
STANDARD_INPUT = "standard input"
Chunk = tuple[int, list[str]]
"""The number of the first line, from 1, and the lines."""


def in_chunks(lines: Iterable[str], size: int, first: int = 1) -> Iterator[Chunk]:
    """Yield `size` lines at a time, of which the first has the number `first`."""
    iterator = iter(lines)
    while chunk := list(islice(iterator, size)):
        yield first, chunk
        first += len(chunk)


def chunks_of_file(path: Path, size: int) -> Iterator[Chunk]:
    """Yield the lines of a file, `size` at a time."""
    return in_chunks(read_lines(path), size)


def chunks_of_stream(stream: BinaryIO, size: int) -> Iterator[Chunk]:
    """Yield the lines of a stream as they arrive, at most `size` at a time: nobody waits for a full chunk."""
    first, length = 1, 0
    parts: list[bytes] = []  # a line whose end has not arrived
    for block in _arriving(stream):
        length += block.find(b"\n") if b"\n" in block else len(block)
        if length > LONGEST_LINE:
            raise too_long(f"{STANDARD_INPUT}, line {first}")
        head, newline, tail = block.rpartition(b"\n")
        if not newline:
            parts.append(block)
            continue
        raws = b"".join([*parts, head]).split(b"\n")
        parts, length = [tail], len(tail)
        for start in range(0, len(raws), size):
            chunk = raws[start : start + size]
            yield first, [decode_line(raw, number, STANDARD_INPUT) for number, raw in enumerate(chunk, first)]
            first += len(chunk)
    if rest := b"".join(parts):
        yield first, [decode_line(rest, first, STANDARD_INPUT)]


def _arriving(stream: BinaryIO) -> Iterator[bytes]:
    """Yield what has arrived, and wait only where nothing has. UTF-16 with its mark is yielded as UTF-8."""
    block = os.read(stream.fileno(), 1 << 17)
    if block in {mark[:1] for mark in UTF_16}:
        block += os.read(stream.fileno(), 1)
    if not block.startswith(UTF_16):
        while block:
            yield block
            block = os.read(stream.fileno(), 1 << 17)
        return
    decoder = codecs.getincrementaldecoder("utf-16")()
    try:
        while block:
            yield decoder.decode(block).encode()
            block = os.read(stream.fileno(), 1 << 17)
        decoder.decode(b"", final=True)
    except UnicodeError as error:
        raise DataError(f"{STANDARD_INPUT} begins with the mark of UTF-16 but isn't UTF-16 ({error})") from None


def count_lines(path: Path) -> int | None:
    """Return how many lines a file has; None where it is packed or in UTF-16, or can be read only once."""
    if not path.is_file():
        return None
    newlines, last = 0, b"\n"
    with path.open("rb") as file:
        if file.peek(6).startswith((*PACKED, *UTF_16)):
            return None
        while block := file.read(1 << 20):
            newlines, last = newlines + block.count(b"\n"), block
    return newlines + (not last.endswith(b"\n"))


def with_prefixes(
    chunks: Iterable[Chunk], path: Path | None, tokenizer: Tokenizer, total: int | None = None, done: int = 0
) -> Iterator[tuple[int, list[str], list[str] | None]]:
    """Yield the same chunks, each with the prefixes of its lines from the file `path`, or without a file with None.

    The first `done` prefixes are skipped. Warns of text in them that the target's `tokenizer` lacks, as
    `naming_unknown` does. DataError unless the file has a line for each of the input's, of which there are `total`, if
    that is known.
    """
    if path is None:
        yield from ((first, lines, None) for first, lines in chunks)
        return
    fix = "it must have one for each, empty where nothing is prescribed"
    if total is not None and (lines_there := count_lines(path)) not in (None, total):
        raise DataError(f"{path} has {counted(lines_there, 'line')}, the input {total:,}: {fix}")
    prefixes = read_lines(path)
    count = sum(1 for _ in islice(prefixes, done))
    unknown = _Unknown(tokenizer)
    for first, lines in chunks:
        beside = list(islice(prefixes, len(lines)))
        count += len(beside)
        if len(beside) < len(lines):
            raise DataError(f"{path} has {counted(count, 'line')}, the input more: {fix}")
        unknown.look_at(first, beside)
        yield first, lines, beside
    if next(prefixes, None) is not None:
        raise DataError(f"the input has {counted(count, 'line')}, {path} more: {fix}")


def naming_unknown(
    chunks: Iterable[Chunk], tokenizer: Tokenizer, placeholders: re.Pattern[str] | None = None
) -> Iterator[Chunk]:
    """Yield the same chunks, and warn a few times of text in the first lines that the vocabulary lacks.

    What `placeholders` matches is never read, and is passed over.
    """
    unknown = _Unknown(tokenizer, placeholders)
    for first, lines in chunks:
        unknown.look_at(first, lines)
        yield first, lines


class _Unknown:
    """Warns a few times of text that a vocabulary lacks, but not of what `placeholders` matches."""

    def __init__(self, tokenizer: Tokenizer, placeholders: re.Pattern[str] | None = None) -> None:
        self._tokenizer, self._placeholders = tokenizer, placeholders
        self._known: set[str] = set()
        self._warned = 0

    def look_at(self, first: int, lines: Sequence[str]) -> None:
        """Warn of a chunk that is among the first lines, unless there were enough warnings."""
        if first > CHECKED or self._warned == WARNINGS:
            return
        taken_out = self._placeholders
        texts = lines if taken_out is None else [taken_out.sub(" ", line) for line in lines]
        self._warned += warn_of_unknown(self._tokenizer, texts, self._known, stacklevel=4)


def warn_of_unknown(tokenizer: Tokenizer, texts: Sequence[str], known: set[str], *, stacklevel: int = 3) -> bool:
    """Warn of text that the vocabulary lacks and that isn't `known`, to which it is added; return whether it warned.

    `stacklevel` is as in `warnings.warn`: the line that the warning names is that many calls away.
    """
    new = [piece for piece in tokenizer.unknown(texts) if piece not in known]
    if new:
        known |= set(new)
        shown = " ".join(abridged(piece) for piece in new[:SHOWN]) + (" ..." if len(new) > SHOWN else "")
        warnings.warn(f"the model never saw this text, and reads it as unknown: {shown}", stacklevel=stacklevel)
    return bool(new)


def counting(chunks: Iterable[Chunk], what: str, unit: str, total: int | None = None) -> Iterator[Chunk]:
    """Yield the same chunks, and meanwhile show count, rate and time on standard error, if it's a terminal.

    With the number of all lines the time left shows too. The first chunk needn't begin with the first line.
    """
    iterator = iter(chunks)
    if (head := next(iterator, None)) is None:
        return
    with Meter(what, unit, total=total, before=head[0] - 1) as meter:
        for first, lines in chain([head], iterator):
            yield first, lines
            meter.show(first + len(lines) - 1)
