"""The kind of a file, told by its content where that says it: a name may say anything."""

import codecs
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from glassformer.errors import DataError
from glassformer.pairs.lines import UTF_16, as_utf_8, readable, unpacked

TEXT, CSV, JSON, PARQUET, XLSX, TMX, XLIFF, PO = "text", "CSV", "JSON", "parquet", "xlsx", "TMX", "XLIFF", "PO"
LINES = (TEXT, CSV, JSON)
"""Kinds whose lines may be text as they stand; a file of another kind has both sides."""
_BEFORE_ROOT = re.compile(rb"\s+|<\?xml[^>]*>|<!--.*?-->|<!DOCTYPE[^>[]*>", re.DOTALL)
_ROOT = re.compile(rb"<([A-Za-z_:]+)")
LOOKED_AT = 1 << 12
"""Bytes of the content that are looked at."""
FOREIGN: Mapping[bytes, str] = {
    b"%PDF": "a PDF: save its text as two columns first",
    b"\xd0\xcf\x11\xe0": "an old Excel or Word file: save it as .xlsx or .csv",
    b"SQLite format 3": "an SQLite database: save the pairs as .csv",
    b"ARROW1": "an Arrow file: save it as parquet",
    b"\x93NUMPY": "a NumPy array: save the pairs as .tsv",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"\x7fELF": "a program",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
    b"Rar!": "a RAR archive: unpack it first",
    b"version https://git-lfs": "a pointer of Git LFS, not the data: get that with git lfs pull",
}
"""First bytes of files that hold no pairs, and what such a file is."""


def kind_of(path: Path) -> str:
    """Return the kind of a file, or raise DataError, which says what it is, where it can't hold pairs."""
    if is_stream(path):
        return TEXT
    with readable(path), path.open("rb") as packed:
        content = unpacked(packed)
        head = content.peek(LOOKED_AT)[:LOOKED_AT]
        if head.startswith(b"PAR1"):
            return PARQUET
        if head.startswith(b"PK\x03\x04"):
            return _kind_of_zip(path)
        _refuse_foreign(path, head)
        text = as_utf_8(content).peek(LOOKED_AT)[:LOOKED_AT] if head.startswith(UTF_16) else head
    return _kind_of_text(path, text)


def _kind_of_text(path: Path, head: bytes) -> str:
    """Return the kind of a file of text by how it begins; where that says nothing, by its name."""
    _refuse_binary(path, head)
    begins = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    endings = [ending.lower() for ending in path.suffixes]
    place = 0
    while before := _BEFORE_ROOT.match(begins, place):
        place = before.end()
    if root := _ROOT.match(begins, place):
        name = root[1].decode().rpartition(":")[2].lower()
        if name in ("tmx", "xliff"):
            return TMX if name == "tmx" else XLIFF
        if name == "html" or begins[:14].lower() == b"<!doctype html":
            raise DataError(f"{path} is a web page, not data: was there an error message in place of the download?")
        if begins.startswith(b"<?xml"):
            raise DataError(f"{path} is XML with the root element {root[1].decode()}: TMX and XLIFF can be read")
    elif re.match(rb"<!DOCTYPE[^>[]*\[", begins[place:]):  # entities may stand for files, or for more than memory holds
        raise DataError(f"{path} is XML that declares entities of its own, which are not read: save it without them")
    elif begins.startswith(b"<?xml"):
        raise DataError(f"{path} is XML whose first element comes after {LOOKED_AT:,} bytes: shorten what is before it")
    if begins.startswith(b"{") and (re.match(rb'\{\s*"', begins) or begins.startswith(b"{}")):
        return JSON
    if begins.startswith(b"[") and {".json", ".jsonl"} & set(endings):
        return JSON
    if {".po", ".pot"} & set(endings) and re.search(rb"^(#|msgid|msgctxt)", begins, re.MULTILINE):
        return PO
    if ".csv" in endings:
        return CSV
    if b"\n" not in head and head.count(b"\r") > 1:
        raise DataError(
            f"{path} ends its lines with carriage returns alone, newlines were expected: convert it with tr '\\r' '\\n'"
        )
    return TEXT


def _kind_of_zip(path: Path) -> str:
    """Return XLSX for a workbook; raise DataError, which says what it is, for another zip file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is a zip file that is damaged or incomplete ({error}): get it again") from None
    if any(name.startswith("xl/") for name in names):
        return XLSX
    if any(name.startswith("word/") for name in names):
        raise DataError(f"{path} is a Word document: save its pairs as a table, .xlsx or .csv")
    if "mimetype" in names and "content.xml" in names:
        raise DataError(f"{path} is an OpenDocument file: save it as .xlsx or .csv")
    files = [name for name in names if not name.endswith("/")]
    shown = ", ".join(files[:3]) + (", ..." if len(files) > 3 else "")
    raise DataError(f"{path} is a zip file ({shown or 'empty'}): unpack it first")


def _refuse_foreign(path: Path, head: bytes) -> None:
    """Raise DataError for content that can't hold pairs."""
    for begins, what in FOREIGN.items():
        if head.startswith(begins):
            raise DataError(f"{path} is {what}")
    if re.match(rb"\x80[\x02-\x05]", head):
        raise DataError(f"{path} is a Python pickle, which may run any program and is never loaded: save it as .csv")
    if head[257:262] == b"ustar":
        raise DataError(f"{path} is a tar archive: unpack it first")


def _refuse_binary(path: Path, head: bytes) -> None:
    """Raise DataError where zeros are more than a slip: text in UTF-16 has them in every second place."""
    zeros = head[::2].count(0), head[1::2].count(0)
    if sum(zeros) * 10 <= len(head):
        return
    if min(zeros) * 20 > len(head):
        raise DataError(f"{path} is a binary file, text was expected")
    encoding = "utf-16be" if zeros[0] > zeros[1] else "utf-16le"
    raise DataError(f"{path} looks like UTF-16 without its mark: convert it with iconv -f {encoding} -t utf-8")


def peek_lines(path: Path, count: int) -> list[str]:
    """Return the first lines of a file of text, the last cut where it is long; none where they are not UTF-8."""
    lines: list[str] = []
    if is_stream(path):
        return lines
    with readable(path), path.open("rb") as packed:
        file = as_utf_8(unpacked(packed))
        while len(lines) < count and (raw := file.readline(LOOKED_AT)):
            is_cut = len(raw) == LOOKED_AT and not raw.endswith(b"\n")
            try:
                decoder = codecs.getincrementaldecoder("utf-8" if lines else "utf-8-sig")()
                lines.append(decoder.decode(raw, final=not is_cut).rstrip("\r\n"))
            except UnicodeDecodeError:
                return []
            if is_cut:
                break
    return lines


def is_stream(path: Path) -> bool:
    """Return whether this is a pipe or a device, which can be read only once."""
    return path.exists() and not path.is_file() and not path.is_dir()
