"""Measure which of torch's two libraries multiplies float32 matrices faster on this processor, and keep the answer.

A processor's name says little about that (AMD: MKL 196 and oneDNN 218 GFLOP/s on Zen 4, 200 and 475 on Zen 5), and a
table knows only the processors that it was made on. So one product is timed through both libraries when a product
first asks, for about `SECONDS`. oneDNN must be faster by a clear margin: around its products stand copies, and MKL is
what torch would do.

Results repeat exactly on one machine. The answer is kept in the user's cache folder, in a file for each processor and
version of torch, and is read from then on; of processes that measure at the same time the first one's answer counts.
Without such a folder every process measures for itself. The margin and the way of measuring keep these apart from
chance: one thread, since two on busy cores wait for one another (that alone made oneDNN look three times as fast), and
the best of several runs in turn. GLASSFORMER_CALIBRATION=off is for those who need the same bits everywhere: torch's
own way, nothing measured, read or written.
"""

import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from msgspec import Struct

from glassformer.decoding import read_json
from glassformer.errors import ArgumentError, RunError
from glassformer.files import scratch_folder, write_json

SETTING = "GLASSFORMER_CALIBRATION"
MARGIN = 1.3
"""The least ratio of oneDNN's speed to MKL's from which oneDNN is taken."""
ROWS, WIDTH = 256, 512
RUNS, SECONDS = 12, 0.06
"""The product is repeated so often, at least three times, and no longer than this."""
FORMAT = 1
MOST_BYTES = 1 << 14


class Calibration(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    format: int
    machine: str
    """The processor and the version of torch, which were measured together."""
    mkl: float
    """Billions of operations a second, on one thread."""
    onednn: float


_lock = threading.Lock()
_known: dict[str, bool] = {}
"""The answers of this process, by the setting."""


def onednn_beats_mkl() -> bool:
    """Return whether oneDNN multiplies float32 clearly faster; measured when it is first called on a machine.

    Raises ArgumentError for a GLASSFORMER_CALIBRATION that isn't `on` or `off`.
    """
    setting = os.environ.get(SETTING, "on")
    answer = _known.get(setting)
    if answer is None:
        with _lock:  # threads that come meanwhile wait for the answer: they would disturb it
            answer = _known.setdefault(setting, _ask(setting)) if setting not in _known else _known[setting]
    return answer


def _ask(setting: str) -> bool:
    if setting not in ("on", "off"):
        raise ArgumentError(f"{SETTING} must be on or off, got {setting!r}: off computes as torch does")
    if setting == "off" or not has_both():
        return False
    found = recall(folder(), describe())
    return found.onednn >= MARGIN * found.mkl


def has_both() -> bool:
    """Return whether this torch has both libraries, and the operator that reaches oneDNN."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkl.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def recall(place: Path | None, machine: str) -> Calibration:
    """Return what is kept for this machine, or else measure it and keep it, where that can be done."""
    if place is None:
        return measure(machine)
    path = place / f"{hashlib.sha256(machine.encode()).hexdigest()[:32]}.json"
    kept = _read(path, machine)
    if kept is not None:
        return kept
    found = measure(machine)
    with suppress(OSError, RunError):  # a folder that can't be written to, or no folder: nothing is kept
        place.mkdir(parents=True, exist_ok=True)
        with scratch_folder(path) as scratch:
            made = scratch / path.name
            write_json(made, {name: getattr(found, name) for name in Calibration.__struct_fields__})
            if path.exists() and _read(path, machine) is None:
                path.unlink()  # damaged
            path.hardlink_to(made)  # which fails where another process was first
    return _read(path, machine) or found


def measure(machine: str) -> Calibration:
    """Time the product through both libraries in turn, on one thread.

    A thread of the caller's that is started meanwhile has one torch thread, too.
    """
    threads = torch.get_num_threads()
    # Neither random numbers nor gradients: what the caller computes must not change.
    with torch.no_grad():
        x = torch.full((ROWS, WIDTH), 0.5, dtype=torch.float32, device="cpu")
        weight = torch.full((WIDTH, WIDTH), 0.5, dtype=torch.float32, device="cpu")
        sides = (
            partial(F.linear, x, weight),
            partial(torch.ops.mkldnn._linear_pointwise, x, weight, None, "none", [], ""),
        )
        best = [float("inf"), float("inf")]
        torch.set_num_threads(1)
        try:
            for side in sides:  # the first run sets a library up
                side()
            began = time.perf_counter()
            for n in range(RUNS):
                if n >= 3 and time.perf_counter() - began > SECONDS:
                    break
                best = [min(known, _seconds(side)) for known, side in zip(best, sides, strict=True)]
        finally:
            torch.set_num_threads(threads)
    mkl, onednn = (2e-9 * ROWS * WIDTH * WIDTH / seconds for seconds in best)
    return Calibration(FORMAT, machine, round(mkl, 1), round(onednn, 1))


def describe() -> str:
    """Return what the answer depends on: the processor, and the torch that brings both libraries."""
    return "\n".join([torch.__version__, torch.backends.cpu.get_cpu_capability(), platform.machine(), _processor()])


def folder() -> Path | None:
    """Return the folder of such files, or None where the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # others are to be ignored, says the XDG Base Directory Specification
        return Path(given) / "glassformer" / "calibration"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "glassformer" / "calibration" if os.path.isabs(home) else None


def _read(path: Path, machine: str) -> Calibration | None:
    """Return what a file says, or None if it isn't there, or isn't one of this machine."""
    try:
        kept = read_json(path, Calibration, most=MOST_BYTES)
    except (OSError, RunError):
        return None
    whole = kept.format == FORMAT and kept.machine == machine and kept.mkl > 0 and kept.onednn > 0
    return kept if whole else None


def _seconds(side: Callable[[], object]) -> float:
    start = time.perf_counter()
    side()
    return time.perf_counter() - start


def _processor() -> str:
    """Return the first processor's model and what it can do, as Linux tells it; elsewhere its name."""
    told = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU part", "Features")
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return "\n".join(value.strip() for key, _, value in lines if key.strip() in told)
