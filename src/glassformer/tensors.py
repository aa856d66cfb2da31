"""Safetensors files: written whole or not at all, if wished with a checksum, and read."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from glassformer.decoding import check_regular
from glassformer.errors import RunError
from glassformer.files import check_name, replacement

_CHECKSUM = "blake2b"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write `tensors` as safetensors, whole or not at all. Other threads go on meanwhile."""
    check_name(path)
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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; RunError if it is damaged."""
    with open_tensors(path) as file:
        names = file.keys()
        return {name: file.get_tensor(name) for name in names}


def open_tensors(path: Path) -> Any:
    """Open a safetensors file to read some of its tensors (safetensors' `safe_open`); RunError if it is damaged.

    That the names, shapes and sizes in its header fit the size of the file is checked before memory is taken.
    """
    check_name(path)
    try:
        check_regular(path)
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): copy it again, or go back to an earlier one") from None


def write_checked_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write `tensors` with a checksum of the tensors, their names and `metadata`, whole or not at all."""
    checksum = _checksum(metadata, ((name, tensors[name]) for name in sorted(tensors)))
    write_tensors(path, tensors, {**metadata, _CHECKSUM: checksum})


def check_tensors(path: Path) -> dict[str, str]:
    """Return the metadata of a file that `write_checked_tensors` wrote; RunError if a byte of it has changed."""
    check_name(path)
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            expected = metadata.pop(_CHECKSUM, None)
            if expected == _checksum(metadata, ((name, file.get_tensor(name)) for name in sorted(file.keys()))):
                return metadata
    except (SafetensorError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from None
    raise RunError(f"{path} is damaged (its checksum is another)")


def read_checksum(path: Path) -> str:
    """Return the checksum that `write_checked_tensors` wrote into a file, without a look at its tensors.

    Of a damaged file it is an empty text.
    """
    try:
        return (open_tensors(path).metadata() or {}).get(_CHECKSUM, "")
    except RunError:
        return ""


def _checksum(metadata: Mapping[str, str], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the checksum of the tensors, which come in the order of their names, and of the metadata."""
    digest = hashlib.blake2b(json.dumps(sorted(metadata.items())).encode(), digest_size=16)
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
