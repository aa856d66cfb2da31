"""Imports and exports appear whole or not at all, and whatever stopped them, the same call works afterwards."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from glassformer.errors import RunError
from glassformer.interop.ctranslate2 import export_ctranslate2
from glassformer.interop.huggingface import export_marian, import_marian


@contextmanager
def lost() -> Iterator[None]:
    """A Ctrl-C comes as the first file is flushed to the disk."""

    def press(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", press)
        yield


@pytest.fixture
def calls(run, tmp_path) -> dict[str, Callable[[Path], object]]:
    """What writes a folder, by name."""
    export_marian(run, marian := tmp_path / "marian")
    return {
        "import": lambda out: import_marian(marian, out),
        "huggingface": lambda out: export_marian(run, out),
        "ctranslate2": lambda out: export_ctranslate2(run, out),
        "onnx": lambda out: import_module("glassformer.interop.onnx.export").export_onnx(run, out),
    }


@pytest.mark.parametrize("there", [False, True], ids=["new", "an empty folder"])
@pytest.mark.parametrize("room", [0, 5000, None], ids=["full", "fills up", "lost"])
@pytest.mark.parametrize("name", ["import", "huggingface", "ctranslate2", "onnx"])
def test_after_a_failure_nothing_is_there_and_the_same_call_works(calls, tmp_path, tree, full_disk, name, room, there):
    if name in ("ctranslate2", "onnx"):
        pytest.importorskip(name)
    calls[name](tmp_path / "expected")
    out = tmp_path / "new" / "out"
    if there:
        out.mkdir(parents=True)
    before = tree(tmp_path)
    with lost() if room is None else full_disk(room), pytest.raises((OSError, KeyboardInterrupt)):
        calls[name](out)
    assert tree(tmp_path) == before
    calls[name](out)
    assert tree(out) == tree(tmp_path / "expected")
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["import", "huggingface", "ctranslate2", "onnx"])
def test_what_is_there_is_not_written_to(calls, tmp_path, tree, name):
    if name in ("ctranslate2", "onnx"):
        pytest.importorskip(name)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="out is there already: give a new name, or remove it first"):
        calls[name](tmp_path / "out")
    assert tree(tmp_path / "out") == {"notes.txt": b"mine"}
