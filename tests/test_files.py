"""Files and folders that appear whole or not at all, and what processes that were killed leave."""

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glassformer.errors import DataError, RunError
from glassformer.files import (
    check_new_folder,
    exchange,
    is_at,
    is_temporary,
    link_or_copy,
    new_folder,
    open_to_append,
    path_as_text,
    path_from_text,
    remove_unfinished,
    replacement,
    replacing,
    try_lock,
    write_json,
)


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


# What is being made, and what killed processes leave


KILLED = """
import os, signal, sys
from pathlib import Path
from glassformer.files import new_folder, replacing

with replacing(Path("file")) as file, new_folder(Path("folder")) as folder:
    (folder / "part").write_text("half")
    print(flush=True)
    sys.stdin.read() or os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def at_work(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which is making a file and a folder."""
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as process:
        assert process.stdout.readline() == b"\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_a_killed_process_was_making_is_removed_and_nothing_else(tmp_path):
    keep = [".hidden", ".file.tmp", ".file.4711.tmp", "notes.tmp", ".tmpAb3dE9", ".of-others.abcdefgh.tmp"]
    for name in keep:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    (tmp_path / ".a-file.abcdefgh.tmp").touch()
    with at_work(tmp_path) as process:
        made = set(names(tmp_path)) - {*keep, ".a-file.abcdefgh.tmp"}
        assert len(made) == 2
        assert all(is_temporary(name) for name in made)
        remove_unfinished(tmp_path)
        assert made < set(names(tmp_path)), "what a living process is making stays"
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL
    assert made < set(names(tmp_path))
    remove_unfinished(tmp_path, "folder")
    assert len(made & set(names(tmp_path))) == 1
    remove_unfinished(tmp_path)
    assert names(tmp_path) == sorted([*keep, ".a-file.abcdefgh.tmp"])


def test_the_next_that_writes_there_removes_what_a_kill_left(tmp_path):
    with at_work(tmp_path) as process:
        process.kill()
        process.wait()
    assert len(names(tmp_path)) == 2
    with replacing(tmp_path / "file") as file:
        file.write(b"whole")
    with new_folder(tmp_path / "folder") as folder:
        (folder / "part").touch()
    assert names(tmp_path) == ["file", "folder"]


def test_temporary_names_cannot_be_foreseen_and_links_are_not_followed(tmp_path, monkeypatch):
    """Nobody can put a link where something is going to be written: its folder is new, and its owner's."""
    seen = set()
    for _ in range(5):
        with replacement(tmp_path / "file") as temporary:
            seen.add(temporary.parent.name)
            assert stat.S_IMODE(temporary.parent.stat().st_mode) == 0o700
            temporary.touch()
    assert len(seen) == 5
    (tmp_path / "precious").write_text("mine")
    tried = iter(["aaaaaaaa", "bbbbbbbb", "cccccccc"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: tried)
    (tmp_path / ".file.aaaaaaaa.tmp").symlink_to(tmp_path)
    (tmp_path / ".file.bbbbbbbb.tmp").symlink_to(tmp_path / "precious")
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / ".file.bbbbbbbb.tmp").is_symlink()


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "file").symlink_to("precious")
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert ((tmp_path / "precious").read_text(), (tmp_path / "file").read_text()) == ("mine", "new")
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("name", ["null", "pipe"])
def test_a_device_or_a_pipe_is_not_replaced(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    path = Path("/dev/null") if name == "null" else tmp_path / name
    with pytest.raises(DataError, match=f"{name} is a device or a pipe, which a file can't replace"), replacing(path):
        pass


def test_a_name_as_long_as_names_may_be(tmp_path):
    with replacing(tmp_path / ("ä" * 127)) as file:
        file.write(b"long")
    assert names(tmp_path) == ["ä" * 127]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_nothing_may_be_written_the_place_is_named(tmp_path):
    tmp_path.chmod(0o500)
    message = f"{tmp_path}: file can't be written into this folder: allow it, or choose another"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"), replacing(tmp_path / "file"):
        pass


def test_two_at_once_to_one_place_don_t_disturb_each_other(tmp_path):
    def write(letter: str) -> None:
        for _ in range(50):
            with replacing(tmp_path / "file") as file:
                file.write(letter.encode() * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert names(tmp_path) == ["file"]
    assert len(content := (tmp_path / "file").read_text()) == 1000 == content.count(content[0])


def test_the_lock_of_what_is_cleared_up_is_free_only_when_its_file_is_gone(tmp_path, monkeypatch):
    (folder := tmp_path / ".file.abcdefgh.tmp").mkdir()
    lock = folder / ".lock"
    maker = os.open(lock, os.O_RDWR | os.O_CREAT)  # the folder's, who hasn't locked it yet
    got = []

    def close(descriptor: int, close: Callable[[int], None] = os.close) -> None:
        close(descriptor)
        got.append(try_lock(maker) and is_at(maker, lock))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close)
        remove_unfinished(tmp_path)
    os.close(maker)
    assert got == [False]
    assert names(tmp_path) == []


def test_a_folder_that_goes_only_when_the_lock_is_closed_goes_too(tmp_path, monkeypatch):
    """On Windows, and on network file systems, a folder is kept as long as a file of it is open."""
    opened, open_, close_ = set[int](), os.open, os.close

    def opening(path, *given: int) -> int:
        descriptor = open_(path, *given)
        if Path(path).name == ".lock":
            opened.add(descriptor)
        return descriptor

    def closing(descriptor: int) -> None:
        opened.discard(descriptor)
        close_(descriptor)

    def removing(path, remove: Callable[[Any], None] = os.rmdir) -> None:
        if opened:
            raise OSError(errno.ENOTEMPTY, "it is kept")
        remove(path)

    with monkeypatch.context() as patched:
        for name, function in (("open", opening), ("close", closing), ("rmdir", removing)):
            patched.setattr(os, name, function)
        with replacing(tmp_path / "file") as file:
            file.write(b"new")
    assert names(tmp_path) == ["file"]


# Folders


def test_a_folder_appears_whole(tmp_path):
    path = tmp_path / "new" / "folder"
    with new_folder(path) as folder:
        (folder / "in").mkdir()
        (folder / "in" / "file").write_text("content")
        assert not path.exists()
    assert (path / "in" / "file").read_text() == "content"
    assert names(path.parent) == ["folder"]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(path.parent.stat().st_mode), "others may read it"


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt, SystemExit])
def test_after_an_error_there_is_no_folder_and_none_above_it(tmp_path, error, there):
    path = tmp_path / "new" / "newer" / "folder"
    if there:
        path.mkdir(parents=True)

    def make() -> None:
        with new_folder(path) as folder:
            (folder / "file").touch()
            raise error

    with pytest.raises(error):
        make()
    assert list(tmp_path.rglob("*")) == ([tmp_path / "new", path.parent, path] if there else [])


def test_what_came_into_its_place_meanwhile_stays(tmp_path):
    path = tmp_path / "folder"

    def make() -> None:
        with new_folder(path) as folder:
            (folder / "file").touch()
            path.mkdir()
            (path / "another's").touch()

    with pytest.raises(RunError, match="folder was made by another process meanwhile"):
        make()
    assert [found.name for found in tmp_path.rglob("*")] == ["folder", "another's"]


@pytest.mark.parametrize("at_once", [False, True])
def test_folders_change_places(tmp_path, monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(sys, "platform", "darwin")
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchange(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "b", "b", "a"]


def test_where_folders_cannot_change_places_at_once_a_failure_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("made", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    rename = Path.rename

    def fail(one: Path, other: Path) -> Path:
        if one.name == "made":
            raise PermissionError("as on Windows, where a file in it is open")
        return rename(one, other)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(PermissionError):
        exchange(tmp_path / "made", tmp_path / "run")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["made", "made", "run", "run"]


@pytest.mark.parametrize("place", [".", "x/.."])
def test_a_folder_without_a_name_is_refused(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    with (
        pytest.raises(RunError, match="can't be replaced by a new folder: give the name of one"),
        new_folder(Path(place)),
    ):
        pass


def test_without_locks_what_another_process_makes_stays(tmp_path, monkeypatch):
    """On some network file systems nobody can know whether it lives."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with replacing(tmp_path / "out") as first:
        with replacing(tmp_path / "out") as second:
            second.write(b"second")
        remove_unfinished(tmp_path)
        first.write(b"first")
    assert (tmp_path / "out").read_bytes() == b"first"
    with replacing(tmp_path / "out"):
        (left,) = tmp_path.glob(".out.*")
        monkeypatch.setattr("glassformer.files._ABANDONED", -1)  # it is as old as that
        remove_unfinished(tmp_path)
        assert not left.exists()
        left.mkdir()
        (left / "out").touch()


# Appending and linking


def test_only_a_file_of_its_own_is_written_on(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to("precious")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(RunError, match=f"{name} must be a file, and is a link, a folder, a pipe or a device"):
            open_to_append(tmp_path / name)
    for text in ("a", "b"):
        with os.fdopen(open_to_append(tmp_path / "file"), "w") as file:
            file.write(text)
    assert ((tmp_path / "precious").read_text(), (tmp_path / "file").read_text()) == ("mine", "ab")


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


def test_what_a_kill_left_of_the_check_is_removed_where_it_was_tried(tmp_path):
    """The folder that is to hold the new one was not there yet."""
    left = tmp_path / ".out.abcd1234.tmp"
    left.mkdir()
    check_new_folder(tmp_path / "new" / "out")
    assert not left.exists()
