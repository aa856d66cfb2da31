"""Files that are either written whole or not at all."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from safetensors.torch import save
from torch import Tensor

from glassformer.errors import DataError


def check_writable(path: Path) -> None:
    """Raise DataError where no file can be written to `path`: to be called before long work."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: give the name of a file to write")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent}: no such folder to write {path.name} to")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when all went well and is removed when it didn't."""
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`value` as indented JSON, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """`tensors` as safetensors, whole or not at all."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as file:
        file.write(save(contiguous, dict(metadata) if metadata else None))
