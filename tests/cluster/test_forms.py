"""Text, JSON lines and parquet: read in blocks, written with one row for each row."""

import io
import json

import pyarrow
import pyarrow.parquet
import pytest

from glassformer.cluster.forms import FORMS, choose_column, form_of
from glassformer.cluster.storage import Storage
from glassformer.errors import DataError
from glassformer.generation.attention import Translation
from glassformer.generation.config import SearchConfig

CONFIG = SearchConfig(beam=1)


def capitals(texts: list[str]) -> list[list[Translation]]:
    """What a model that writes capitals gives."""
    return [[Translation(text.upper(), -0.5, -1.0, [], [])] for text in texts]


def translated(folder, name: str, size: int, column: str | None = None, *, scores: bool = False) -> bytes:
    """The output for a file, its blocks translated one by one into capitals."""
    storage, form = Storage.of(str(folder)), form_of(name)
    rows, _, chosen = form.survey(storage, name, column)
    outputs, first = [], 1
    for piece in form.pieces(storage, name, size):
        texts, _ = form.texts(piece, first, chosen)
        outputs.append(form.output(piece, capitals(texts), first, CONFIG, scores=scores))
        first += piece.rows
    assert first - 1 == rows
    sink = io.BytesIO()
    form.join(outputs, sink)
    return sink.getvalue()


def test_text_gives_a_line_for_each_line(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\nthree", encoding="utf-8")
    assert translated(tmp_path, "a.txt", 2) == b"ONE\n\nTWO\nTHREE\n"
    assert translated(tmp_path, "a.txt", 3, scores=True) == b"-0.5000\tONE\n-0.5000\t\n-0.5000\tTWO\n-0.5000\tTHREE\n"


def test_json_lines_keep_all_their_bytes(tmp_path):
    lines = ['{"id": 1e3, "text": "größer"}', '{ "text" : "b", "big": 12345678901234567890 } ', '{"text": "c"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert translated(tmp_path, "a.jsonl", 2).decode().splitlines() == [
        '{"id": 1e3, "text": "größer", "translation": "GRÖSSER"}',
        '{ "text" : "b", "big": 12345678901234567890 , "translation": "B"}',
        '{"text": "c", "translation": "C"}',
    ]


def test_json_lines_without_text_stay_rows(tmp_path):
    rows = [{"text": "a"}, {}, {"text": 7}, {"text": None}, {"text": "x\ud800y"}]
    lines = [*map(json.dumps, rows), "not JSON", "[1]"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = [json.loads(line) for line in translated(tmp_path, "a.jsonl", 100).splitlines()]
    assert [row["translation"] for row in found] == ["A", "", "", "", "", "", ""]
    assert [set(row) - {"translation"} for row in found[-2:]] == [set(), set()]
    storage = Storage.of(str(tmp_path))
    [piece] = FORMS["JSON lines"].pieces(storage, "a.jsonl", 100)
    _, problems = FORMS["JSON lines"].texts(piece, 1, "text")
    said = {problem.row: problem.what.partition(" (")[0] for problem in problems}
    assert said == {
        2: "it is null",
        3: "its text is no text",
        4: "it is null",
        5: "not UTF-8",
        6: "it is no object of JSON",
        7: "it is no object of JSON",
    }


@pytest.mark.parametrize("size", [2, 5, 100])
def test_parquet_keeps_its_columns_whatever_its_groups_are(tmp_path, size):
    texts = ["a", None, "b", "c", "", "d", "e"]
    table = pyarrow.table({"text": texts, "year": range(7)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    made = pyarrow.parquet.read_table(io.BytesIO(translated(tmp_path, "a.parquet", size, scores=True)))
    assert made.select(["text", "year"]).equals(table)
    assert made["translation"].to_pylist() == [(text or "").upper() for text in texts]
    assert made["score"].to_pylist() == [-0.5] * 7


def test_parquet_with_a_dictionary_and_one_without_rows(tmp_path):
    table = pyarrow.table({"text": pyarrow.array(["a", "b", "a"]).dictionary_encode()})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    made = pyarrow.parquet.read_table(io.BytesIO(translated(tmp_path, "a.parquet", 2)))
    assert made["translation"].to_pylist() == ["A", "B", "A"]
    pyarrow.parquet.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    made = pyarrow.parquet.read_table(io.BytesIO(translated(tmp_path, "none.parquet", 2)))
    assert (made.num_rows, made.column_names) == (0, ["text", "translation"])


def test_invalid_utf_8_in_parquet_is_one_row(tmp_path):
    cells = pyarrow.array([b"good", b"caf\xe9"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, cells.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    storage = Storage.of(str(tmp_path))
    [piece] = FORMS["parquet"].pieces(storage, "a.parquet", 10)
    texts, problems = FORMS["parquet"].texts(piece, 1, "text")
    assert texts == ["good", ""]
    assert [problem.row for problem in problems] == [2]


def test_a_change_shows_in_the_digest(tmp_path):
    storage = Storage.of(str(tmp_path))
    for name, contents in {"a.txt": (b"a\n", b"b\n"), "a.jsonl": (b'{"a": "b"}\n', b'{"a": "c"}\n')}.items():
        digests = set()
        for content in contents:
            (tmp_path / name).write_bytes(content)
            digests.add(form_of(name).survey(storage, name, None)[1])
        assert len(digests) == 2
    digests = set()
    for text in ("a", "b"):
        pyarrow.parquet.write_table(pyarrow.table({"text": [text]}), tmp_path / "a.parquet")
        digests.add(form_of("a.parquet").survey(storage, "a.parquet", None)[1])
    assert len(digests) == 2


def test_the_column_is_the_only_text_or_has_a_likely_name():
    assert choose_column("f", ["id", "line"], ["line"], None) == "line"
    assert choose_column("f", ["title", "source"], ["title", "source"], None) == "source"
    assert choose_column("f", ["title", "body"], ["title", "body"], "body") == "body"


def test_a_column_of_scores_is_in_the_way_of_scores_alone():
    assert choose_column("f", ["text", "score"], ["text"], None) == "text"
    with pytest.raises(DataError, match=r"^f has a column score already, which is to be added: rename it$"):
        choose_column("f", ["text", "score"], ["text"], None, scores=True)


BAD = {
    "f has the columns title, body: say which to translate with --column": (["title", "body"], ["title", "body"], None),
    "f has the columns id: say which to translate with --column": (["id"], [], None),
    "f has no column x, it has id, line: choose another with --column": (["id", "line"], ["line"], "x"),
    "f has no column id of text, it has id, line: choose another": (["id", "line"], ["line"], "id"),
    "f has a column translation already, which is to be added: rename it": (["translation"], ["translation"], None),
}


@pytest.mark.parametrize("message", BAD)
def test_a_column_that_cannot_be_chosen_is_explained(message):
    with pytest.raises(DataError, match=message):
        choose_column("f", *BAD[message])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"not a table", "a.parquet is a parquet file that is damaged"),
        ("a.txt.gz", b"\x1f\x8b\x08\x00broken", "a.txt.gz is a packed file that is damaged"),
        ("a.jsonl", b"[1]\n", "a.jsonl has no object on its first lines"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        form_of(name).survey(Storage.of(str(tmp_path)), name, None)
