"""Lines as bytes, many at a time, and which of them can't be translated."""

import gzip
import hashlib
import io

import pytest

from glassformer.cluster.lines import Problem, count_lines, decoded, open_text, pieces_of_lines, raw_lines
from glassformer.pairs.lines import LONGEST_LINE


def pieces(content: bytes, size: int = 3):
    return list(pieces_of_lines(open_text(io.BytesIO(content)), size))


def test_pieces_have_all_lines_in_order():
    content = b"".join(b"line %d\n" % n for n in range(7))
    found = pieces(content)
    assert [piece.rows for piece in found] == [3, 3, 1]
    assert b"".join(piece.content for piece in found) == content


@pytest.mark.parametrize(
    ("content", "rows"), [(b"", [0]), (b"\n", [1]), (b"a\nb", [2]), (b"a\n\n", [2]), (b"a\nb\nc\n", [3])]
)
def test_counts_agree_with_pieces(content, rows):
    assert [piece.rows for piece in pieces(content)] == rows
    assert count_lines(open_text(io.BytesIO(content)), hashlib.blake2b()) == sum(rows)


def test_packed_and_utf_16_text_reads_as_utf_8():
    assert pieces(gzip.compress("größer\n".encode()))[0].content.decode() == "größer\n"
    assert pieces("größer\n".encode("utf-16"))[0].content.decode() == "größer\n"


def test_a_line_of_the_greatest_length_is_kept_and_a_longer_one_passed_over():
    content = b"x" * LONGEST_LINE + b"\n" + b"y" * (LONGEST_LINE + 1) + b"\nend"
    [piece] = pieces(content)
    assert (piece.rows, piece.too_long) == (3, (1,))
    lines, problems = decoded(raw_lines(piece), 11, piece.too_long)
    assert [len(line) for line in lines] == [LONGEST_LINE, 0, 3]
    assert [problem.row for problem in problems] == [12]
    assert "it has more than 1,048,576 bytes" in problems[0].what


def test_what_cannot_be_read_is_empty_and_named():
    lines, problems = decoded([b"good\r", b"caf\xe9", b"a\0b", None], 5, ())
    assert lines == ["good", "", "a\0b", ""]
    assert problems[0].row == 6
    assert problems[0].what.startswith("not UTF-8 (byte 0xe9 at column 4)")
    assert problems[1:] == [
        Problem(7, "it has the character U+0000, of which the model reads nothing"),
        Problem(8, "it is null"),
    ]
