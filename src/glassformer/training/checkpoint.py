"""Checkpoints, from which a stopped training goes on: safetensors with a checksum, written in the background.

resume/checkpoint-<update>/<rank>-of-<files>.safetensors   weights, optimizer's state, `TrainingState`

A checkpoint is one file, or where the model is sharded one file of each process, holding its rows of each tensor. It
can be read by any number of processes.
"""

import json
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from glassformer.decoding import Natural, decode_json
from glassformer.errors import RunError
from glassformer.files import remove_at_once
from glassformer.tensors import check_tensors, open_tensors, read_checksum, write_checked_tensors
from glassformer.training.agreement import common_updates
from glassformer.training.distributed import ALONE, Processes, first_row, local_rows
from glassformer.training.state import TrainingState
from glassformer.training.step import Step

KEPT = 2
"""Checkpoints that are kept: the newest, and the one before it in case that is damaged."""
SHARE = 0.02
"""Largest share of the time that writing takes, where no interval is given."""
SHORTEST = 10.0
"""Fewest seconds between checkpoints, where no interval is given."""


class Checkpoints:
    """The checkpoints in a folder: the newest that is whole is read, further ones are written when it is time."""

    def __init__(self, folder: Path, processes: Processes = ALONE, seconds: float | None = None) -> None:
        """Keep so many `seconds` between checkpoints; None: 10, or more if writing took above 2 % of the time."""
        self._folder = folder
        self._processes = processes
        self._seconds = seconds
        self.pause = SHORTEST if seconds is None else seconds
        """Seconds between this checkpoint and the next."""
        self.saved = 0
        """Update of the newest checkpoint, from which training would go on."""
        self._next = time.monotonic() + self.pause
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def load(self, step: Step) -> TrainingState:
        """Put the newest checkpoint that is whole into model and optimizer, and return its state. Nothing is removed.

        Where there is none, the state is that of the beginning. A damaged checkpoint is passed over with a warning, and
        so is one that not all processes see; RunError if all are damaged, or none is seen by all.
        """
        common: set[int] | None = None
        if self._processes.size > 1:
            common, missing = common_updates(self._folder, self._processes, self._marks)
            for sentence in missing if self._processes.first else ():
                warnings.warn(sentence, stacklevel=2)
        newest, damaged = 0, list[str]()
        if self._processes.first:
            newest, damaged = self._newest(common)
        newest, lost = (int(number) for number in self._processes.agree(newest, len(damaged)))
        if not newest and lost:
            raise RunError(
                f"no checkpoint in {self._folder} can be read any more, so the run can't be continued: train anew with "
                f"--overwrite ({'; '.join(damaged)})"
            )
        for reason in damaged:
            warnings.warn(f"{reason}; going on from the checkpoint before it", stacklevel=2)
        self.saved = newest
        if not newest:
            return TrainingState()
        with ExitStack() as stack:
            paths = _complete(self._path(newest)) or []
            files = [stack.enter_context(open_tensors(path)) for path in paths]
            _restore(_tensors(step), paths, files)
            return _decode(paths[0], files[0], "position", TrainingState)

    def updates(self) -> list[int]:
        """Return the updates of the checkpoints in the folder, whole or not."""
        return [_update_of(path) for path in self._all()]

    def _marks(self) -> dict[str, str]:
        """Return the checksums of each complete checkpoint, by its update; those of damaged files are empty."""
        return {
            str(_update_of(path)): " ".join(map(read_checksum, files))
            for path in self._all()
            if (files := _complete(path))
        }

    def _newest(self, common: Collection[int] | None) -> tuple[int, list[str]]:
        """Return the update of the newest checkpoint that is whole, and what is wrong with newer ones.

        Complete ones count only if they are among the `common` ones, unless this is None.
        """
        damaged = list[str]()
        for path in self._all(newest_first=True):
            if common is not None and _update_of(path) not in common and _complete(path):
                continue
            try:
                if _is_whole(path):
                    return _update_of(path), damaged
            except RunError as error:
                damaged.append(str(error))
        return 0, damaged

    def drop_newer(self) -> None:
        """Remove the checkpoints after that which was loaded: damaged ones, and one that was being written."""
        for path in self._all():
            if _update_of(path) > self.saved:
                remove_at_once(path)

    def _all(self, *, newest_first: bool = False) -> list[Path]:
        return sorted(self._folder.glob("checkpoint-*"), reverse=newest_first)

    @property
    def writing(self) -> bool:
        """True while a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def due(self) -> bool:
        """Return whether the next is due, which only the first process knows; raise what went wrong with the last."""
        if not self.writing:
            self.wait()
        return self._processes.first and not self.writing and time.monotonic() >= self._next

    def drop(self, update: int) -> None:
        """Remove the checkpoint of this update, if there is one: its weights may be what is wrong."""
        self.wait()
        if self._processes.first and self._path(update).exists():
            remove_at_once(self._path(update))

    def save(self, step: Step, state: TrainingState) -> None:
        """Write a checkpoint of this moment, in the background.

        While updates are left out nothing is written: the weights may be what is wrong, and training is to go on from
        before.
        """
        self.wait()
        if step.outliers.left_out()[0]:
            return
        self.saved = state.update
        tensors = _tensors(step)
        sharded = any(isinstance(tensor, DTensor) for tensor in tensors.values())
        if not sharded and not self._processes.first:
            return
        began = time.monotonic()
        copies = {name: local_rows(tensor).detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        starts = {name: first_row(tensor) for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
        metadata = {"position": json.dumps(asdict(state)), "starts": json.dumps(starts)}
        rank, count = (self._processes.rank, self._processes.size) if sharded else (0, 1)
        path = self._path(state.update) / f"{rank + 1:05d}-of-{count:05d}.safetensors"
        taken = time.monotonic() - began
        self._writing = self._pool.submit(self._write, path, copies, metadata, taken)

    def _write(self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], taken: float) -> None:
        """Write one process's file and remove old checkpoints; training has lost `taken` seconds to it already."""
        before = time.thread_time()  # waiting for the disk takes nothing from the training
        path.parent.mkdir(exist_ok=True)
        write_checked_tensors(path, tensors, metadata)
        if self._processes.first:
            folders = self._all()
            kept = [folder for folder in folders if _complete(folder)][-KEPT:]
            for old in folders:
                if len(kept) == KEPT and old < kept[0]:
                    remove_at_once(old)
        taken += time.thread_time() - before
        self.pause = max(SHORTEST, taken / SHARE) if self._seconds is None else self._seconds
        self._next = time.monotonic() + self.pause

    def wait(self) -> None:
        """Wait until nothing is being written any more; raise what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Finish what is being written."""
        self._pool.shutdown()

    def _path(self, update: int) -> Path:
        return self._folder / f"checkpoint-{update:09d}"


def _update_of(path: Path) -> int:
    """Return the update of a checkpoint by its name; 0 for what is none."""
    number = path.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() else 0


def _tensors(step: Step) -> dict[str, Tensor]:
    """Return all tensors that a step depends on: weights, the optimizer's state, the course of the loss (`watch`)."""
    tensors: dict[str, Tensor] = {"watch": step.outliers.state}
    for name, parameter in step.model.named_parameters():
        tensors[f"model.{name}"] = parameter
        tensors |= {f"optimizer.{name}.{key}": t for key, t in step.optimizer.state(parameter).items()}
    return tensors


def _decode(path: Path, file: Any, name: str, kind: Any) -> Any:
    """Return what the metadata of a checkpoint's file say under this name."""
    try:
        return decode_json((file.metadata() or {})[name].encode(), kind)
    except (KeyError, ValueError) as error:
        raise RunError(f"{path} is damaged: its {name} can't be read ({error})") from None


def _restore(tensors: Mapping[str, Tensor], paths: Sequence[Path], files: Sequence[Any]) -> None:
    """Fill the tensors, each with the rows that this process has of it, from the files of a checkpoint."""
    starts = [_decode(path, file, "starts", dict[str, Natural]) for path, file in zip(paths, files, strict=True)]
    names = [set(file.keys()) for file in files]
    with torch.no_grad():
        for name, tensor in tensors.items():
            rows = local_rows(tensor)
            own = first_row(tensor)
            missing = torch.ones(len(rows) if rows.dim() else 0, dtype=torch.bool)
            for file, has, first in zip(files, names, starts, strict=True):
                if name not in has:
                    raise RunError(f"the checkpoint does not fit the model of the run: it has no {name}")
                if not rows.dim():
                    rows.copy_(_fitting(name, file.get_tensor(name), rows))
                    continue
                begin = first.get(name, 0)
                end = begin + (file.get_slice(name).get_shape() or [0])[0]
                low, high = max(begin, own), min(end, own + len(rows))
                if low < high:
                    part = file.get_slice(name)[low - begin : high - begin]
                    rows[low - own : high - own] = _fitting(name, part, rows[low - own : high - own]).to(rows.device)
                    missing[low - own : high - own] = False
            if missing.any():
                raise RunError(
                    f"the checkpoint does not fit the model of the run: of {name} it lacks {missing.sum()} rows"
                )


def _fitting(name: str, found: Tensor, expected: Tensor) -> Tensor:
    """Return the tensor that was found; RunError unless shape and type are those of the expected one."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise RunError(
            f"the checkpoint does not fit the model of the run: {name} must be {tuple(expected.shape)} of "
            f"{expected.dtype}, got {tuple(found.shape)} of {found.dtype}"
        )
    return found


def _is_whole(folder: Path) -> bool:
    """Return whether a checkpoint was written to its end; RunError if a byte of it has changed since."""
    files = _complete(folder)
    if files is None and any(folder.glob("*.safetensors")):  # of several processes, or files were lost
        warnings.warn(f"{folder} is not complete; going on from before it", stacklevel=3)
    for file in files or ():
        check_tensors(file)
    return files is not None


def _complete(folder: Path) -> list[Path] | None:
    """Return the files of a checkpoint in the order of their ranks, or None if one is missing."""
    counts = {path.stem.rpartition("-")[2] for path in folder.glob("*-of-*.safetensors")}
    for count in sorted(counts):
        paths = [folder / f"{rank + 1:05d}-of-{count}.safetensors" for rank in range(int(count))]
        if all(path.exists() for path in paths):
            return paths
    return None
