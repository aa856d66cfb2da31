"""A run in Ray's object store, where all workers of a machine read the same copy."""

import tempfile
from pathlib import Path

import numpy as np
import ray
import torch

from glassformer.generation.files import files_of_run
from glassformer.generation.translator import Translator

Packed = dict[str, np.ndarray]
"""The content of the files of a run folder by their names, as bytes: arrays are the kind of objects that Ray shares."""


def pack_run(folder: Path) -> "ray.ObjectRef[Packed]":
    """Put what translations need of a run folder into the object store, once."""
    return ray.put({path.name: np.fromfile(path, np.uint8) for path in _files(folder)})


def size_of_run(folder: Path) -> int:
    """Return how many bytes a run takes in the object store."""
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> list[Path]:
    return [path for path in files_of_run(folder) if path.is_file()]


def unpack_run(packed: "ray.ObjectRef[Packed]", device: str, precision: str, threads: int) -> Translator:
    """Return the translator of a packed run; torch computes with so many threads from now on."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="glassformer-") as folder:
        for name, content in ray.get(packed).items():
            content.tofile(Path(folder, name))
        translator = Translator.load(folder, device, precision)
    translator.folders = ()
    return translator
