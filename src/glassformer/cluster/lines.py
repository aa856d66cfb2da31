"""Lines as bytes, many at a time, and what is wrong with those that can't be translated."""

import hashlib
import io
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from glassformer.errors import DataError
from glassformer.pairs.lines import LONGEST_LINE, as_utf_8, decode_line, too_long, unpacked

_NULL = "it is null"
_NUL = "it has the character U+0000, of which the model reads nothing"


@dataclass(frozen=True)
class Piece:
    """The rows of a block as they stand in their file, not decoded yet."""

    rows: int
    content: bytes
    too_long: tuple[int, ...] = ()
    """Places of lines above the limit, from 0: they are empty in `content`."""


@dataclass(frozen=True)
class Problem:
    """A row that is not translated, or not whole, and why."""

    row: int
    """Its number in its file, from 1."""
    what: str


def open_text(file: Any) -> io.BufferedReader:
    """Return the text of an open file, unpacked if it is packed, as UTF-8."""
    return as_utf_8(unpacked(io.BufferedReader(file, 1 << 17)))


def pieces_of_lines(text: io.BufferedReader, size: int) -> Iterator[Piece]:
    """Yield the lines of a text, `size` at a time; of an empty one a piece without rows.

    A line above LONGEST_LINE is passed over, in little memory.
    """
    limited, is_first = _limited(text), True
    while (lines := list(islice(limited, size))) or is_first:
        passed_over = tuple(place for place, line in enumerate(lines) if line is None)
        yield Piece(len(lines), b"".join(line or b"\n" for line in lines), passed_over)
        is_first = False


def _limited(text: io.BufferedReader) -> Iterator[bytes | None]:
    """Yield each line with its end; None for one that is too long."""
    most = LONGEST_LINE + 1  # with its newline
    while line := text.readline(most):
        if len(line) < most or line.endswith(b"\n"):
            yield line
            continue
        while (rest := text.readline(most)) and not rest.endswith(b"\n"):
            pass
        yield None


def count_lines(text: io.BufferedReader, digest: "hashlib.blake2b") -> int:
    """Return the number of lines, and give all bytes to `digest`."""
    lines, last = 0, b"\n"
    while part := text.read1(1 << 20):
        digest.update(part)
        lines, last = lines + part.count(b"\n"), part
    return lines + (not last.endswith(b"\n"))


def raw_lines(piece: Piece) -> list[bytes]:
    """Return the lines of a piece, without their newlines."""
    return piece.content.split(b"\n")[: piece.rows]  # behind the last newline there is nothing


def decoded(raws: Sequence[bytes | None], first: int, passed_over: Container[int]) -> tuple[list[str], list[Problem]]:
    """Return raw rows as text, and those that are not as they should be; the first row has the number `first`.

    A row that can't be read is empty, as are those that were `passed_over` for their length.
    """
    lines, problems = list[str](), list[Problem]()
    for place, raw in enumerate(raws):
        number, line = first + place, ""
        try:
            if place in passed_over or len(raw or b"") > LONGEST_LINE:
                raise too_long(f"row {number}")
            line = decode_line(raw or b"", number, "")
        except DataError as error:
            problems.append(Problem(number, str(error).partition(": ")[2]))
        if raw is None:
            problems.append(Problem(number, _NULL))
        if "\0" in line:
            problems.append(Problem(number, _NUL))
        lines.append(line)
    return lines, problems
