"""Files that are either written whole or not at all, and tensors in them whose checksum is known."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from glassformer.errors import DataError, RunError

_CHECKSUM = "blake2b"


def check_writable(path: Path) -> None:
    """Raise DataError where no file can be written to `path`: to be called before long work."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: give the name of a file to write")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent}: no such folder to write {path.name} to")


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """The path of a file to write, which takes the place of `path` when all went well and is removed when it didn't."""
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        file = os.open(temporary, os.O_RDWR)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when all went well and is removed when it didn't."""
    with replacement(path) as temporary, temporary.open("wb") as file:
        yield file


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in a folder: here and by safetensors."""
    for path in (*folder.glob(".*.tmp"), *folder.glob(".tmp??????")):
        if path.is_file():
            path.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`value` as indented JSON, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """`tensors` as safetensors, whole or not at all. Other threads go on meanwhile."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacement(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(contiguous, temporary, dict(metadata) if metadata else None)
            temporary.chmod(mode)  # safetensors makes files that only their owner can read
        except SafetensorError as error:
            if found := re.search(r"\(os error (\d+)\)", str(error)):  # the system's own, in words
                number = int(found[1])
                raise OSError(number, os.strerror(number), str(path)) from None
            raise


def write_checked_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """`tensors` as safetensors with a checksum of the tensors, their names and `metadata`, whole or not at all."""
    checksum = _checksum(metadata, ((name, tensors[name]) for name in sorted(tensors)))
    write_tensors(path, tensors, {**metadata, _CHECKSUM: checksum})


def check_tensors(path: Path) -> dict[str, str]:
    """The metadata of a file that `write_checked_tensors` wrote; RunError if a byte of it has changed."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            expected = metadata.pop(_CHECKSUM, None)
            if expected == _checksum(metadata, ((name, file.get_tensor(name)) for name in sorted(file.keys()))):
                return metadata
    except (SafetensorError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from None
    raise RunError(f"{path} is damaged (its checksum is another)")


def _checksum(metadata: Mapping[str, str], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Of the tensors in the order of their names."""
    digest = hashlib.blake2b(json.dumps(sorted(metadata.items())).encode(), digest_size=16)
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
