"""Lines and files that are too long are refused, whatever holds them, before they are held in memory."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import tracemalloc
import zipfile
from collections.abc import Callable

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from glassformer.errors import DataError
from glassformer.pairs import files, lines
from glassformer.pairs.files import PairFiles
from glassformer.pairs.lines import LONGEST_LINE, read_lines

PAIR = b"a b\tb a\n"
LONG = b"x y " * (LONGEST_LINE // 4) + b"z"  # a byte too many
SUFFIX = ": it has more than 1,048,576 bytes, the most that a line may have"


def sheet(rows: list[tuple[str, str]], edit: Callable[[bytes], bytes] = lambda xml: xml) -> bytes:
    """A workbook of these rows, the XML of its sheet edited."""
    plain, edited = io.BytesIO(), io.BytesIO()
    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(row)
    workbook.save(plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(edited, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, edit(old.read(name)) if name.endswith("sheet1.xml") else old.read(name))
    return edited.getvalue()


def parquet(rows: dict[str, pyarrow.Array]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(rows), buffer, compression="zstd", store_schema=False)
    return buffer.getvalue()


def tmx(*pairs: tuple[bytes, bytes]) -> bytes:
    one = b'<tu><tuv xml:lang="en"><seg>%b</seg></tuv><tuv xml:lang="de"><seg>%b</seg></tuv></tu>'
    body = b"".join(one % pair for pair in pairs)
    return b'<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>%b</body></tmx>' % body


def inline(xml: bytes) -> bytes:
    cells = b'<c t="inlineStr" r="A3"><is><t>%b</t></is></c><c t="inlineStr" r="B3"><is><t>y</t></is></c>' % LONG
    return xml.replace(b"</sheetData>", b'<row r="3">%b</row></sheetData>' % cells)


BOMB = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 9999, pyarrow.int32()), pyarrow.array([LONG.decode()]))
HEADER = {"source": "a", "target": "b"}
TOO_LONG = {
    "a.tsv": (PAIR + LONG + b"\ty\n", "a.tsv, line 2"),
    "last.tsv": (PAIR + b"y\t" + LONG, "last.tsv, line 2"),
    "a.gz": (gzip.compress(PAIR * 7 + LONG + b"\ty\n"), "a.gz, line 8"),
    "a.bz2": (bz2.compress(PAIR + LONG + b"\ty\n"), "a.bz2, line 2"),
    "a.xz": (lzma.compress(PAIR + LONG + b"\ty\n"), "a.xz, line 2"),
    "a.zst": (zstandard.compress(PAIR + LONG + b"\ty\n"), "a.zst, line 2"),
    "a.txt": (codecs.BOM_UTF16_LE + (PAIR + LONG).decode().encode("utf-16-le"), "a.txt, line 2"),
    "headed.tsv": (b"source\ttarget\tid\n" + PAIR + LONG + b"\ty\n", "headed.tsv, line 3"),
    "a.csv": (b"source,target\na,b\n" + LONG + b",y\n", "a.csv, line 3"),
    "open.csv": (
        b'source,target\na,b\n"c,d\n' + b"e,f\n" * (LONGEST_LINE // 4),
        "open.csv, the row that begins at line 3",
    ),
    "a.jsonl": (b"".join(json.dumps({"source": a, "target": "b"}).encode() + b"\n" for a in ("a", LONG.decode())), "2"),
    "a.json": (json.dumps([HEADER, {"source": LONG.decode(), "target": "b"}]).encode(), "a.json, a text of pair 2"),
    "a.xlsx": (sheet([("source", "target"), ("a", "b")], inline), "a.xlsx, a text of pair 2"),
    "a.parquet": (parquet({"source": BOMB, "target": pyarrow.array(["b"] * 9999)}), "a.parquet, a text of pair 1"),
    "a.tmx": (tmx((b"a", b"b"), (b"c", LONG)), "a.tmx, a text of pair 2"),
}


@pytest.mark.parametrize(("name", "content", "place"), [(name, *one) for name, one in TOO_LONG.items()], ids=TOO_LONG)
def test_a_line_that_is_too_long_is_refused_with_its_place(name, content, place, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DataError, match=re.escape(place + SUFFIX)):
        list(PairFiles(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * LONGEST_LINE


def test_the_longest_line_is_read_whatever_ends_it(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(LONG[1:] + b"\n" + LONG[1:])
    assert [len(line) for line in read_lines(path)] == [LONGEST_LINE, LONGEST_LINE]
    path.write_bytes(LONG + b"\n")
    with pytest.raises(DataError, match=re.escape(f"{path}, line 1{SUFFIX}")):
        list(read_lines(path))
    table = tmp_path / "mac.csv"  # Excel on a Mac has ended lines with a carriage return
    table.write_bytes(b"source,target\r" + (b"a" * 500 + b",b\r") * 3000)
    assert sum(1 for _ in PairFiles(table)) == 3000


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstandard"])
def test_a_packed_file_of_any_size_takes_little_memory(pack, tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"x" * 100_000_000))
    tracemalloc.start()
    with pytest.raises(DataError, match="bomb, line 1: it has more than"):
        list(PairFiles(path, path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150_000_000


WHOLE = {
    "a.json": json.dumps([HEADER] * 100).encode(),
    "a.json.gz": gzip.compress(json.dumps([HEADER] * 100).encode()),
    "a.tmx": tmx(*[(b"a", b"b")] * 100),
    "a.po": b'msgid ""\nmsgstr ""\n\n' + b"".join(b'msgid "a%d"\nmsgstr "b"\n\n' % n for n in range(100)),
    "a.xlsx": sheet([("source", "target"), *[("a", "b")] * 100]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_held_whole_has_a_largest_size(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_bytes(WHOLE[name])
    assert len(list(PairFiles(path))) == 100
    monkeypatch.setattr(lines, "LARGEST_WHOLE", 1000)
    with pytest.raises(DataError, match=r"has more than 0.0 GB, unpacked, and a file of its kind is held whole: split"):
        list(PairFiles(path))
    monkeypatch.setattr(lines, "LARGEST_WHOLE", 1 << 30)
    monkeypatch.setattr(lines, "total_memory", lambda: 1000 * lines.TIMES_READ)
    with pytest.raises(DataError, match="is held whole: split it, or save it as lines, TSV or JSON"):
        list(PairFiles(path))


def test_a_row_that_says_it_is_far_down_is_not_waited_for(tmp_path):
    path = tmp_path / "far.xlsx"
    far = sheet([("source", "target"), ("a", "b"), ("c", "d")], lambda xml: xml.replace(b'="3"', b'="30000000000"'))
    path.write_bytes(far)
    assert list(PairFiles(path)) == [("a", "b")]


@pytest.mark.parametrize("kind", ["lines", "table"])
def test_long_targets_of_short_sources_make_blocks_of_their_own(kind, tmp_path, monkeypatch):
    pairs = [(f"s{n}", f"t{n} " + "x" * 100) for n in range(1000)]
    if kind == "lines":
        paths = tmp_path / "source", tmp_path / "target"
        for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
            path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    else:
        paths = (tmp_path / "a.jsonl",)
        rows = (json.dumps(dict(zip(HEADER, pair, strict=True))) for pair in pairs)
        paths[0].write_text("\n".join(rows), encoding="utf-8")
    assert [block.lines for block in PairFiles(*paths).blocks()] == [1000]
    monkeypatch.setattr(files, "MOST_BLOCK_BYTES", 20_000)
    blocks = list(PairFiles(*paths).blocks())
    assert 5 <= len(blocks) <= 8
    assert [block.first for block in blocks] == [1 + sum(one.lines for one in blocks[:n]) for n in range(len(blocks))]
    assert list(PairFiles(*paths)) == pairs


def test_a_source_without_a_target_is_told_of_after_long_targets(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BLOCK_BYTES", 100)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("s\n" * 300, encoding="utf-8")
    target.write_text("a target\n" * 200, encoding="utf-8")
    with pytest.raises(DataError, match=r"source has 300, \S+target has 200"):
        list(PairFiles(source, target))
