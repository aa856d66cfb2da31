"""Lines as they come, in chunks, so that a file of any length takes the same memory."""

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from glassformer.text.pairs import decode_line, read_lines

STANDARD_INPUT = "standard input"
Chunk = tuple[int, list[str]]
"""Number of the first line, from 1, and the lines."""


def in_chunks(lines: Iterable[str], size: int) -> Iterator[Chunk]:
    """`size` lines at a time."""
    iterator, first = iter(lines), 1
    while chunk := list(islice(iterator, size)):
        yield first, chunk
        first += len(chunk)


def chunks_of_file(path: Path, size: int) -> Iterator[Chunk]:
    """The lines of a file, `size` at a time."""
    return in_chunks(read_lines(path), size)


def chunks_of_stream(stream: BinaryIO, size: int) -> Iterator[Chunk]:
    """The lines of a stream, at most `size` at a time: whatever has arrived, so that nobody waits for a full chunk."""
    first = 1
    begun: list[bytes] = []  # the parts of a line whose end has not arrived
    while block := os.read(stream.fileno(), 1 << 17):  # returns what is there, and waits only where nothing is
        head, newline, tail = block.rpartition(b"\n")
        if not newline:
            begun.append(block)
            continue
        raws = b"".join([*begun, head]).split(b"\n")
        begun = [tail]
        for begin in range(0, len(raws), size):
            chunk = raws[begin : begin + size]
            yield first, [decode_line(raw, number, STANDARD_INPUT) for number, raw in enumerate(chunk, first)]
            first += len(chunk)
    if rest := b"".join(begun):
        yield first, [decode_line(rest, first, STANDARD_INPUT)]


def counting(chunks: Iterable[Chunk], what: str, unit: str) -> Iterator[Chunk]:
    """The same chunks, with a count, rate and time on standard error while they are worked on, if it's a terminal."""
    if not sys.stderr.isatty():
        yield from chunks
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=None, facts="")
        for first, lines in chunks:
            yield first, lines
            progress.update(task, completed=first + len(lines) - 1)
            speed = progress.tasks[0].speed or 0.0
            progress.update(task, facts=f"{first + len(lines) - 1:,} {unit}, {speed:,.0f} {unit}/s")
