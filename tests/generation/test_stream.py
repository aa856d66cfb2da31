import gzip
import io
import lzma
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from queue import Queue
from typing import BinaryIO

import pytest

from glassformer.errors import DataError
from glassformer.generation.stream import (
    chunks_of_file,
    chunks_of_stream,
    count_lines,
    counting,
    in_chunks,
    with_prefixes,
)
from glassformer.pairs.lines import LONGEST_LINE
from glassformer.text.tokenizer import SymbolTokenizer


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The reading and the writing end; what is written arrives at once."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        yield reader, writer
        writer.close()  # lets the thread that reads come to its end


def within(seconds: float, call: Callable):
    """What `call` returns or raises; a failure, not a test that hangs, if it takes longer."""
    outcome: Queue = Queue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    value, error = outcome.get(timeout=seconds)
    if error is not None:
        raise error
    return value


def joined(chunks) -> list[str]:
    """All lines of the chunks, checked to be numbered without a gap."""
    lines: list[str] = []
    for first, chunk in chunks:
        assert first == len(lines) + 1
        lines += chunk
    return lines


def test_lines_in_chunks_with_the_number_of_their_first():
    assert list(in_chunks("abcdefg", 3)) == [(1, ["a", "b", "c"]), (4, ["d", "e", "f"]), (7, ["g"])]
    assert list(in_chunks("abcdef", 3)) == [(1, ["a", "b", "c"]), (4, ["d", "e", "f"])]
    assert list(in_chunks([], 3)) == []
    assert list(in_chunks("abcd", 3, first=7)) == [(7, ["a", "b", "c"]), (10, ["d"])]


def test_chunks_are_taken_as_they_are_asked_for():
    def lines() -> Iterator[str]:
        yield from "abc"
        raise AssertionError("read further than needed")

    assert next(in_chunks(lines(), 3)) == (1, ["a", "b", "c"])


def test_chunks_of_a_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffone\r\ntwo\u2028\n\nfour".encode())
    assert list(chunks_of_file(path, 3)) == [(1, ["one", "two\u2028", ""]), (4, ["four"])]
    with pytest.raises(DataError, match="no such file"):
        list(chunks_of_file(tmp_path / "no.txt", 3))


def test_a_line_is_delivered_without_waiting_for_more(pipe):
    reader, writer = pipe
    chunks = chunks_of_stream(reader, size=100)
    for number, line in enumerate(["one", "two", "three"], start=1):
        writer.write(f"{line}\n".encode())
        assert within(10, lambda: next(chunks)) == (number, [line])
    writer.close()
    assert within(10, lambda: list(chunks)) == []


def test_a_line_that_comes_in_pieces_is_delivered_when_it_is_whole(pipe):
    reader, writer = pipe
    chunks = chunks_of_stream(reader, size=100)
    line = "\ufeffGrüße 世界 😀"
    for byte in f"{line}\r\n".encode():  # cut within characters, the byte order mark and the line end
        writer.write(bytes([byte]))
    assert within(10, lambda: next(chunks)) == (1, [line.removeprefix("\ufeff")])
    writer.write(b"half a")
    arrived: list = []
    waiting = threading.Thread(target=lambda: arrived.append(next(chunks)), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert not arrived
    writer.write(b" line\n")
    waiting.join(10)
    assert arrived == [(2, ["half a line"])]


MANY = "".join(f"line {i} {'x' * (i * 7 % 50)}\n" for i in range(2_000)).encode()


@pytest.mark.parametrize("size", [1, 7, 5_000])
@pytest.mark.parametrize(
    "content",
    [b"", b"one\ntwo", b"\n\n", "\ufeffone\r\ntwo\u2028three\n".encode(), MANY],
    ids=["nothing", "no last newline", "empty lines", "BOM, CRLF and U+2028", "many"],
)
def test_lines_of_a_stream_are_lines_of_a_file_however_they_were_cut(pipe, tmp_path, content, size):
    reader, writer = pipe
    (tmp_path / "lines").write_bytes(content)

    def write() -> None:
        for start in range(0, len(content), 997):
            writer.write(content[start : start + 997])
        writer.close()

    threading.Thread(target=write, daemon=True).start()
    chunks = within(30, lambda: list(chunks_of_stream(reader, size)))
    assert joined(chunks) == joined(chunks_of_file(tmp_path / "lines", 7))
    assert all(1 <= len(chunk) <= size for _, chunk in chunks)
    assert len(chunks) < 500 or size == 1, "lines that have arrived come together"


def test_a_line_that_is_too_long_is_refused_as_soon_as_that_is_known(pipe):
    reader, writer = pipe
    chunks = chunks_of_stream(reader, size=100)
    writer.write(b"one\ntwo\nthr")
    assert within(10, lambda: next(chunks)) == (1, ["one", "two"])

    def write() -> None:
        writer.write(b"e" * (LONGEST_LINE + 1))  # and no end

    threading.Thread(target=write, daemon=True).start()
    with pytest.raises(DataError, match="standard input, line 3: it has more than 1,048,576 bytes, the most that"):
        within(30, lambda: next(chunks))


def test_the_longest_lines_of_a_stream_are_read(pipe):
    reader, writer = pipe
    content = (b"x" * LONGEST_LINE + b"\n") * 2 + b"y"
    threading.Thread(target=lambda: (writer.write(content), writer.close()), daemon=True).start()
    chunks = within(30, lambda: list(chunks_of_stream(reader, size=100)))
    assert "\n".join(line for _, lines in chunks for line in lines).encode() == content


def test_bytes_that_are_not_utf8_are_named_with_their_line(pipe):
    reader, writer = pipe
    chunks = chunks_of_stream(reader, size=2)
    writer.write(b"one\ntwo\nthree\ncaf\xe9\n")
    writer.close()
    with pytest.raises(DataError, match=r"standard input, line 4: not UTF-8 \(byte 0xe9 at column 4\)"):
        within(10, lambda: list(chunks))


def test_a_stream_in_utf_16_is_known_by_its_mark(pipe):
    reader, writer = pipe
    chunks = chunks_of_stream(reader, size=100)
    for byte in "Grüße 世界 😀\nzwei\n".encode("utf-16"):
        writer.write(bytes([byte]))
    writer.write(b"\0")
    writer.close()
    assert within(10, lambda: next(chunks)) == (1, ["Grüße 世界 😀", "zwei"])
    with pytest.raises(DataError, match="standard input begins with the mark of UTF-16 but isn't UTF-16"):
        within(10, lambda: list(chunks))


def test_a_stream_that_fails_is_an_error_not_a_wait_without_end(tmp_path):
    with (tmp_path / "written").open("wb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        within(3, lambda: next(chunks_of_stream(file, 7)))


PREFIXES = SymbolTokenizer([f"p{n}" for n in range(2, 7)])


def write_prefixes(path: Path, count: int) -> Path:
    content = "".join(f"p{n}\n" * (n > 1) or "\n" for n in range(1, count + 1)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["prefixes", "prefixes.gz"])
@pytest.mark.parametrize("total", [None, 5])
def test_each_chunk_has_the_prefixes_of_its_lines(name, total, tmp_path):
    path = write_prefixes(tmp_path / name, 5)
    expected = [(1, ["a", "b"], ["", "p2"]), (3, ["c", "d"], ["p3", "p4"]), (5, ["e"], ["p5"])]
    assert list(with_prefixes(in_chunks("abcde", 2), path, PREFIXES, total)) == expected
    assert list(with_prefixes(in_chunks("cde", 2, first=3), path, PREFIXES, total, done=2)) == expected[1:]
    assert list(with_prefixes([], path, PREFIXES, total, done=5)) == []
    assert list(with_prefixes(in_chunks("abcde", 2), None, PREFIXES, total)) == [
        (*chunk, None) for *chunk, _ in expected
    ]


@pytest.mark.parametrize(
    ("name", "count", "total", "message"),
    [
        ("prefixes", 3, 5, "has 3 lines, the input 5: it must have one for each, empty where nothing is prescribed"),
        ("prefixes", 6, 5, "has 6 lines, the input 5: it must"),
        ("prefixes", 3, None, "has 3 lines, the input more: it must"),
        ("prefixes.gz", 3, 5, "has 3 lines, the input more: it must"),
        ("prefixes", 6, None, "the input has 5 lines, .*prefixes more: it must"),
        ("prefixes.gz", 6, 5, "the input has 5 lines, .*prefixes.gz more: it must"),
    ],
)
@pytest.mark.parametrize("done", [0, 2, 4])
def test_too_few_or_too_many_prefixes(name, count, total, message, done, tmp_path):
    path = write_prefixes(tmp_path / name, count)
    chunks = with_prefixes(in_chunks("abcde"[done:], 2, first=done + 1), path, PREFIXES, total, done)
    with pytest.raises(DataError, match=message):
        list(chunks)


def test_text_of_prefixes_that_the_vocabulary_lacks_is_said_once(tmp_path):
    (tmp_path / "prefixes").write_text("p2 ж\n\nж щ\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="never saw this text") as said:
        assert len(list(with_prefixes(in_chunks("abc", 1), tmp_path / "prefixes", PREFIXES))) == 3
    assert [str(one.message).partition(": ")[2] for one in said] == ["ж", "щ"]


def test_counting_passes_every_chunk_on():
    chunks = list(in_chunks(map(str, range(10)), 3))
    assert list(counting(iter(chunks), "translating", "lines")) == chunks
    assert list(chain.from_iterable(lines for _, lines in chunks)) == list(map(str, range(10)))


@pytest.mark.parametrize("content", [b"", b"one", b"one\n", b"one\n\ntwo", b"\n" * 3_000_000], ids=range(5))
def test_count_of_lines_is_that_of_the_lines_read(content, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    assert count_lines(path) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
    if len(content) < 100:
        assert count_lines(path) == len(joined(chunks_of_file(path, 2)))


def test_lines_are_not_counted_where_reading_them_is_work_or_takes_them(tmp_path):
    packed = {"lines.gz": gzip.compress(b"one\n"), "lines": lzma.compress(b"one\n"), "utf-16": "one\n".encode("utf-16")}
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    assert [count_lines(tmp_path / name) for name in (*packed, "pipe", "missing")] == [None] * 5


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("total", "left"), [(5_000, r" of 5,000 lines, 0:00:0\d left, [\d,]+ lines/s"), (None, " lines, ")]
)
def test_a_terminal_shows_count_rate_and_time_left(total, left, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    chunks = list(in_chunks(map(str, range(3_000)), 1_000, first=1_001))
    assert list(counting(iter(chunks), "translating", "lines", total)) == chunks
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue())
    assert re.search(f"translating .* 4,000{left}", shown), shown
    assert ("left" in shown) == (total is not None)
