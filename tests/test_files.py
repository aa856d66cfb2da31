"""Files that are written whole or not at all."""

import json
from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.files import link_or_copy, path_as_text, path_from_text, remove_unfinished, replacing, write_json


class Interrupted(Exception):
    """What goes wrong while a file is written."""


def write_half(path: Path, error: type[BaseException] = Interrupted) -> None:
    with replacing(path) as file:
        file.write(b"new")
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_or_replaces_the_old_one(tmp_path):
    path = tmp_path / "file"
    for content in (b"first", b"second, longer", b""):
        with replacing(path) as file:
            file.write(content)
        assert path.read_bytes() == content
        assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
@pytest.mark.parametrize("old", [b"old", None])
def test_after_an_error_what_was_there_is_left_and_nothing_else(tmp_path, error, old):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(error):
        write_half(path, error)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == ([("file", old)] if old else [])


def test_two_files_of_one_folder_may_be_written_at_once(tmp_path):
    with replacing(tmp_path / "a") as a, replacing(tmp_path / "b") as b:
        a.write(b"of a")
        b.write(b"of b")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"of a", b"of b")


@pytest.mark.parametrize(
    ("name", "message"),
    [("no/file", "no: no such folder to write file to"), ("", "is a folder: give the name of a file to write")],
)
def test_what_cannot_be_written_to_is_named(tmp_path, name, message):
    with pytest.raises(DataError, match=message), replacing(tmp_path / name):
        pass


def test_json_is_written_to_be_read(tmp_path):
    value = {"text": "Grüße 世界", "list": [1, 2.5, None], "nested": {"a": True}}
    write_json(tmp_path / "file.json", value)
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "Grüße 世界" in text
    assert text.endswith("}\n")
    assert text.count("\n") > 3


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": {1, 2}})
    assert json.loads(path.read_text()) == {"a": 1}
    assert names(tmp_path) == ["file.json"]


def test_what_was_being_written_is_removed_and_nothing_else(tmp_path):
    keep = ["model.safetensors", ".hidden", "notes.tmp", ".tmp", ".tmpfile-of-mine", ".prepared"]
    for name in keep:
        (tmp_path / name).touch()
    for name in (".model.safetensors.4711.tmp", ".metrics.jsonl.1.tmp", ".tmpAb3dE9"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(keep)


def test_a_link_is_the_file_itself_or_else_a_copy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("content")
    link_or_copy(tmp_path / "file", tmp_path / "link")
    assert (tmp_path / "link").samefile(tmp_path / "file")

    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    link_or_copy(tmp_path / "file", tmp_path / "copy")
    assert not (tmp_path / "copy").samefile(tmp_path / "file")
    assert (tmp_path / "copy").read_text() == "content"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pairs.tsv", "pairs.tsv"),
        ("früh/100%41.tsv", "früh/100%41.tsv"),
        ("odd \udcff.tsv", "file:odd%20%FF.tsv"),
        ("file:x", "file:file%3Ax"),
    ],
    ids=range(4),
)
def test_a_path_comes_back_from_its_text(name, expected):
    assert path_as_text(Path(name)) == expected
    assert path_from_text(expected) == Path(name)
