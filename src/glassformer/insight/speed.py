"""What translating with a run costs: how much faster one is than another, on the same lines in turns, and memory."""

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
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator

TURNS = 25
_STATUS = Path("/proc/self/status")  # of Linux
_ALONE = """
import json, sys
from pathlib import Path
from glassformer.device import tame_memory
from glassformer.generation.translator import Translator
folder, lines = json.load(sys.stdin)
tame_memory()
Translator.load(Path(folder), "cpu").translate(lines)
print(next((line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), ""))
"""
_STUDENT = 2.064
"""Of Student's t distribution with TURNS - 1 degrees of freedom, the 97.5 % point."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Lines a second of two runs, and their ratio with its 95 % interval."""

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
    """Of two run folders: medians of turns, one after the other's, and the interval of the ratio's geometric mean."""
    translators = [Translator.load(folder, device) for folder in (before, after)]
    seconds: list[list[float]] = [[], []]
    for turn in range(TURNS + 1):
        for translator, taken in zip(translators, seconds, strict=True):
            began = time.perf_counter()
            translator.translate(list(lines), search)
            if turn:  # the first is for warming up
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
    """Most bytes that a process of its own takes which loads the run and translates the lines; None where the system
    doesn't say, and on devices with a memory of their own. A process that fails is warned of, and None too."""
    if pick_device(device).type != "cpu" or not _STATUS.exists():
        return None
    given = json.dumps([str(folder.resolve()), list(lines)])
    done = subprocess.run([sys.executable, "-c", _ALONE], input=given, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        warnings.warn(f"the memory that {folder} takes is not known, its process failed: {last}", stacklevel=2)
        return None
    return 1024 * int(done.stdout) if done.stdout.strip() else None
