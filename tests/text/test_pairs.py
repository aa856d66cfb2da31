import gzip
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.text.pairs import PairFiles, decode_line, hold_out, read_lines


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


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
    ],
    ids=["empty", "plain", "no last newline", "CRLF", "empty lines", "BOM", "outer space kept", "beyond ASCII"],
)
def test_lines_of_a_file(path, content, lines):
    assert list(read_lines(write(path, content))) == lines


def test_only_a_newline_ends_a_line(path):
    inside = "".join(["a", "\u2028", "b", "\u2029", "c", "\x85", "d", "\x0b", "e", "\x0c", "f", "\x1c", "g", "\r", "h"])
    assert list(read_lines(write(path, f"{inside}\nnext\n".encode()))) == [inside, "next"]


def test_only_the_first_line_loses_a_byte_order_mark(path):
    assert list(read_lines(write(path, b"one\n\xef\xbb\xbftwo\n"))) == ["one", "\ufefftwo"]


def test_reading_is_lazy(path):
    write(path, b"fine\n\xff\n")
    lines = read_lines(path)
    assert next(lines) == "fine"
    with pytest.raises(DataError):
        next(lines)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}/no.txt: no such file")):
        list(read_lines(tmp_path / "no.txt"))


def test_folder_is_not_a_text_file(tmp_path):
    with pytest.raises(DataError, match=re.escape(f"{tmp_path} is a folder, a text file was expected")):
        list(read_lines(tmp_path))


def test_text_that_is_not_utf8_is_named_with_line_byte_and_column(path):
    write(path, b"fine\nfine\ncaf\xe9 au lait\nfine\n")
    message = f"{path}, line 3: not UTF-8 (byte 0xe9 at column 4); convert it, for example with: iconv -f latin1"
    with pytest.raises(DataError, match=re.escape(message)):
        list(read_lines(path))


def test_the_wrong_byte_is_named_after_a_byte_order_mark_too():
    with pytest.raises(DataError, match=r"line 1: not UTF-8 \(byte 0xe9 at column"):
        decode_line(b"\xef\xbb\xbfcaf\xe9", 1, "a file")


def test_decode_line_names_its_source_and_takes_off_the_end():
    assert decode_line(b"a b\r\n", 7, "standard input") == "a b"
    with pytest.raises(DataError, match=r"standard input, line 7: not UTF-8 \(byte 0xff at column 2\)"):
        decode_line(b"a\xff\n", 7, "standard input")


def packed(lines: int = 1000) -> bytes:
    return gzip.compress(b"".join(b"line number %d\n" % i for i in range(lines)))


@pytest.mark.parametrize(
    "content",
    [packed()[:-12], packed()[: len(packed()) // 2], b"plain text\n"],
    ids=["without its end", "half of it", "not packed"],
)
def test_incomplete_gzip_is_an_error(tmp_path, content):
    path = tmp_path / "lines.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"{path} is not a complete gzip file: ")):
        list(read_lines(path))


def test_damaged_gzip_is_an_error(tmp_path):
    content = bytearray(packed())
    content[30:40] = b"\xff" * 10
    path = tmp_path / "lines.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path))):
        list(read_lines(path))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parallel_files_pair_line_by_line(tmp_path, ending):
    source = write(tmp_path / f"a{ending}", b"one\n\nthree\n")
    target = write(tmp_path / f"b{ending}", b"eins\r\nzwei\r\n\r\n")
    files = PairFiles(source, target)
    assert list(files) == [("one", "eins"), ("", "zwei"), ("three", "")]
    assert list(files) == list(files), "may be read again"


@pytest.mark.parametrize(
    ("source", "target"), [(2, 3), (3, 2), (0, 1), (5, 0), (1, 7), (2, 11)], ids=lambda count: str(count)
)
def test_files_of_different_length_are_named_with_both_counts(tmp_path, source, target):
    left = write(tmp_path / "left.txt", b"a\n" * source)
    right = write(tmp_path / "right.txt", b"b\n" * target)
    message = f"as many lines as each other: {left} has {source}, {right} has {target}"
    with pytest.raises(DataError, match=re.escape(message) + "$"):
        list(PairFiles(left, right))


def test_tsv_columns_after_the_second_are_ignored(tmp_path):
    path = write(tmp_path / "pairs.tsv", b"\xef\xbb\xbfone\teins\nzwo two\tzwei\tnote\tmore\n\t\n")
    assert list(PairFiles(path)) == [("one", "eins"), ("zwo two", "zwei"), ("", "")]


def test_tsv_without_a_tab_is_named_with_its_line(tmp_path):
    path = write(tmp_path / "pairs.tsv.gz", b"one\teins\ntwo\tzwei\nthree drei\n")
    with pytest.raises(DataError, match=re.escape(f"{path}, line 3: expected source<tab>target, found no tab")):
        list(PairFiles(path))


@pytest.fixture
def files(tmp_path) -> PairFiles:
    """1,000 pairs of 500 sources: every source stands twice, with another target each time."""
    rows = [f"source {i % 500}\ttarget {i}\n" for i in range(1000)]
    return PairFiles(write(tmp_path / "pairs.tsv", "".join(rows).encode()))


def halves(files: PairFiles, count: int = 100, seed: int = 3) -> tuple[list, list]:
    train, valid = hold_out(files, count, seed)
    return list(train), list(valid)


def test_held_out_and_training_pairs_together_are_all_pairs(files):
    train, valid = halves(files)
    assert Counter(train + valid) == Counter(files)
    assert not set(train) & set(valid)


def test_both_parts_keep_the_order_of_the_files(files):
    position = {pair: i for i, pair in enumerate(files)}
    for part in halves(files):
        assert [position[pair] for pair in part] == sorted(position[pair] for pair in part)


def test_a_source_falls_on_one_side_with_all_its_targets(files):
    train, valid = halves(files)
    assert not {source for source, _ in train} & {source for source, _ in valid}
    assert set(Counter(source for source, _ in valid).values()) == {2}


def test_held_out_depends_on_the_seed_and_nothing_else(files):
    assert halves(files, seed=3) == halves(files, seed=3)
    assert halves(files, seed=3)[1] != halves(files, seed=5)[1]


def test_as_many_are_held_out_as_asked_for(files):
    for count in (2, 50, 100, 998):
        assert len(halves(files, count=count)[1]) == count
    assert len(halves(files, count=51)[1]) == 50  # both pairs of a source, or none


def test_a_source_too_frequent_to_be_held_out_stays_in_training(tmp_path):
    rows = ["frequent\tx\n"] * 200 + [f"rare {i}\ty\n" for i in range(100)]
    files = PairFiles(write(tmp_path / "pairs.tsv", "".join(rows).encode()))
    for seed in range(60):
        train, valid = halves(files, count=15, seed=seed)
        assert 14 <= len(valid) <= 15
        assert len(train) + len(valid) == 300
        assert ("frequent", "x") not in valid


def test_nothing_left_to_train_on_is_refused(tmp_path):
    files = PairFiles(write(tmp_path / "pairs.tsv", b"one\ttwo\n"))
    with pytest.raises(DataError, match="too few pairs with different sources"):
        hold_out(files, 1, seed=1)


def test_a_pipe_is_refused_because_it_is_read_several_times(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe is a pipe or device"):
        PairFiles(tmp_path / "pipe").check()


def test_a_source_held_out_of_few_is_held_out_of_more(files):
    fewer, more = halves(files, count=50)[1], halves(files, count=200)[1]
    assert set(fewer) < set(more)
