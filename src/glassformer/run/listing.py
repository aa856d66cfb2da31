"""Run folders at a glance: state, updates, score, size, time. Loads no torch, so that the answer comes at once.

Only the header of the weights is read; how far the training came stands in metrics.jsonl.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from glassformer.decoding import Natural, decode_json, open_regular, read_limited
from glassformer.errors import GlassformerError, RunError, printable
from glassformer.meter import format_duration
from glassformer.run.config import ENDS, MOST_BYTES, TrainingRecord, decode_config, names_its_format
from glassformer.run.lock import is_held
from glassformer.run.metrics import Metrics, read_metrics
from glassformer.run.names import CONFIG, LOCK, METRICS, RESUME, WEIGHTS

if TYPE_CHECKING:
    from rich.table import Table

DEPTH = 4
"""Depth of folders in which runs are searched."""
COLORS = {"training": "cyan", "unfinished": "yellow", "done": "green", "imported": "blue", "damaged": "red"}
DISPENSABLE = ("params", "loss", "size", "changed", "time")
"""Columns that are left out on a narrow terminal, in this order."""
LONGEST_HEADER = 1 << 24
"""Most bytes in the header of a file of weights: a tensor takes about 100."""
FOLDED = 32
"""Most characters of a run's path in a line; longer paths take several."""
_BLANKS = str.maketrans("\t\n\r", "   ")  # a tab or a line's end would break the table


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The facts about a run folder; the fields are the columns that a program reads."""

    run: Path
    state: str
    """training: a process is at it now; unfinished: it was stopped; done; imported; damaged."""
    updates: int | None
    """Updates done; for an unfinished run those that were saved, from which it goes on."""
    max_updates: int | None
    metric: str | None
    score: float | None
    """Score of the weights in the folder on the validation pairs."""
    valid_loss: float | None
    """Loss of the weights in the folder on the validation pairs, nats per token."""
    parameters: int | None
    bytes: int | None
    """Size of the file of weights."""
    seconds: float | None
    """Time spent training and validating."""
    changed: float
    """Time of the last change, seconds since 1970."""
    problem: str
    """The damage, in words; empty if there is none."""


@dataclass(frozen=True)
class _Header:
    """The facts in the header of a safetensors file."""

    parameters: int
    bytes: int
    metadata: Mapping[str, str]


class _TensorHeader(Struct, frozen=True):
    """A tensor in the header of a safetensors file."""

    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]


class _Position(Struct, frozen=True):
    """The progress that a checkpoint names."""

    update: Natural
    seconds: float


class _DamagedError(GlassformerError):
    """A run folder that can't be used; the message says why."""


def find_runs(folder: Path) -> list[RunSummary]:
    """Return the runs below a folder, or the folder itself if it is one; the last changed first."""
    fix = f"name another folder, or make one with glassformer train --source PAIRS --out {quote(str(folder))}/NAME"
    if not folder.is_dir():
        what = "is a file, and not a folder of runs" if folder.exists() else "is not there"
        raise RunError(f"{folder} {what}: {'name another folder' if folder.exists() else fix}")
    runs = [summarize(path) for path in _run_folders(folder, DEPTH)]
    if not runs:
        raise RunError(f"there are no runs in {folder}: {fix}")
    return sorted(runs, key=lambda run: -run.changed)


def summarize(folder: Path) -> RunSummary:
    """Return the facts about a run folder. Damage is no error, but the state `damaged`."""
    trained_now = is_held(folder)  # asked first: a training that ends in between leaves a run that is complete
    stopped = False
    training = TrainingRecord()
    weights, saved, metrics, problem = None, None, Metrics([], []), ""
    try:
        stopped = not trained_now and _has_resume(folder)
        training = _read_training(folder)
        metrics = read_metrics(folder / METRICS)
        weights = _read_header(folder / WEIGHTS)
        if weights is None and not trained_now and not stopped:
            raise _DamagedError(f"{WEIGHTS} is missing")
        if stopped:
            saved = _read_position(folder)
    except (GlassformerError, OSError) as error:
        problem = str(error)
    if trained_now:
        state = "training"
    elif problem:
        state = "damaged"
    elif stopped:
        state = "unfinished"
    else:
        state = "done" if training.imported is None else "imported"
    kept = metrics.kept
    return RunSummary(
        run=folder,
        state=state,
        updates=saved.update if saved else metrics.updates,
        max_updates=_max_updates(training),
        metric=kept and kept.metric,
        score=kept and kept.score,
        valid_loss=kept and kept.loss,
        parameters=weights and weights.parameters,
        bytes=weights and weights.bytes,
        seconds=saved.seconds if saved else metrics.seconds,
        changed=_last_change(folder),
        problem=problem,
    )


def as_lines(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield lines for programs: names, then the values of each run, separated by tabs; unknown ones are empty."""
    names = [field.name for field in fields(RunSummary)]
    yield "\t".join(names)
    for run in runs:
        values = {name: getattr(run, name) for name in names}
        values["changed"] = datetime.fromtimestamp(run.changed).astimezone().isoformat(timespec="seconds")
        yield "\t".join(map(_plain, values.values()))


def _plain(value: Any) -> str:
    """Return a value as a program reads it, a number to four decimals."""
    if value is None:
        return ""
    return str(round(value, 4)) if isinstance(value, float) else str(value).translate(_BLANKS)


def as_table(runs: Sequence[RunSummary], width: int, now: float | None = None) -> "Table":
    """Return a table for people: a row for each run, with as many columns as `width` has room for."""
    from rich.table import Table
    from rich.text import Text

    now = time.time() if now is None else now
    rows = [_cells(run, now) for run in runs]
    names = list(rows[0])
    widths = {name: max(Text(cells[name]).cell_len for cells in [{name: name}, *rows]) for name in names}
    widths["run"] = min(widths["run"], FOLDED)
    for name in DISPENSABLE:
        if sum(widths[name] + 2 for name in names) - 2 > width:
            names.remove(name)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        if name == "run":
            table.add_column(name, overflow="fold", min_width=min(10, widths["run"]), max_width=FOLDED)
        else:
            table.add_column(name, no_wrap=True, justify="left" if name in ("state", "changed") else "right")
    for run, cells in zip(runs, rows, strict=True):
        table.add_row(*(Text(cells[name], COLORS[run.state] if name == "state" else "") for name in names))
    return table


def _cells(run: RunSummary, now: float) -> dict[str, str]:
    limit = f"/{run.max_updates:,}" if run.max_updates and run.state in ("training", "unfinished") else ""
    return {
        "run": printable(str(run.run)),
        "state": run.state,
        "updates": "" if run.updates is None else f"{run.updates:,}{limit}",
        "score": "" if run.score is None else f"{run.metric} {run.score:.2f}",
        "loss": "" if run.valid_loss is None else f"{run.valid_loss:.3f}",
        "params": "" if run.parameters is None else _short(run.parameters),
        "size": "" if run.bytes is None else f"{_short(run.bytes)}B",
        "time": "" if run.seconds is None else format_duration(run.seconds),
        "changed": _ago(run.changed, now),
    }


def advice(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield the lines below the table: what is damaged, and how to continue what is unfinished."""
    for run in runs:
        if run.problem:
            yield printable(f"{run.run}: {run.problem}")
    unfinished = [run for run in runs if run.state == "unfinished"]
    if unfinished:
        yield "continue what is unfinished with:"
    for run in unfinished:
        yield printable(f"  glassformer train --resume --out {quote(str(run.run))}")


def _short(count: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.{0 if count >= 10 * size else 1}f} {unit}"
    return f"{count} "  # and a space, for a B that may follow


def _ago(then: float, now: float) -> str:
    minutes = int((now - then) / 60)
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes} min ago"
    if minutes < 24 * 60:
        return f"{minutes // 60} h ago"
    return f"{datetime.fromtimestamp(then):%Y-%m-%d}"


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        if _is_run(folder):
            yield folder
            return
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:  # another person's, or on a disk that fails
        return
    if depth:
        for path in inside:
            yield from _run_folders(path, depth - 1)


def _is_run(folder: Path) -> bool:
    """Return whether glassformer wrote this folder, as far as damage lets one tell: others write config.json too."""
    beside = (folder / METRICS).is_file() and ((folder / WEIGHTS).exists() or (folder / RESUME).exists())
    try:
        return beside or names_its_format(read_limited(folder / CONFIG, MOST_BYTES))
    except (FileNotFoundError, RunError):
        return beside


def _has_resume(folder: Path) -> bool:
    """Return whether `resume/` holds more than the lock of a training that was killed at its very end."""
    try:
        return any(path.name != LOCK for path in (folder / RESUME).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _read_training(folder: Path) -> TrainingRecord:
    """Return what config.json says about the training, and check the rest of it."""
    try:
        config = decode_config(read_limited(folder / CONFIG, MOST_BYTES, error=_DamagedError), folder)
    except FileNotFoundError:
        raise _DamagedError(f"{CONFIG} is missing") from None
    except ValueError as error:
        raise _DamagedError(f"{CONFIG} {error}") from None
    for name in config.tokenizers:
        if not (folder / name).is_file():
            raise _DamagedError(f"{name} is missing")
    return config.training


def _max_updates(training: TrainingRecord) -> int | None:
    """Return the updates after which a training ends: those chosen from its pairs where no limit was given."""
    given = training.settings or {}
    is_given = any(given.get(name) is not None for name in ENDS)
    limit = (given if is_given else training.chosen or {}).get("max_updates")
    return limit if isinstance(limit, int) else None


def _read_header(path: Path) -> _Header | None:
    """Return the header of a safetensors file, or None if there is no file: eight bytes of length, then JSON."""
    try:
        with os.fdopen(open_regular(path, error=_DamagedError), "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 + length or length > LONGEST_HEADER:
                raise _DamagedError(f"{path.name} is damaged or cut off")
            header = decode_json(file.read(length), dict[str, Raw])
        metadata = decode_json(bytes(header.pop("__metadata__", b"{}")), dict[str, str])
        tensors = [decode_json(bytes(tensor), _TensorHeader) for tensor in header.values()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _DamagedError(f"{path.name} is damaged ({error})") from None
    end = 8 + length + max((tensor.data_offsets[1] for tensor in tensors), default=0)
    if size != end:
        raise _DamagedError(f"{path.name} is cut off: it has {size:,} of {end:,} bytes")
    return _Header(sum(math.prod(tensor.shape) for tensor in tensors), size, metadata)


def _read_position(folder: Path) -> _Position:
    """Return how far the training had come at the newest checkpoint that can be read."""
    checkpoints = sorted((folder / RESUME).glob("checkpoint-*"), reverse=True)
    for checkpoint in checkpoints:
        files = sorted(checkpoint.glob("*-of-*.safetensors"))
        try:
            if not files or len(files) < int(files[0].stem.rpartition("-")[2]):
                continue  # stopped while it was written
            if header := _read_header(files[0]):
                return decode_json(header.metadata["position"].encode(), _Position)
        except (_DamagedError, KeyError, ValueError):
            continue
    if checkpoints:
        raise _DamagedError(f"no checkpoint in {RESUME} can be read")
    return _Position(update=0, seconds=0.0)  # stopped before the first


def _last_change(folder: Path) -> float:
    times = []
    for name in (CONFIG, WEIGHTS, METRICS):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
