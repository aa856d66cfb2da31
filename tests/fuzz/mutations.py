"""Damage to bytes and to text of any kind, and what may stand in the place of a file."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[Any], Any]
Bytes = st.SearchStrategy[bytes]


class Special(Enum):
    """What may stand in the place of a file."""

    MISSING = "missing"
    FOLDER = "folder"
    PIPE = "pipe"
    """A named pipe to which nobody writes."""
    ENDLESS = "endless"
    """A device that never ends, such as /dev/zero."""
    LOOP = "loop"
    """A link to itself."""
    DANGLING = "dangling"
    """A link to what isn't there."""


specials = st.sampled_from(Special)

NUMBERS = (0, 1, -1, 2, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
SNIPPETS = (
    b"\0",
    b"\x1b[31m",
    b"\x1b]0;title\x07",
    b"\r",
    b"\r\n",
    b"\n",
    b"\n\n\n",
    b"\t",
    b"\t\t",
    b'"',
    b'""',
    b"'",
    b",",
    b";",
    b"|",
    b"\\",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xe2\x80\xa8",
    b"\xe2\x80\xae",
    b"\xe2\x96\x81",
    b"\xc2\x85",
    b"\xcc\x81" * 300,
    b"\xf0\x9f\x91\xa9\xe2\x80\x8d",
    b"<<",
    b">>deu<<",
    b"</s>",
    b"<unk>",
    b"<pad>",
    b"%s%n{0}",
    b"-1",
    b"NaN",
    b"1e999",
    b"9" * 5000,
    b"x " * 5000,
    b"x" * 70_000,
    b"\t" * 10_000,
    b'"' * 9999,
    b"\n" * 10_000,
)
"""Pieces that text from elsewhere may hold."""


def _after_some(draw: Draw, content: bytes, mishaps: Sequence[Callable[[Draw, bytes], bytes]]) -> bytes:
    """Return the bytes after one to three of these."""
    for _ in range(draw(st.integers(1, 3))):
        content = draw(st.sampled_from(mishaps))(draw, content)
    return content


@st.composite
def damaged(draw: Draw, base: bytes) -> bytes:
    """Return the bytes after one to three accidents: flipped bits, lost or doubled parts, a cut, other numbers."""
    return _after_some(draw, base, ACCIDENTS)


@st.composite
def spoilt(draw: Draw, base: bytes) -> bytes:
    """Return text after one to three mishaps: odd pieces put in, lines lost, doubled or changed for one another."""
    return _after_some(draw, base, MISHAPS)


def _place(draw: Draw, content: bytes) -> int:
    return draw(st.integers(0, len(content)))


def _flip(draw: Draw, content: bytes) -> bytes:
    if not content:
        return b"\1"
    place = draw(st.integers(0, len(content) - 1))
    return content[:place] + bytes([content[place] ^ 1 << draw(st.integers(0, 7))]) + content[place + 1 :]


def _cut(draw: Draw, content: bytes) -> bytes:
    return content[: _place(draw, content)]


def _remove(draw: Draw, content: bytes) -> bytes:
    place = _place(draw, content)
    return content[:place] + content[place + draw(st.integers(1, 64)) :]


def _double(draw: Draw, content: bytes) -> bytes:
    place = _place(draw, content)
    part = content[place : place + draw(st.integers(1, 256))]
    return content[:place] + part * draw(st.integers(2, 5)) + content[place + len(part) :]


def _insert(draw: Draw, content: bytes) -> bytes:
    place = _place(draw, content)
    return content[:place] + draw(st.binary(min_size=1, max_size=40)) + content[place:]


def _number(draw: Draw, content: bytes) -> bytes:
    """Put a number in the place of what may be one, of 1 to 8 bytes."""
    size = draw(st.sampled_from((1, 2, 4, 8)))
    place = _place(draw, content)
    number = (draw(st.sampled_from(NUMBERS)) % (1 << 8 * size)).to_bytes(size, draw(st.sampled_from(("little", "big"))))
    return content[:place] + number + content[place + size :]


def _append(draw: Draw, content: bytes) -> bytes:
    return content + draw(st.sampled_from((b"\0", b"\n", b"\0" * 5000, content)))


def _snippet(draw: Draw, content: bytes) -> bytes:
    place = _place(draw, content)
    return content[:place] + draw(st.sampled_from(SNIPPETS)) + content[place:]


def _line(draw: Draw, content: bytes) -> bytes:
    """Change one line: lose it, double it, replace it, or swap it with another."""
    lines = content.split(b"\n")
    one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    match draw(st.sampled_from(("lose", "double", "replace", "swap"))):
        case "lose":
            del lines[one]
        case "double":
            lines.insert(one, lines[other])
        case "replace":
            lines[one] = draw(st.sampled_from(SNIPPETS))
        case "swap":
            lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _recoded(draw: Draw, content: bytes) -> bytes:
    """Return the text in another encoding, as an editor may have saved it."""
    return content.decode(errors="replace").encode(
        draw(st.sampled_from(("utf-16", "utf-16-be", "utf-8-sig", "utf-32")))
    )


def _nothing(draw: Draw, content: bytes) -> bytes:
    return b""


ACCIDENTS = (_flip, _flip, _cut, _remove, _double, _insert, _number, _number, _append)
MISHAPS = (_snippet, _snippet, _snippet, _line, _line, _flip, _cut, _remove, _double, _recoded, _nothing)
