"""Weights of the last validations, whose mean may become the model, and the best weights so far.

resume/snapshot-<update>.safetensors
resume/best-<update>.safetensors       weights that were model.safetensors, in case a run goes on from before later ones

Snapshots have a checksum. That of the best weights is in the `TrainingState`, since model.safetensors has none.
"""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from glassformer.data.kept import fingerprint
from glassformer.errors import RunError
from glassformer.files import link_or_copy, replacement
from glassformer.tensors import check_tensors, read_tensors, write_checked_tensors, write_tensors

KEPT_BEST = 8
"""Last best weights that are kept, beside those that a checkpoint needs."""


def save_snapshot(folder: Path, weights: Mapping[str, Tensor], update: int, keep: int) -> None:
    """Write the weights of this update, and remove all but the last `keep` snapshots."""
    write_checked_tensors(folder / f"snapshot-{update:09d}.safetensors", weights, {})
    for old in snapshots(folder)[:-keep]:
        old.unlink()


def drop_snapshots_after(folder: Path, update: int) -> None:
    """Remove the snapshots that a continued run will write again."""
    for path in snapshots(folder):
        if _update_of(path) > update:
            path.unlink()


def save_best(
    folder: Path, weights_file: Path, weights: Mapping[str, Tensor], update: int, checkpoints: Collection[int]
) -> str:
    """Write the best weights so far to `weights_file`, and return its checksum.

    The folder keeps the last few best, and those that were the best at the updates of `checkpoints`.
    """
    best = _best(folder, update)
    write_tensors(best, weights, {"format": "pt"})
    _, checksum = fingerprint(best)
    _link(best, weights_file)
    kept = sorted(folder.glob("best-*.safetensors"))
    # Two for each checkpoint, which may be older than its own update's validation: the best before that is needed too.
    needed = {path for point in checkpoints for path in [one for one in kept if _update_of(one) <= point][-2:]}
    for old in kept[:-KEPT_BEST]:
        if old not in needed:
            old.unlink()
    return checksum


def restore_best(folder: Path, weights_file: Path, update: int | None, checksum: str) -> bool:
    """Make `weights_file` what it was when the weights of this update were the best (None: there was no such file).

    Return False, with a warning, where neither those weights are there with this checksum, which may be empty, nor
    `weights_file` has it.
    """
    for path in folder.glob("best-*.safetensors"):
        if update is None or _update_of(path) > update:
            path.unlink()
    if update is None:
        weights_file.unlink(missing_ok=True)
        return True
    best = _best(folder, update)
    if _has_checksum(best, checksum):
        _link(best, weights_file)
    elif _has_checksum(weights_file, checksum):
        _link(weights_file, best)
    else:
        what = "damaged" if best.exists() else "missing"
        warnings.warn(f"{best} is {what}; the next validation counts as the best so far", stacklevel=2)
        weights_file.unlink(missing_ok=True)
        return False
    return True


def _has_checksum(file: Path, checksum: str) -> bool:
    """Return whether a file is there, with this checksum if one is known."""
    return file.is_file() and (not checksum or fingerprint(file)[1] == checksum)


def _best(folder: Path, update: int) -> Path:
    return folder / f"best-{update:09d}.safetensors"


def _link(file: Path, place: Path) -> None:
    """Make a file appear in another place too, in place of the file there."""
    with replacement(place) as temporary:
        link_or_copy(file, temporary)


def _update_of(path: Path) -> int:
    """Return the update of a file of weights by its name; 0 for what is none of ours."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def snapshots(folder: Path) -> list[Path]:
    """Return the snapshots, oldest first."""
    return sorted(path for path in folder.glob("snapshot-*.safetensors") if path.is_file())


def average(paths: list[Path]) -> tuple[dict[str, Tensor], int]:
    """Return the mean of these weights, summed in float64 (Vaswani et al. 2017, section 6.1), and of how many it is.

    Damaged files are left out with a warning; the mean of none is empty.
    """
    total: dict[str, Tensor] = {}
    count = 0
    for path in paths:
        try:
            check_tensors(path)
            tensors = read_tensors(path)
            if total and {name: t.shape for name, t in tensors.items()} != {name: t.shape for name, t in total.items()}:
                raise RunError(f"{path} is of another model")
        except RunError as error:
            warnings.warn(f"{error}; it is left out of the mean", stacklevel=2)
            continue
        count += 1
        for name, tensor in tensors.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / count).float() for name, tensor in total.items()}, count
