"""The weights at each of the last validations, whose mean may become the model. Safetensors with a checksum.

resume/snapshot-<update>.safetensors
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from glassformer.errors import RunError
from glassformer.files import check_tensors, write_checked_tensors
from glassformer.run import read_weights


def save_snapshot(folder: Path, weights: Mapping[str, Tensor], update: int, keep: int) -> None:
    """Write the weights of this update; of the earlier snapshots the last `keep` - 1 stay."""
    write_checked_tensors(folder / f"snapshot-{update:09d}.safetensors", weights, {})
    for old in snapshots(folder)[:-keep]:
        old.unlink()


def drop_snapshots_after(folder: Path, update: int) -> None:
    """Remove the snapshots that a continued run will write again."""
    for path in snapshots(folder):
        if int(path.stem.rpartition("-")[2]) > update:
            path.unlink()


def snapshots(folder: Path) -> list[Path]:
    """The snapshots, oldest first."""
    return sorted(folder.glob("snapshot-*.safetensors"))


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of these weights (Vaswani et al. 2017, section 6.1), summed in float64; damaged ones are left out."""
    total: dict[str, Tensor] = {}
    count = 0
    for path in paths:
        try:
            check_tensors(path)
        except RunError as error:
            warnings.warn(f"{error}; it is left out of the mean", stacklevel=2)
            continue
        count += 1
        for name, tensor in read_weights(path).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    if not count:
        raise RunError("there are no checkpoints to average: training has not reached a validation")
    return {name: (tensor / count).float() for name, tensor in total.items()}
