import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from glassformer.errors import DataError
from glassformer.files import replacing, write_json
from glassformer.tensors import write_tensors


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


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new" * 100_000)
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" * 100_000


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
def test_after_an_error_the_old_file_is_left_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_after_an_error_there_is_no_file_where_there_was_none(tmp_path):
    with pytest.raises(Interrupted):
        write_half(tmp_path / "file")
    assert names(tmp_path) == []


def test_two_files_of_one_folder_may_be_written_at_once(tmp_path):
    with replacing(tmp_path / "a") as a, replacing(tmp_path / "b") as b:
        a.write(b"of a")
        b.write(b"of b")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"of a", b"of b")


def test_a_folder_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError, match="no: no such folder to write file to"), replacing(tmp_path / "no" / "file"):
        pass


def test_a_folder_is_not_written_over(tmp_path):
    with pytest.raises(DataError, match="is a folder: give the name of a file to write"), replacing(tmp_path):
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


def test_tensors_come_back_bit_for_bit(tmp_path):
    tensors = {
        "float": torch.randn(2, 3, 5),
        "double": torch.randn(7, dtype=torch.float64),
        "bfloat16": torch.randn(11).bfloat16(),
        "whole": torch.arange(13),
        "bool": torch.tensor([True, False]),
        "transposed": torch.randn(3, 5).T,
        "every other": torch.arange(10.0)[::2],
        "with gradient": torch.randn(2, requires_grad=True),
        "no element": torch.empty(0, 3),
        "not a number": torch.tensor([float("nan"), float("inf"), -0.0]),
    }
    path = tmp_path / "file.safetensors"
    write_tensors(path, tensors, {"format": "pt"})
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        torch.testing.assert_close(loaded[name], tensor.detach(), rtol=0, atol=0, equal_nan=True)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert names(tmp_path) == ["file.safetensors"]
