"""What the benchmarks share: two sides timed in turn, and results kept with what they were measured on."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

RESULTS = Path(__file__).parent / "results"
REST = 0.25  # seconds after a turn in which threads of the side that had it stop spinning


@dataclass(frozen=True)
class Pair:
    """Times of two sides, in milliseconds: medians, and the ratios (theirs / ours) of neighbouring runs."""

    ours: float
    theirs: float
    ratio: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        spread = f"{self.lowest:.2f} to {self.highest:.2f}"
        return f"{self.theirs:9.2f} ms {self.ours:9.2f} ms   ratio {self.ratio:5.2f} ({spread})"


def in_turn(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    seconds: float,
    least: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> Pair:
    """Time A B A B ... for about `seconds`, at least `least` times each, after warming both up.

    On one thread `clock` may be time.process_time, to which other work on the machine adds little.
    """
    for side in (ours, theirs, ours, theirs):
        side()
    times: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    while len(times[0]) < least or time.perf_counter() - began < seconds:
        for side, kept in zip((ours, theirs), times, strict=True):
            start = clock()
            side()
            kept.append(1e3 * (clock() - start))
    ratios = sorted(b / a for a, b in zip(*times, strict=True))
    quarter = len(ratios) // 4
    medians = [statistics.median(kept) for kept in times]
    return Pair(*medians, statistics.median(ratios), ratios[quarter], ratios[-1 - quarter])


def keep(name: str, measured: dict[str, Any]) -> None:
    """Append a measurement to results/NAME.jsonl, with machine, versions and commit."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout
    commit = described.strip() or os.environ.get("COMMIT", "unknown")  # a copy of the tree may have no repository
    record = {**measured, "machine": machine(), "torch": torch.__version__, "python": platform.python_version()}
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**record, "commit": commit}) + "\n")


def last(name: str, part: str) -> Any:
    """Return the last measurement of a part that stands in results/NAME.jsonl."""
    records = map(json.loads, (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return [record[part] for record in records if part in record][-1]


def machine() -> str:
    """Return the processor's name where it is known, the number of threads, and the GPU if there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = named.get("model name") or platform.processor() or platform.machine()
    features = [flag for flag in ("avx2", "avx512f", "amx_bf16") if flag in named.get("flags", "").split()]
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return ", ".join([name, *features, f"{torch.get_num_threads()} threads", *gpu])


class Sides:
    """A process for each side of a comparison, which waits to be asked: `python SCRIPT --side NAME FOLDER`."""

    def __init__(self, script: str, names: tuple[str, ...], folder: Path) -> None:
        command = [sys.executable, "-W", "ignore", script, "--side"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.names = names
        self._processes = {
            name: subprocess.Popen(
                [*command, name, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            for name in names
        }
        for process in self._processes.values():
            self._read(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.communicate()

    def ask(self, name: str, what: str, *numbers: int) -> Any:
        """Return a side's answer, after a pause."""
        process = self._processes[name]
        assert process.stdin is not None
        print(json.dumps([what, *numbers]), file=process.stdin, flush=True)
        answer = self._read(process)
        time.sleep(REST)
        return answer

    def _read(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        if not (answer := process.stdout.readline()):
            raise SystemExit(f"{process.args} has failed: see its message above")
        return json.loads(answer)


def serve(answer: Callable[..., Any]) -> None:
    """Answer questions in a side's process until they end."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)


def status(name: str) -> int:
    """Return a figure of /proc/self/status in kB: VmRSS, the memory in use, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
