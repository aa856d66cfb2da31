"""A checksum finds every changed bit; what a killed process left is removed; what is renamed is on the disk."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from glassformer.errors import RunError
from glassformer.files import remove_unfinished, replacing
from glassformer.tensors import check_tensors, read_tensors, write_checked_tensors, write_tensors

TENSORS = {
    "b.step": torch.tensor(3.0),
    "a": torch.arange(6.0).reshape(2, 3),
    "c": torch.tensor([7, 11, 13]),
    "empty": torch.empty(0, 5),
    "half": torch.tensor([1.5, -2.0]).bfloat16(),
}
METADATA = {"position": json.dumps({"update": 5, "seconds": 0.25}), "starts": "{}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.safetensors"
    write_checked_tensors(path, TENSORS, METADATA)
    return path


# Checksums


def test_tensors_with_a_checksum_come_back_with_their_metadata(path):
    assert check_tensors(path) == METADATA
    assert_close(load_file(path), TENSORS, rtol=0.0, atol=0.0)


def test_a_changed_bit_of_any_byte_and_another_length_are_found(path):
    content = path.read_bytes()
    flipped = (bytes([*content[:n], content[n] ^ 1 << n % 8, *content[n + 1 :]]) for n in range(len(content)))
    cut = (content[:size] for size in range(len(content)))
    for damaged in (*flipped, *cut, content + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"file.safetensors is damaged \(.+\)$"):
            check_tensors(path)


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({**TENSORS, "c": torch.tensor([7, 11, 14])}, METADATA),
        ({**TENSORS, "c": torch.tensor([7, 11, 13], dtype=torch.int32)}, METADATA),
        ({**TENSORS, "a": TENSORS["a"].reshape(3, 2)}, METADATA),
        ({**TENSORS, "d": torch.zeros(0)}, METADATA),
        ({name: tensor for name, tensor in TENSORS.items() if name != "empty"}, METADATA),
        (TENSORS, {**METADATA, "starts": '{"a": 1}'}),
        (TENSORS, {**METADATA, "more": ""}),
    ],
    ids=["value", "type", "shape", "a tensor more", "a tensor less", "metadata", "more metadata"],
)
def test_the_checksum_covers_everything(path, tensors, metadata):
    """A file that is sound in itself, with the checksum of another."""
    with safe_open(path, "pt") as file:
        (checksum,) = file.metadata().items() - METADATA.items()
    save_file(tensors, path, dict([*metadata.items(), checksum]))
    with pytest.raises(RunError, match=r"is damaged \(its checksum is another\)"):
        check_tensors(path)
    save_file(TENSORS, path, dict([*METADATA.items(), checksum]))
    assert check_tensors(path) == METADATA


def test_a_file_without_a_checksum_is_not_taken_for_whole(tmp_path):
    save_file(TENSORS, tmp_path / "plain.safetensors")
    with pytest.raises(RunError, match=r"plain.safetensors is damaged \(its checksum is another\)"):
        check_tensors(tmp_path / "plain.safetensors")


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        check_tensors(tmp_path / "none.safetensors")


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
    assert list(tmp_path.iterdir()) == [path]


# What a lost process leaves, and what is on the disk


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from glassformer import tensors

os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
tensors.write_tensors(Path(sys.argv[1]), {"w": torch.ones(7)})
"""


def test_killed_while_writing_it_leaves_the_old_file_and_what_is_removed_next_time(path):
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert done.returncode == -9
    assert len(list(path.parent.iterdir())) == 2
    remove_unfinished(path.parent)
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", ["bytes", "tensors"])
def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch, write):
    """Otherwise a loss of power may leave an empty file under the name of a good one."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    flushed: list[bytes] = []
    fsync = os.fsync

    def flush(file: int) -> None:
        assert path.read_bytes() == b"old"
        (temporary,) = (other for other in tmp_path.rglob("*") if os.path.samestat(other.stat(), os.fstat(file)))
        assert temporary != path
        flushed.append(temporary.read_bytes())
        fsync(file)

    monkeypatch.setattr(os, "fsync", flush)
    if write == "bytes":
        with replacing(path) as file:
            file.write(b"new" * 10_000)
    else:
        write_tensors(path, TENSORS)
    assert flushed == [path.read_bytes()] != [b"old"]


def test_what_one_may_read_others_may_read(path):
    plain = path.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "odd \udcff.safetensors"
    for refused in (lambda: write_tensors(path, {"x": torch.ones(2)}), lambda: read_tensors(path)):
        with pytest.raises(RunError, match="the name of a folder must be UTF-8"):
            refused()
    assert list(tmp_path.iterdir()) == []
