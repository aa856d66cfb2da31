"""Files as people have them: each is read rightly, or refused in one sentence that is true."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import math
import pickle
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from csv import QUOTE_ALL, writer
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from glassformer.errors import ConfigError, DataError
from glassformer.pairs.files import PairFiles

PAIRS = [("a cat", "eine Katze"), ('say "no"', "sag „nein“"), ("", "leer"), ("two\u2028lines", "zwei Zeilen")]
TSV = "".join(f"{source}\t{target}\n" for source, target in PAIRS)


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), content)
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return buffer.getvalue()


def csv(delimiter: str, header: str) -> bytes:
    quoted = ['"' + text.replace('"', '""') + '"' for pair in PAIRS for text in pair]
    lines = [delimiter.join(quoted[n : n + 2]) for n in range(0, len(quoted), 2)]
    return "\r\n".join([*([header] if header else []), *lines]).encode()


def json_lines(make: Callable[[str, str], Any]) -> bytes:
    return "".join(f"{json.dumps(make(*pair))}\n" for pair in PAIRS).encode()


READ = {
    "plain.tsv": TSV.encode(),
    "mark.tsv": codecs.BOM_UTF8 + TSV.encode(),
    "dos.tsv": TSV.replace("\n", "\r\n").encode(),
    "utf-16-le.tsv": codecs.BOM_UTF16_LE + TSV.encode("utf-16-le"),
    "utf-16-be.txt": codecs.BOM_UTF16_BE + TSV.encode("utf-16-be"),
    "packed.tsv.gz": gzip.compress(TSV.encode()),
    "packed.tsv.xz": lzma.compress(TSV.encode()),
    "packed.tsv.bz2": bz2.compress(TSV.encode()),
    "packed without an ending": gzip.compress(TSV.encode()),
    "not packed.gz": TSV.encode(),
    "packed utf-16.gz": gzip.compress(codecs.BOM_UTF16_LE + TSV.encode("utf-16-le")),
    "more columns.tsv": TSV.replace("\n", "\tnote\t0.7\n").encode(),
    "header.tsv": f"source\ttarget\n{TSV}".encode(),
    "languages.tsv": f"en\tde\n{TSV}".encode(),
    "header.csv": csv(",", "en,de"),
    "no header.csv": csv(",", ""),
    "semicolons.csv": csv(";", "English;German"),
    "packed.csv.gz": gzip.compress(csv(",", "source,target")),
    "more.csv": b"id,score,target,source\n"
    + b"".join(
        f'{n},0.5,"{t}","{s}"\n'.encode() for n, (s, t) in enumerate([(s.replace('"', '""'), t) for s, t in PAIRS])
    ),
    "lines.jsonl": json_lines(lambda source, target: {"source": source, "target": target, "id": 7}),
    "translation.jsonl": json_lines(lambda source, target: {"id": 7, "translation": {"en": source, "de": target}}),
    "utf-16.jsonl": codecs.BOM_UTF16_BE + json_lines(lambda en, de: {"en": en, "de": de}).decode().encode("utf-16-be"),
    "array.json": json.dumps([{"en": source, "de": target} for source, target in PAIRS]).encode(),
}
"""Files that all hold PAIRS."""

REFUSED = {
    "a.docx": (zipped(word__document_xml="<w/>"), "is a Word document: save its pairs as a table"),
    "a.ods": (zipped(mimetype="x", content_xml="<o/>"), "is an OpenDocument file: save it as .xlsx or .csv"),
    "a.zip": (zipped(en="x", de="y"), r"is a zip file \(en, de\): unpack it first"),
    "cut.xlsx": (zipped(xl__workbook_xml="<w/>")[:40], "is a zip file that is damaged or incomplete"),
    "a.xls": (b"\xd0\xcf\x11\xe0\xa1\xb1", "is an old Excel or Word file: save it as .xlsx or .csv"),
    "a.pdf": (b"%PDF-1.7\n", "is a PDF"),
    "a.pkl": (pickle.dumps(PAIRS), "is a Python pickle, which may run any program and is never loaded"),
    "a.tar": (tarred(), "is a tar archive: unpack it first"),
    "a.tar.gz": (gzip.compress(tarred()), "is a tar archive: unpack it first"),
    "a.sqlite": (b"SQLite format 3\0", "is an SQLite database"),
    "a.html": (b"<!DOCTYPE html><html><body>404</body></html>", "is a web page, not data"),
    "a.tsv": (b"<html><head>", "is a web page, not data"),
    "a.xml": (b'<?xml version="1.0"?><catalogue/>', "is XML with the root element catalogue: TMX and XLIFF can be"),
    "entities.tmx": (
        b'<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]><tmx version="1.4"/>',
        "is XML that declares entities of its own, which are not read",
    ),
    "late.tmx": (
        b'<?xml version="1.0"?><!-- ' + b"licence " * 600 + b'--><tmx version="1.4"/>',
        "is XML whose first element comes after 4,096 bytes: shorten what is before it",
    ),
    "latin.po": (
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=CHARSET\\n"\n\nmsgid "a"\nmsgstr "café"\n'.encode(
            "latin1"
        ),
        r"line 5: not UTF-8 \(byte 0xe9 at column 12\); .*windows-1252",
    ),
    "cut.tmx": (b'<?xml version="1.0"?>\n<tmx version="1.4"><body><tu>', "is a TMX file that can't be read: "),
    "lfs.tsv": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a pointer of Git LFS, not the data"),
    "a.png": (b"\x89PNG\r\n", "is a picture"),
    "cut.gz": (gzip.compress(TSV.encode())[:-9], r"is a packed file that is damaged or incomplete"),
    "cut.xz": (lzma.compress(TSV.encode())[:-9], r"is a packed file that is damaged or incomplete"),
    "cut.bz2": (bz2.compress(TSV.encode())[:-9], r"is a packed file that is damaged or incomplete"),
    "latin.tsv": ("café\tx\n".encode("latin1"), r"line 1: not UTF-8 \(byte 0xe9 at column 4\); .*windows-1252"),
    "chinese.tsv": (
        "你好吗\t再见\n".encode("gb18030"),
        r"line 1: not UTF-8 .*it may be gb18030: convert it with iconv",
    ),
    "japanese.tsv": (
        "今日はとても良い天気です\tさようなら\n".encode("shift_jis"),
        r"line 1: not UTF-8 .*it may be shift_jis: convert it with iconv -f shift_jis",
    ),
    "korean.tsv": (
        "오늘은 날씨가 아주 좋습니다\t안녕히 가세요\n".encode("euc_kr"),
        "line 1: not UTF-8 .*it may be euc_kr or gb18030: convert it with iconv -f ENCODING",
    ),
    "french.tsv": ("très élevée\tLes élèves\n".encode("latin1"), "; convert it from the encoding that it is in, "),
    "chinese.csv": (
        "en,zh\nweather,今天的天气非常好\n".encode("gb18030"),
        r"not UTF-8 \(byte 0xbd\); it may be gb18030: convert it with iconv -f gb18030",
    ),
    "commas.csv": (
        b"en,de\na,b\nHello, world,Hallo, Welt\n",
        r"line 3: it has 4 cells, the first line 2: within a text",
    ),
    "utf-16-le.tsv": (TSV.encode("utf-16-le"), "looks like UTF-16 without its mark: .* iconv -f utf-16le -t utf-8"),
    "utf-16-be.tsv": (TSV.encode("utf-16-be"), "looks like UTF-16 without its mark: .* iconv -f utf-16be -t utf-8"),
    "cut utf-16.tsv": (codecs.BOM_UTF16_LE + b"a\0b", "begins with the mark of UTF-16 but isn't UTF-16"),
    "a.bin": (bytes(range(7)) * 40 + bytes(40), "is a binary file, text was expected"),
    "russian.tsv": (
        "good day\tДобрый день\n".encode("windows-1251"),
        r"it may be windows-1251: convert it with iconv -f windows-1251",
    ),
    "greek.tsv": (
        "day\tΚαλημέρα κόσμε, τι κάνεις;\n".encode("windows-1253"),
        r"it may be windows-1253: convert it with iconv -f windows-1253",
    ),
    "hebrew.tsv": (
        "day\tשלום עולם מה שלומך\n".encode("windows-1255"),
        r"it may be windows-1255: convert it with iconv -f windows-1255",
    ),
    "russian.csv": ("en,ru\nday,День\n".encode("koi8-r"), r"it may be koi8-r: convert it with iconv -f koi8-r"),
    "latin.csv": ("en,de\na,café\n".encode("latin1"), r"not UTF-8 \(byte 0xe9\); convert it"),
    "many.csv": (b"id,text_a,text_b\n1,x,y\n", r"has the columns id, text_a, text_b: say which .*--columns id text_a"),
    "strange.csv": (
        b"Product name,SKU,note\na,b,c\nd,e,f\n",
        "has 3 columns, in the first row Product name, SKU, note: .* such as --columns 'Product name' SKU",
    ),
    "prices.csv": (
        b"Product name,SKU,Price\na,b,1\nd,e,2.5\n",
        "has the columns Product name, SKU, Price: say which are source and target",
    ),
    "one.csv": (b"en\nhello\n", "has one column: a pair needs a source and a target"),
    "ragged.csv": (b"en,de\na,b\nc\n", r"line 3: it has 1 cells, the first line 2"),
    "early.csv": (b"en,de\na,b\nc\n" + b"d,e\n" * 9, r"line 3: it has 1 cells, the first line 2"),
    "late.csv": (b"en,de\n" + b"a,b\n\n" * 9 + b"c\n", r"line 20: it has 1 cells, the first line 2"),
    "quote.csv": (b'en,de\n"a,b\n', r"line 2: a quote opens in this row, and its end is missing or wrong"),
    "open.csv": (
        b"en,de\na,b\n" + b'"c,d\n' + b"e,f\n" * 20,
        r"line 3: a quote opens in this row, and its end is missing or wrong \(unexpected end of data\): close it",
    ),
    "early quote.csv": (
        b'en,de\na,b\n"c\nd"x,e\n',
        r"line 3: a quote opens in this row, .* expected after .*: close it",
    ),
    "broken.jsonl": (
        b'{"en": "a", "de": "b"}\n{"en": "a", \n',
        r"line 2: it is not JSON .*one object a line",
    ),
    "references.jsonl": (
        b'{"source": "a", "target": ["b", "c"], "n": {}}\n',
        r"line 1: the texts of a source and a target were expected, got source \(a text\), target \(a list\)$",
    ),
    "later list.jsonl": (
        b'{"en": "a", "de": "b"}\n{"en": "a", "de": ["b"]}\n',
        "line 2: de is a list, text was expected$",
    ),
    "ids.jsonl": (
        b'{"id": 7, "a": {"b": "x"}, "c": "y", "d": "z"}\n',
        r"has the columns id, a\.b, c, d: say which are source and target, such as --columns a\.b c$",
    ),
    "missing.jsonl": (b'{"en": "a", "de": "b"}\n{"en": "a"}\n', "line 2: it has no de"),
    "deep.jsonl": (b'{"en": ' + b"[" * 100_000 + b"\n", "line 1: it is nested too deeply"),
    "list.jsonl": (b'{"en": "a", "de": "b"}\n["a", "b"]\n', r"line 2: an object was expected, got \["),
    "broken.json": (b'[{"en": "a", "de": "b"}, ', ": it is not JSON"),
    "mac.tsv": (b"a\tb\rc\td\r", r" ends its lines with carriage returns alone, .*: convert it with tr '\\r' '\\n'$"),
    "lost tab.tsv": (
        b"1\tone\teins\n2\ttwo\n",
        "line 2: it has 2 columns, and column 3 is the target: is a tab missing",
    ),
    "numbered.csv": (b"17,Go.,x,y\n", r"in the first row 17, Go\., x, y: say .*--columns 2 3, .* --columns Go\. x$"),
}
"""Files, and what is said about them."""


@pytest.mark.parametrize("name", READ)
def test_files_that_hold_the_same_pairs(tmp_path, name):
    (tmp_path / name).write_bytes(READ[name])
    assert list(PairFiles(tmp_path / name)) == PAIRS


def test_an_object_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"en": "x", "de": {"a": {"b": {"c": {"d": {"e": "y"}}}}}}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: de\.a\.b\.c\.d is an object, text was expected$"):
        list(PairFiles(tmp_path / "a.jsonl", columns=("en", "de.a.b.c.d")))


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(tmp_path, name):
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}.*{message}") as raised:
        list(PairFiles(tmp_path / name))
    assert "\n" not in str(raised.value)


SMALL = {
    "null.jsonl": (
        '\n{"source": null, "target": "b", "id": 3}\n{"source": 119, "target": "c"}\n',
        [("", "b"), ("119", "c")],
    ),
    "far.jsonl": (
        '{"id": 7, "a": "x", "b": "y", "meta": {"info": {"url": "u"}}}\n{"a": "z", "b": ""}\n',
        [("x", "y"), ("z", "")],
    ),
    "far within.jsonl": (
        '{"translation": {"qaa": "x", "qab": "y"}, "meta": {"a": {"b": "s"}}}\n',
        [("x", "y")],
    ),
    "nested.jsonl": (
        '{"id": 0, "data": {"src": {"text": "a"}, "tgt": {"text": "b"}}, "tags": []}\n',
        [("a", "b")],
    ),
    "array.json": (' \n[{"en": 1, "de": "b", "tags": ["x"]}]', [("1", "b")]),
    "quotes.csv": ('"a, b, c";"x, y"\n', [("a, b, c", "x, y")]),
    "blank.csv": ("\n\nen,de\n\na,b\n\n,\nc,d\n\n", [("a", "b"), ("", ""), ("c", "d")]),
    "blank.jsonl": (
        '\n{"en": "a", "de": "b"}\n\n \n{"en": "c", "de": "d"}\n\n',
        [("a", "b"), ("", ""), ("c", "d")],
    ),
    "tatoeba.tsv": (
        "1276\tLet's go.\t77\tGehen wir.\n1277\t7\t80\tSieben.\n",
        [("Let's go.", "Gehen wir."), ("7", "Sieben.")],
    ),
    "mined.tsv": ("1.052\tone\teins\n0.97\ttwo\tzwei\n", [("one", "eins"), ("two", "zwei")]),
    "spelled.tsv": ("1\tone\t5\n2\ttwo\t4\n", [("1", "one"), ("2", "two")]),
    "numbers first.tsv": ("1\t1\tnote\tx\n" * 6 + "cat\tKatze\tnote\tx\n", [("1", "1")] * 6 + [("cat", "Katze")]),
    "number second.tsv": ("one\t1\tcomment\n", [("one", "1")]),
    "ragged.tsv": (
        "1\tone\teins\tx\n2\t\tzwei\n\n3\tthree\tdrei\n",
        [("one", "eins"), ("", "zwei"), ("", ""), ("three", "drei")],
    ),
    "return.tsv": ("a\rb\tc", [("a\rb", "c")]),
    "spaced.csv": (
        "how many,in words\n\n" + "".join(f"{n},number {n}\n\n" for n in range(7)) + "\n\n8,number 8\n",
        [*((str(n), f"number {n}") for n in range(7)), ("", ""), ("8", "number 8")],
    ),
    "words.tsv": ("it rains\tes regnet\nto\tit\n", [("it rains", "es regnet"), ("to", "it")]),
    "empty.csv": ("", []),
    "counted.csv": ("how many,in words\n1,one\n2,two\n", [("1", "one"), ("2", "two")]),
    "counts.csv": ("1,one\n2,two\n3,three\n", [("1", "one"), ("2", "two"), ("3", "three")]),
    "german.csv": ("Ja, gut;Yes\nNein, nie;No, never\n", [("Ja, gut", "Yes"), ("Nein, nie", "No, never")]),
    "filled.csv": ("en,de\na,b,,\n", [("a", "b")]),
}
"""Small files, and their pairs."""


@pytest.mark.parametrize("name", SMALL)
def test_small_files(tmp_path, name):
    content, pairs = SMALL[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(PairFiles(tmp_path / name)) == pairs


def test_several_frames_of_zstandard_and_one_without_its_end(tmp_path):
    compress = pytest.importorskip("zstandard").ZstdCompressor().compress
    path = tmp_path / "a.tsv.zst"
    path.write_bytes(compress(TSV.encode()) + compress(b"x\ty\n" * 100_000))
    assert list(PairFiles(path)) == [*PAIRS, *[("x", "y")] * 100_000]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"damaged or incomplete \(the last frame has no end\): get it again"):
        list(PairFiles(path))
    path.write_bytes(compress(b'{"en": "a", "de": "b"}\n'))
    assert list(PairFiles(path)) == [("a", "b")]


def test_a_break_within_a_cell_is_a_space(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'en,de\r\n"a\r\nb","c\nd"\r\n')
    assert list(PairFiles(tmp_path / "a.csv")) == [("a b", "c d")]


def test_columns_can_be_named_or_counted(tmp_path):
    path = tmp_path / "three.csv"
    path.write_text("id,en,de,fr\n1,one,eins,un\n")
    for columns, pair in {("fr", "en"): ("un", "one"), ("3", "4"): ("eins", "un"), ("de", "1"): ("eins", "1")}.items():
        assert list(PairFiles(path, columns=columns)) == [pair]
    with pytest.raises(DataError, match=r"has no column 'es' \(its columns are id, en, de, fr\)$"):
        list(PairFiles(path, columns=("en", "es")))
    path.write_text("a,b,c\nx,y,z\n")
    with pytest.raises(DataError, match=r"has no column 'd' \(its columns are a, b, c\)$"):
        list(PairFiles(path, columns=("a", "d")))
    path.write_text("id,Frage,Antwort\n1,a,b\n")
    for columns in (("2", "3"), ("frage", "ANTWORT")):
        assert list(PairFiles(path, columns=columns)) == [("a", "b")]
    path.write_text(" en , de \none,eins\n")
    for columns in (("en", "de"), (" de ", "En")):
        assert list(PairFiles(path, columns=columns)) == [("one", "eins") if columns[0] == "en" else ("eins", "one")]
    path.write_text("english,german\none,eins\n")
    with pytest.raises(DataError, match=r"no column 'germn' \(.* english, german\): did you mean german\?"):
        list(PairFiles(path, columns=("english", "germn")))
    with pytest.raises(DataError, match=r"^--columns must name two columns of .*, got .* twice$"):
        list(PairFiles(path, columns=("english", "english")))
    (tmp_path / "numbers.tsv").write_text("2\t1\n3\t4\n")
    assert list(PairFiles(tmp_path / "numbers.tsv", columns=("1", "2"))) == [("2", "1"), ("3", "4")]
    (tmp_path / "plain.tsv").write_text("1\tone\teins\n2\ttwo\tzwei\n")
    assert list(PairFiles(tmp_path / "plain.tsv", columns=("2", "3"))) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(
    ("header", "first", "said"),
    [
        ("id\tde\ten\ttext_id", ("b", "c"), "de is the source, en the target (of the columns id, de, en, text_id)"),
        ("Target\tScore\tSource\tx", ("c", "a"), "Source is the source, Target the target (of the columns Target, S"),
        ("原文\t译文\tx\ty", ("a", "b"), "原文 is the source, 译文 the target"),
        ("x\tsentence_en\tsentence_de\ty", ("b", "c"), "sentence_en is the source, sentence_de the target"),
        ("source 1\ttarget 1\tx\ty", ("source 1", "target 1"), "the first two of 4 columns are the pair (--columns"),
        ("no\tno\tx\ty", ("no", "no"), "the first two of 4 columns are the pair"),
    ],
)
def test_columns_are_known_by_their_names_and_what_was_taken_is_said(tmp_path, header, first, said):
    path = tmp_path / "a.tsv"
    path.write_text(f"{header}\na\tb\tc\td\n", encoding="utf-8")
    told: list[str] = []
    (block,) = PairFiles(path).blocks(told.append)
    assert next(zip(*block.pairs(), strict=True)) == first
    (line,) = told
    assert line.startswith(f"{path}: {said}")


TITLED = {
    "a title": ([["平行语料库"], ["编号", "原文", "译文"], ["1", "书", "book"], ["2", "鱼", "fish"]], None),
    "a title, columns named": ([["Pairs"], ["A", "B", "C"], ["1", "书", "book"], ["2", "鱼", "fish"]], ("B", "C")),
    "a title, cells beside it": ([["Pairs", ""], ["原文", "译文"], ["书", "book"], ["鱼", "fish"]], None),
    "a title, empty rows": ([["Pairs"], [], ["问题", "答案"], ["书", "book"], ["鱼", "fish"]], None),
}


@pytest.mark.parametrize("ending", ["xlsx", "csv", "tsv"])
@pytest.mark.parametrize("name", TITLED)
def test_a_title_above_the_header_is_passed_over_and_said(tmp_path, name, ending):
    rows, columns = TITLED[name]
    path, said = write_table(tmp_path / f"a.{ending}", rows), list[str]()
    assert list(PairFiles(path, columns=columns).blocks(said.append))
    assert list(PairFiles(path, columns=columns)) == [("书", "book"), ("鱼", "fish")]
    assert f"{path}: {rows[0][0]} is taken for a title, the next row for the header" in said


def test_a_first_row_with_one_cell_is_a_pair_of_a_workbook_and_refused_in_csv(tmp_path):
    rows = [["第一章"], ["书", "book"], ["鱼", "fish"]]
    assert list(PairFiles(write_table(tmp_path / "a.xlsx", rows))) == [("第一章", ""), ("书", "book"), ("鱼", "fish")]
    with pytest.raises(
        DataError, match=r"a\.csv, line 1: it has one cell, '第一章', the next row 2: remove it where it"
    ):
        list(PairFiles(write_table(tmp_path / "a.csv", rows)))
    with pytest.raises(
        DataError, match=r"d\.xlsx, the first row: it has one cell, 'Pairs', the next row 3: remove it where"
    ):
        list(PairFiles(write_table(tmp_path / "d.xlsx", [["Pairs"], ["A", "B", "C"], ["x", "y", "z"]])))
    for rest in ([["eins", "number"], ["zwei", "2"], ["drei", "3"]], [["Haus", "house"], ["Hof", "yard"]]):
        rows = [["Inhalt", ""], *rest]
        assert list(PairFiles(write_table(tmp_path / "e.csv", rows))) == [tuple(row) for row in rows]
    with pytest.raises(DataError, match=r"c\.xlsx has one column: a pair needs a source and a target"):
        list(PairFiles(write_table(tmp_path / "c.xlsx", [["书"], ["鱼"]])))


def write_table(path: Path, rows: list[list[str]]) -> Path:
    """Write rows as CSV or as a workbook, by the file's ending."""
    if path.suffix != ".xlsx":
        sign = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(sign.join(row) + "\n" for row in rows), encoding="utf-8")
        return path
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append([cell or None for cell in row])
    book.save(path)
    return path


def test_a_header_stands_above_numbers(tmp_path):
    path = tmp_path / "a.tsv"
    numbers = "".join(f"{n}\tnumber {n}\n" for n in range(5))
    path.write_text(f"Zahl\tWort\n{numbers}")
    assert next(iter(PairFiles(path))) == ("0", "number 0")
    for pair in ("!\texclamation mark", "\u00bd\ta half", "nan\tnot a number", "1\tone"):
        path.write_text(f"{pair}\n{numbers[:22] if pair[0] == 'n' else numbers}")
        assert next(iter(PairFiles(path))) == tuple(pair.split("\t")), "a first pair is no header"
    path.write_text("Wort\tword\tcount\neins\tone\t17\nzwei\ttwo\t5\n")
    with pytest.raises(DataError, match="has the columns Wort, word, count: say which"):
        list(PairFiles(path))


def test_a_header_above_long_lines_is_known(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("source\ttarget\n" + ("中文字" * 4000 + "\tx\n") * 3, encoding="utf-8")
    assert next(iter(PairFiles(path)))[1] == "x"
    path.write_text("中文字" * 4000 + "\tx\n", encoding="utf-8")
    assert list(PairFiles(path)) == [("中文字" * 4000, "x")]


def test_two_columns_within_another_one_are_the_pair(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "7", "translation": {"en": "one", "xx": "uno"}}\n')
    assert list(PairFiles(path)) == [("one", "uno")]
    for meta in ('{"id": 1, "len": 2}', '{"id": 1}'):
        path.write_text(f'{{"prompt": "one", "completion": "uno", "meta": {meta}}}\n')
        assert list(PairFiles(path)) == [("one", "uno")]
    path.write_text('{"prompt": "one", "completion": "uno", "meta": {"by": "x", "on": "y"}}\n')
    with pytest.raises(DataError, match="say which are source and target"):
        list(PairFiles(path))
    (tmp_path / "b.tsv").write_text("Go.there\tGo.you\na\tb\n")
    assert list(PairFiles(tmp_path / "b.tsv")) == [("Go.there", "Go.you"), ("a", "b")]


ROWS = [{"source": f"s{n}", "target": f"t{n}", "score": math.nan if n == 3 else math.inf} for n in range(7)]


@pytest.mark.parametrize("name", ["pairs.json", "pairs.jsonl"])
def test_what_python_writes_into_json_is_read(tmp_path, name):
    """NaN and Infinity in columns that nobody reads, and half of a surrogate pair in a text."""
    rows = [*ROWS, {"source": "\ud83d", "target": "x"}]
    text = json.dumps(rows) if name == "pairs.json" else "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / name).write_text(text)
    assert list(PairFiles(tmp_path / name)) == [*((row["source"], row["target"]) for row in ROWS), ("?", "x")]


def test_a_table_has_both_sides_but_lines_of_json_may_be_targets(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"en": "a", "de": "b"}\n')
    (tmp_path / "a.tmx").write_text(TMX)
    (tmp_path / "b.txt").write_text("b\n")
    for sides in (("a.tmx", "b.txt"), ("b.txt", "a.tmx")):
        with pytest.raises(DataError, match=r"a.tmx is a TMX file, which has both sides: give it alone"):
            list(PairFiles(*(tmp_path / side for side in sides)))
    assert list(PairFiles(tmp_path / "b.txt", tmp_path / "a.jsonl")) == [("b", '{"en": "a", "de": "b"}')]
    with pytest.raises(ConfigError, match="columns are for one file of both sides"):
        PairFiles(tmp_path / "b.txt", tmp_path / "b.txt", ("1", "2"))


# Formats that a library reads


def test_parquet(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    flat = pyarrow.table({"id": [1, 2], "en": ["one", "two"], "de": ["eins", None]})
    numbers = pyarrow.table({"source": [1, 2], "target": pyarrow.array(["eins", "zwei"]).dictionary_encode()})
    parquet.write_table(numbers, tmp_path / "numbers.parquet")
    assert list(PairFiles(tmp_path / "numbers.parquet")) == [("1", "eins"), ("2", "zwei")]
    raw = pyarrow.table({"source": [b"one", "zw\u00f6lf".encode()], "target": ["eins", "twelve"]})
    parquet.write_table(raw, tmp_path / "bytes.parquet")
    assert list(PairFiles(tmp_path / "bytes.parquet")) == [("one", "eins"), ("zwölf", "twelve")]
    parquet.write_table(pyarrow.table({"source": [b"\xff"], "target": ["x"]}), tmp_path / "bytes.parquet")
    with pytest.raises(DataError, match="has a column of bytes that aren't UTF-8"):
        list(PairFiles(tmp_path / "bytes.parquet"))
    nested = pyarrow.table({"id": ["1", "2"], "translation": [{"en": "one", "de": "eins"}, {"en": "two", "de": None}]})
    for table in (flat, nested):
        path = tmp_path / "a.parquet"
        parquet.write_table(table, path)
        assert list(PairFiles(path)) == [("one", "eins"), ("two", "")]
        assert list(PairFiles(path, columns=("de", "en"))) == [("eins", "one"), ("", "two")]
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match="is a parquet file that is damaged or incomplete"):
        list(PairFiles(path))


def test_a_parquet_column_of_lists_is_no_text_and_one_of_views_is(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"source": [["x"], ["y"]], "target": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: the column source has list<.*>, text was expected"):
        list(PairFiles(tmp_path / "a.parquet"))
    views = pyarrow.array(["x", "y"], pyarrow.string_view())
    parquet.write_table(pyarrow.table({"a": views, "b": views, "n": [1, 2]}), tmp_path / "b.parquet")
    assert list(PairFiles(tmp_path / "b.parquet")) == [("x", "x"), ("y", "y")]


def test_xlsx(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    path = tmp_path / "a.xlsx"
    for header in (["German", "English", None], None):
        book = openpyxl.Workbook()
        book.create_sheet("empty", 0)
        for row in ([header] if header else []) + [["eins", "one"], [2, "two"], [None, None], ["drei", None]]:
            book.worksheets[1].append(row)
        book.save(path)
        assert list(PairFiles(path)) == [("eins", "one"), ("2", "two"), ("", ""), ("drei", "")]
    book.worksheets[1].append([datetime(2024, 5, 3), datetime(2024, 5, 3, 12, 30)])
    book.save(tmp_path / "dates.xlsx")
    assert list(PairFiles(tmp_path / "dates.xlsx"))[-1] == ("2024-05-03", "2024-05-03 12:30:00")
    renamed = path.rename(tmp_path / "pairs.data")
    assert len(list(PairFiles(renamed))) == 4
    renamed.write_bytes(renamed.read_bytes().replace(b"<row", b"<r0w").replace(b"PK\x01\x02", b"PK\x01\x03", 1))
    with pytest.raises(DataError, match="damaged or incomplete"):
        list(PairFiles(renamed))


TMX = """<?xml version="1.0" encoding="utf-8"?>
<tmx version="1.4"><header srclang="de" creationtool="x" creationtoolversion="1" segtype="sentence" o-tmf="x"
 adminlang="en" datatype="plaintext"/><body>
<tu><tuv xml:lang="en"><seg>a <bpt i="1">&lt;b&gt;</bpt><hi>c</hi>at<!-- a note --><ept i="1">&lt;/b&gt;</ept></seg>
 </tuv> <tuv xml:lang="de"><seg>eine Katze</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>two</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>drei &amp; vier</seg></tuv><tuv xml:lang="en"><seg>three</seg></tuv></tu>
</body></tmx>
"""
XLIFF = """<?xml version="1.0" encoding="utf-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><file original="x" source-language="en"
 target-language="de" datatype="plaintext"><body>
<trans-unit id="1"><source>one</source><target>eins</target></trans-unit>
<trans-unit id="2"><source>two</source></trans-unit>
<trans-unit id="3"><source>three</source><target state="needs-translation">drei</target></trans-unit>
<trans-unit id="4"><source>a <g id="1">fourth</g></source><target state="final">vier</target></trans-unit>
<trans-unit id="5"><source>click <bpt id="1">&lt;b&gt;</bpt>here<ept id="1">&lt;/b&gt;</ept>
  or <ph id="2">{0}</ph>there</source><target>hier <it id="1" pos="open">&lt;b&gt;</it>klicken</target></trans-unit>
</body></file></xliff>
"""
XLIFF_2 = """<?xml version="1.0" encoding="utf-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de" version='2.1'><file id="f">
<unit id="1"><segment><source>one</source><target>eins</target></segment></unit>
<unit id="2"><segment><source>two</source></segment></unit>
<unit id="3"><segment state="initial"><source>three</source><target>drei</target></segment></unit>
<unit id="4"><segment state="final"><source>a <pc id="1">fourth</pc></source><target>vier</target></segment></unit>
</file></xliff>
"""
PO = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid "one"
msgstr "eins"

#, fuzzy
msgid "two"
msgstr "zwo"

msgid "three"
msgstr ""
"""


GAP = ("", "")
"""Stands for the units between two others that have no pair: the two aren't neighbours."""


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.tmx", TMX, None, [("eine Katze", "a cat"), GAP, ("drei & vier", "three")]),
        ("a.tmx", TMX, ("en", "de"), [("a cat", "eine Katze"), GAP, ("three", "drei & vier")]),
        (
            "a.tmx",
            TMX.replace('"de"', '"de-AT"'),
            ("en", "de"),
            [("a cat", "eine Katze"), GAP, ("three", "drei & vier")],
        ),
        ("a.xlf", XLIFF, None, [("one", "eins"), GAP, ("a fourth", "vier"), ("click here or there", "hier klicken")]),
        ("b.xlf", XLIFF_2, None, [("one", "eins"), GAP, ("a fourth", "vier")]),
        ("a.po", PO, None, [("one", "eins")]),
        ("a.po.gz", PO, None, [("one", "eins")]),
        (
            "b.xlf",
            XLIFF_2.replace("<xliff", "<!-- a -->\n" * 40 + "<xliff"),
            None,
            [("one", "eins"), GAP, ("a fourth", "vier")],
        ),
    ],
)
def test_translation_memories(tmp_path, name, content, columns, expected):
    pytest.importorskip("translate")
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    assert list(PairFiles(tmp_path / name, columns=columns)) == expected


def test_a_po_file_is_read_in_the_encoding_of_its_header(tmp_path):
    pytest.importorskip("translate")
    text = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\nmsgid "size"\nmsgstr "Größe"\n'
    for encoding in ("latin1", "utf-8"):
        (tmp_path / "a.po").write_bytes(text.encode(encoding))
        assert list(PairFiles(tmp_path / "a.po")) == [("size", "Größe")]


@pytest.mark.parametrize("text", ["a\tb\n", "<?xml version='1.0'?>"])
def test_comments_before_the_first_element_take_no_time(tmp_path, text):
    """It doubled with each."""
    (tmp_path / "a.tsv").write_text("<!-- l -->\n" * 200 + text, encoding="utf-8")
    began = time.thread_time()
    with suppress(DataError):
        list(PairFiles(tmp_path / "a.tsv"))
    assert time.thread_time() - began < 1


@pytest.mark.parametrize("score", ["8.5e-05", "-1E+3", ".5", "1.", "nan", "-inf"])
def test_a_column_of_scores_before_the_text_is_left_out(tmp_path, score):
    rows = [f"{score if n == 2 else n / 7}\tHello {n}\tHallo {n}\n" for n in range(7)]
    (tmp_path / "scored.tsv").write_text("".join(rows), encoding="utf-8")
    assert list(PairFiles(tmp_path / "scored.tsv")) == [(f"Hello {n}", f"Hallo {n}") for n in range(7)]


@pytest.mark.parametrize(
    ("module", "name", "content", "extra"),
    [
        ("pyarrow", "a.parquet", b"PAR1", "parquet"),
        ("openpyxl", "a.xlsx", zipped(xl__workbook_xml="<w/>"), "xlsx"),
        ("translate.storage", "a.tmx", TMX.encode(), "formats"),
        ("zstandard", "a.zst", b"\x28\xb5\x2f\xfd", "zstd"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, module, name, content, extra):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImportError, match=rf'pip install "glassformer\[{extra}\]"'):
        list(PairFiles(tmp_path / name))


@pytest.mark.parametrize("joint", [",", ";", "\t", "|"])
def test_cells_of_several_lines_do_not_hide_what_separates_them(tmp_path, joint):
    rows = [("Hello there\nworld; fine, | or", "Hallo dort\nWelt; gut, | ja"), ('He said "a, b"', "x")] * 5
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer(file, delimiter=joint, quoting=QUOTE_ALL).writerows([("en", "de"), *rows])
    assert list(PairFiles(path)) == [tuple(" ".join(cell.split("\n")) for cell in row) for row in rows]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            'Er sagte "ja, gut".;He said "yes" to it.\nSie rief "halt, du".;She called "stop" to him.\n',
            ('Er sagte "ja, gut".', 'He said "yes" to it.'),
        ),
        ('1 ; "x, y"\n2 ; "x, y"\n', ("1 ", "x, y")),
        ('5" tv a 6" tv,x\n3" tv a 4" tv,y\n', ('5" tv a 6" tv', "x")),
    ],
)
def test_a_sign_within_a_quotation_separates_no_cells(tmp_path, text, first):
    """Every second pair was half of a sentence beside the rest of it and its translation."""
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    assert next(iter(PairFiles(path))) == first


@pytest.mark.parametrize(
    "text",
    [
        'en, de\n"a", "b, c"\n',
        '"en", "de"\r\n"a",  "b, c"\r\n',
        'a, "b, c"',
        "sep=;\nen;de\na;b, c\n",
        '"sep=;"\r\nid;en;de\r\n1;a;b, c\r\n',
        "sep=|\na|b, c\n",
    ],
)
def test_spaces_before_quotes_and_the_line_that_names_the_separator_are_no_text(tmp_path, text):
    (tmp_path / "a.csv").write_text(text, newline="")
    assert list(PairFiles(tmp_path / "a.csv")) == [("a", "b, c")]


def test_a_line_of_a_file_with_a_separator_line_has_its_own_number(tmp_path):
    (tmp_path / "a.csv").write_text("sep=;\na;b\nc;d;e\n")
    with pytest.raises(DataError, match="line 3"):
        list(PairFiles(tmp_path / "a.csv"))


@pytest.mark.parametrize(("of_header", "english"), [("en", "en-US"), ("en-US", "EN"), ("EN_us", "en-GB"), ("en", "en")])
def test_the_source_of_a_memory_is_the_language_of_its_header(tmp_path, of_header, english):
    pytest.importorskip("translate", reason="pip install 'glassformer[formats]'")
    unit = f'<tu><tuv xml:lang="de-DE"><seg>y</seg></tuv><tuv xml:lang="{english}"><seg>x</seg></tuv></tu>'
    path = tmp_path / "a.tmx"
    path.write_text(f'<tmx version="1.4"><header srclang="{of_header}"/><body>{unit}</body></tmx>')
    assert list(PairFiles(path)) == [("x", "y")]


def test_languages_of_a_memory_may_be_spelled_in_capitals_too(tmp_path):
    pytest.importorskip("translate", reason="pip install 'glassformer[formats]'")
    units = "".join(
        f'<tu><tuv xml:lang="{en}"><seg>x{n}</seg></tuv><tuv xml:lang="{de}"><seg>y{n}</seg></tuv></tu>'
        for n, (en, de) in enumerate([("EN", "DE"), ("en", "de"), ("En", "dE")])
    )
    path = tmp_path / "a.tmx"
    path.write_text(f'<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>')
    expected = [("x0", "y0"), ("x1", "y1"), ("x2", "y2")]
    assert list(PairFiles(path)) == list(PairFiles(path, columns=("en", "de"))) == expected
