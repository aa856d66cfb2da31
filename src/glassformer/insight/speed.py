"""The cost of translating with a run: its speed against another run's, measured in turns, and its memory."""

import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glassformer.device import pick_device
from glassformer.errors import DataError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import check_lines

TURNS = 10
"""Number of times that each run translates the lines."""
_PROCESS_STATUS = Path("/proc/self/status")  # Linux only
_TRANSLATE_ALONE = """
import sys
from pathlib import Path
from glassformer.data.processes import end_with_parent
from glassformer.decoding import decode_message
from glassformer.device import tame_memory
from glassformer.generation.translator import Translator
end_with_parent()
folder, lines = decode_message(sys.stdin.buffer.read())
tame_memory()
Translator.load(Path(folder), "cpu").translate(lines)
print(next((line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), ""))
"""
_STUDENT = 2.262
"""The 97.5 % point of Student's t distribution with TURNS - 1 degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Lines per second of two runs, and the ratio of the second to the first with its 95 % interval.

    >>> print(Speed(before=120.0, after=150.0, ratio=1.25, low=1.21, high=1.29))
    120.0 -> 150.0 lines/s, 1.250 times as fast (95 % interval 1.210 to 1.290)
    """

    before: float
    after: float
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.before:,.1f} -> {self.after:,.1f} lines/s, {self.ratio:.3f} times as fast (95 % interval "
            f"{self.low:.3f} to {self.high:.3f})"
        )


def compare_speed(before: Path, after: Path, lines: Sequence[str], device: str, search: SearchConfig) -> Speed:
    """Measure the speed of two run folders, which translate the same lines in turns.

    The speeds are medians over the turns; the ratio is a geometric mean, with its 95 % interval. Raises RunError for a
    folder that can't be read, DataError where there is nothing to translate.

    Example: docs/howto/prune.md.
    """
    check_lines("lines", lines)
    if not any(line.strip() for line in lines):
        raise DataError("there is nothing to translate: all lines are empty")
    translators = [Translator.load(folder, device) for folder in (before, after)]
    seconds: list[list[float]] = [[], []]
    for turn in range(TURNS + 1):
        for translator, taken in zip(translators, seconds, strict=True):
            began = time.perf_counter()
            translator.translate(list(lines), search)
            if turn:  # the first turn warms up
                taken.append(time.perf_counter() - began)
    logs = [math.log(one / other) for one, other in zip(*seconds, strict=True)]
    mean, spread = statistics.mean(logs), _STUDENT * statistics.stdev(logs) / math.sqrt(len(logs))
    rates = [len(lines) / statistics.median(taken) for taken in seconds]
    return Speed(
        before=rates[0],
        after=rates[1],
        ratio=math.exp(mean),
        low=math.exp(mean - spread),
        high=math.exp(mean + spread),
    )


def peak_memory(folder: Path, lines: Sequence[str], device: str) -> int | None:
    """Return the peak memory, in bytes, of a new process that loads the run and translates the lines.

    Returns None where the system doesn't report it, on devices with memory of their own, and, with a warning, if the
    process fails.
    """
    if pick_device(device).type != "cpu" or not _PROCESS_STATUS.exists():
        return None
    given = json.dumps([str(folder.resolve()), list(lines)])
    done = subprocess.run([sys.executable, "-P", "-c", _TRANSLATE_ALONE], input=given, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        warnings.warn(
            f"the memory that {folder} takes is unknown, because the process that measures it failed: {last}",
            stacklevel=2,
        )
        return None
    return 1024 * int(done.stdout) if done.stdout.strip() else None
