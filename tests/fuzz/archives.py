"""Packed files (gzip, bzip2, xz, zstandard) and zip files, damaged outside or with other content inside."""

import bz2
import gzip
import io
import lzma
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import cache

from hypothesis import strategies as st
from markup import marked_up
from mutations import Bytes, Draw, damaged, spoilt

BOMBS = {b"a": 1 << 28, b"\n": 1 << 24, b"a b\tb a\n": 1 << 24}
"""What a small packed file unpacks to, again and again, and how many bytes of it: one line, or lines that take time."""


def _zstandard(content: bytes) -> bytes:
    import zstandard

    return zstandard.compress(content)


def _unzstandard(content: bytes) -> bytes:
    import zstandard

    return zstandard.decompress(content)


PACKINGS: Mapping[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gzip": (gzip.compress, gzip.decompress),
    "bzip2": (bz2.compress, bz2.decompress),
    "xz": (lzma.compress, lzma.decompress),
    "zstandard": (_zstandard, _unzstandard),
}
"""How a content is packed and unpacked."""


def packed(packing: str) -> Callable[[bytes], Bytes]:
    """Return the changes of a file of this packing."""
    pack, unpack = PACKINGS[packing]

    @st.composite
    def change(draw: Draw, base: bytes) -> bytes:
        text = unpack(base)
        match draw(st.sampled_from(("outside", "outside", "inside", "members", "twice", "bomb"))):
            case "inside":
                return pack(draw(spoilt(text)))
            case "members":
                more = (b"", b"\0" * 9, base[:7], base[:-5], pack(b""), pack(b"\xff"), PACKINGS["gzip"][0](text))
                return base + draw(st.sampled_from(more))
            case "twice":
                return pack(base)
            case "bomb":
                return _bomb(packing, draw(st.sampled_from(list(BOMBS))))
        return draw(damaged(base))

    return change


@cache
def _bomb(packing: str, unit: bytes) -> bytes:
    """Return a small file that unpacks to a large one."""
    block = unit * (BOMBS[unit] // 256 // len(unit))
    return PACKINGS[packing][0](block) * 256


@st.composite
def rezipped(draw: Draw, base: bytes) -> bytes:
    """Return a zip file of XML with one entry changed, missing, doubled, or added."""
    with zipfile.ZipFile(io.BytesIO(base)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    number = draw(st.integers(0, len(entries) - 1))
    name, content = entries[number]
    match draw(st.sampled_from(("content", "content", "content", "missing", "twice", "named", "bomb"))):
        case "content":
            entries[number] = name, draw(marked_up(content))
        case "missing":
            del entries[number]
        case "twice":
            entries.append((name, draw(st.sampled_from((b"", content, b"<a/>")))))
        case "named":
            names = ("../out.xml", "/out.xml", "xl/../../out", "xl/\0", "", "x" * 9000, "\x1b[31m.xml")
            entries[number] = draw(st.sampled_from(names)), content
        case "bomb":
            entries[number] = name, b" " * (1 << 26)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two entries of one name
        for entry, inner in entries:
            archive.writestr(zipfile.ZipInfo(entry), inner, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def zipped(base: bytes) -> Bytes:
    """Return a zip file, changed inside or damaged outside."""
    return st.one_of(rezipped(base), rezipped(base), damaged(base))
