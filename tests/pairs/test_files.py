import gzip
import os
import re
import threading
from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.pairs import files as pairs
from glassformer.pairs.files import PairBlock, PairFiles
from glassformer.pairs.lines import RawLines, decode_line, read_lines


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


NO_ENDS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
"""Characters that end a line elsewhere; here only a newline does."""


@pytest.fixture(params=["lines.txt", "lines.txt.gz"])
def path(request, tmp_path) -> Path:
    """A plain and a packed file: both must read alike."""
    return tmp_path / request.param


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\n\none\n\n", ["", "", "one", ""]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        (b" one \n\ttwo\n", [" one ", "\ttwo"]),
        ("Grüße\n世界 😀\n".encode(), ["Grüße", "世界 😀"]),
        (b"one\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),  # only the first line has a byte order mark
        (f"{NO_ENDS}\nnext\n".encode(), [NO_ENDS, "next"]),
    ],
)
def test_lines_of_a_file(path, content, lines):
    assert list(read_lines(write(path, content))) == lines


def test_reading_is_lazy(path):
    write(path, b"fine\n\xff\n")
    lines = read_lines(path)
    assert next(lines) == "fine"
    with pytest.raises(DataError):
        next(lines)


def test_what_is_no_file_is_named(tmp_path):
    for path, problem in (
        (tmp_path / "no.txt", ": no such file"),
        (tmp_path, " is a folder, a file was expected"),
        (Path(__file__) / "below", ": no such file"),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(f'{path}{problem}')}$"):
            list(read_lines(path))


def test_text_that_is_not_utf8_is_named_with_line_byte_and_column(path):
    write(path, b"fine\nfine\ncaf\xe9 au lait\nfine\n")
    message = f"{path}, line 3: not UTF-8 (byte 0xe9 at column 4); "
    message += "convert it from the encoding that it is in, for example with iconv -f windows-1252 -t utf-8"
    with pytest.raises(DataError, match=re.escape(message)):
        list(read_lines(path))


def test_decode_line_names_its_source_and_takes_off_the_end():
    assert decode_line(b"a b\r\n", 7, "standard input") == "a b"
    with pytest.raises(DataError, match=r"^standard input, line 7: not UTF-8 \(byte 0xff at column 2\)"):
        decode_line(b"a\xff\n", 7, "standard input")
    with pytest.raises(DataError, match=r"^a file, line 1: not UTF-8 \(byte 0xe9 at column"):
        decode_line(b"\xef\xbb\xbfcaf\xe9", 1, "a file")


def packed(lines: int = 1000) -> bytes:
    return gzip.compress(b"".join(b"line number %d\n" % i for i in range(lines)))


@pytest.mark.parametrize(
    "content",
    [packed()[:-12], packed()[: len(packed()) // 2], packed()[:30] + b"\xff" * 10 + packed()[40:]],
    ids=["without its end", "half of it", "damaged"],
)
def test_incomplete_gzip_is_named_whichever_side_it_is(tmp_path, content):
    whole, broken = write(tmp_path / "whole.gz", b"line number 0\n" * 1000), tmp_path / "broken.gz"
    broken.write_bytes(content)
    for lines in (read_lines(broken), PairFiles(whole, broken), PairFiles(broken, whole)):
        with pytest.raises(
            DataError, match=f"^{re.escape(f'{broken} is a packed file that is damaged or incomplete (')}"
        ):
            list(lines)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parallel_files_pair_line_by_line(tmp_path, ending):
    source = write(tmp_path / f"a{ending}", b"one\n\nthree\n")
    target = write(tmp_path / f"b{ending}", b"eins\r\nzwei\r\n\r\n")
    files = PairFiles(source, target)
    assert list(files) == [("one", "eins"), ("", "zwei"), ("three", "")]
    assert list(files) == list(files), "may be read again"


@pytest.mark.parametrize("block", [1, pairs.BLOCK_BYTES], ids=["a block a line", "one block"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_of_different_length_are_named_with_both_counts(tmp_path, monkeypatch, block, ending):
    monkeypatch.setattr(pairs, "BLOCK_BYTES", block)
    for source, target in ((2, 3), (3, 2), (0, 1), (5, 0), (1, 7), (2, 11)):
        left = write(tmp_path / f"left{ending}", b"a\n" * source)
        right = write(tmp_path / f"right{ending}", b"b\n" * target)
        message = f"the same number of lines: {left} has {source}, {right} has {target}: line n of one must be the "
        with pytest.raises(DataError, match=f"{re.escape(message)}translation of line n of the other$"):
            list(PairFiles(left, right))


def test_tsv_columns_after_the_second_are_ignored(tmp_path):
    path = write(tmp_path / "pairs.tsv", b"\xef\xbb\xbfone\teins\nzwo two\tzwei\tnote\tmore\n\t\n")
    assert list(PairFiles(path)) == [("one", "eins"), ("zwo two", "zwei"), ("", "")]


def test_a_pipe_is_refused_because_it_is_read_several_times(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe is a pipe or device"):
        PairFiles(tmp_path / "pipe").check()


def test_a_pipe_is_read_where_it_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("a\nb\nc\n",))
    writer.start()
    with RawLines(tmp_path / "pipe") as lines:
        assert lines.take(2, 1 << 20) == [b"a\n", b"b\n"]
        assert lines.share() == 0
        assert lines.count_rest() == 1
    writer.join()


# Blocks


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_blocks_are_all_the_lines_in_order(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 100)
    left = [f"source {i} {'x' * (i % 7)}" for i in range(200)]
    right = [f"target {i} {'é' * (i % 5)}" for i in range(200)]
    source = write(tmp_path / f"a{ending}", b"\xef\xbb\xbf" + "\n".join(left).encode())
    target = write(tmp_path / f"b{ending}", "".join(f"{line}\r\n" for line in right).encode())
    blocks = list(PairFiles(source, target).blocks())
    assert 20 < len(blocks) < 50
    assert [block.first for block in blocks] == [1 + sum(b.lines for b in blocks[:i]) for i in range(len(blocks))]
    read = [block.pairs() for block in blocks]
    assert [len(sources) for sources, _ in read] == [block.lines for block in blocks]
    assert [line for sources, _ in read for line in sources] == left
    assert [line for _, targets in read for line in targets] == right
    shares = [block.share for block in blocks]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert b"".join(block.source for block in blocks) == b"\xef\xbb\xbf" + "\n".join(left).encode()


def test_a_block_comes_back_from_its_parts(tmp_path):
    for target in (None, tmp_path / "b\udcff"):  # a name that isn't UTF-8
        block = PairBlock(
            PairFiles(tmp_path / "a", target), 17, 2, 0.5, b"a\tb\nc\td\n", b"" if target is None else b"e\nf\n"
        )
        assert PairBlock.from_parts(block.to_parts()) == block


def test_a_long_line_is_a_block_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 10)
    source = write(tmp_path / "a", b"a" * 1000 + b"\nb\nc\nd\ne\nf\n")
    target = write(tmp_path / "b", b"\n" * 6)
    assert [block.lines for block in PairFiles(source, target).blocks()] == [1, 5]


def test_an_empty_line_of_a_table_without_a_header_is_an_empty_pair(tmp_path):
    found = list(PairFiles(write(tmp_path / "pairs.tsv", b"a\tb\n\nc\td\r\n\r\n")))
    assert found == [("a", "b"), ("", ""), ("c", "d"), ("", "")]
    wrong = PairFiles(write(tmp_path / "wrong.tsv", b"a\tb\n\nno tab\n"))
    with pytest.raises(DataError, match=r"wrong\.tsv, line 3: expected source<tab>target, found no tab"):
        list(wrong)


def test_the_first_wrong_line_is_named_in_a_later_block_too(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 30)
    fine, wrong = b"a\tfine line\n", b"caf\xe9 au lait\n"
    good = write(tmp_path / "good", fine * 50)
    bad = write(tmp_path / "bad", fine * 20 + wrong + fine * 29)
    worse = write(tmp_path / "worse", fine * 19 + wrong + fine * 30)
    tsv = write(tmp_path / "pairs.tsv", fine * 20 + b"no tab\n" + wrong)
    byte = "not UTF-8 (byte 0xe9 at column 4)"
    for files, problem in (
        (PairFiles(bad, good), f"{bad}, line 21: {byte}"),
        (PairFiles(good, bad), f"{bad}, line 21: {byte}"),
        (PairFiles(bad, worse), f"{worse}, line 20: {byte}"),
        (PairFiles(tsv), f"{tsv}, line 21: expected source<tab>target, found no tab"),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(problem)}"):
            list(files)
