"""Bulk translation on a local Ray cluster against the plain command: rate, memory, and the same bytes under kills.

    python benchmarks/cluster.py RUN [--lines 2000000] [--workers 2] [--kills 20] [--only rate kills]

The lines are phrases of the demonstration's dates, each as often as it takes, in eight files. One side is `glassformer
translate` of each file with one thread. The other is one `glassformer translate --cluster local` with workers of one
core. Prints the ratio of the rates, with the start and the end of the cluster and without its start, and beside it what
as many plain processes side by side reach, the bound of any scheduler on this machine; the processor time of a worker
and of the plain command for 1,000 lines, and of all other processes; the memory of all together from the first block
on; and whether the output is the same to the byte. Then it translates again while workers are killed with SIGKILL at
random moments. Each part is a line in benchmarks/results/cluster.jsonl.
"""

import filecmp
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import tyro

from glassformer.demo.dates import make_dates

FILES = 8
SAMPLE_SECONDS = 5.0
"""Between two looks at the memory, and at the processor time."""
LOOK_SECONDS = 0.2
"""Between two looks whether the first block is done, or a worker is to be killed."""
WORKER = b"ray::MapWorker"
TICKS = os.sysconf("SC_CLK_TCK")
Part = Literal["rate", "kills"]


def main(
    run: tyro.conf.Positional[Path],
    lines: int = 2_000_000,
    workers: int = 2,
    kills: int = 20,
    beam: int = 1,
    plain_lines: int | None = None,
    only: tuple[Part, ...] = get_args(Part),
    seed: int = 1,
) -> None:
    """Measure the parts named by `only`.

    Args:
        run: A run folder, such as `glassformer demo` leaves.
        lines: Lines to translate.
        workers: Workers of one core.
        kills: How often a worker is killed.
        beam: Beam of the search.
        plain_lines: Lines after which the plain side ends; left out, it translates all, and all bytes are compared.
        only: rate, kills.
        seed: Of the kills.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        names = write_lines(folder / "source", lines)
        plain = translate_plainly(run, folder, names, lines if plain_lines is None else plain_lines, beam)
        print(f"plain, one thread: {plain['rate']:,.0f} lines/s, peak {plain['peak_mib']:,.0f} MiB")
        bound = translate_side_by_side(run, folder, names[:workers], beam, plain["loading"]) / plain["rate"]
        print(f"{workers} plain processes side by side: {bound:.2f} times that, the bound of any scheduler here")
        for part in only:
            killer = Killer(kills, lines / (workers * plain["rate"]), seed) if part == "kills" else None
            found = translate_on_cluster(run, folder, workers, beam, killer)
            found |= {"lines": lines, "plain": plain, "beam": beam, "bound": bound}
            found["ratio"] = found["rate"] / plain["rate"]
            found["same bytes"] = same_bytes(folder, names)
            print(f"{part}: {found['rate']:,.0f} lines/s in all, {found['ratio']:.2f} times the plain rate")
            steady = found["steady"] / plain["rate"]
            print(f"  {found['starting']:.1f} s until the first blocks were done; from then on {steady:.2f} times")
            print(
                f"  processor time of 1,000 lines: {found['worker_seconds']:.3f} s in a worker, "
                f"{plain['processor_seconds']:.3f} s plain; of all other processes {found['others']:.0%} of a core"
            )
            print(f"  memory in MiB, by eighths of the time: {', '.join(f'{one:,.0f}' for one in found['memory_mib'])}")
            print(f"  killed {found['killed']} workers; the same bytes: {found['same bytes']}")
            bench.keep("cluster", {part: found})


def write_lines(folder: Path, count: int) -> list[str]:
    """Write the lines into files, and return their names."""
    folder.mkdir()
    phrases = [date.phrase for date in make_dates(train=60_000).train]
    phrases = list(islice(cycle(phrases), count))
    random.Random(1).shuffle(phrases)
    size = -(-count // FILES)
    names = [f"part-{number}.txt" for number in range(FILES)]
    for number, name in enumerate(names):
        part = phrases[number * size : (number + 1) * size]
        (folder / name).write_text("".join(f"{phrase}\n" for phrase in part), encoding="utf-8")
    return names


def command(run: Path, source: Path, target: Path, beam: int) -> list[str]:
    """Return the command that translates a file or a folder."""
    program = str(Path(sys.executable).with_name("glassformer"))
    return [program, "translate", str(run), "--input", str(source), "--output", str(target), "--beam", str(beam)]


def translate_plainly(run: Path, folder: Path, names: list[str], count: int, beam: int) -> dict[str, float]:
    """Translate so many lines, file after file, in one process with one thread; return its rate and memory.

    The time of a process that translates nothing is taken off for each file: loading is not what is compared.
    """
    (folder / "plain").mkdir()
    (folder / "none.txt").touch()
    loading, least, _ = timed(command(run, folder / "none.txt", folder / "none", beam))
    done, seconds, busy, peak = 0, 0.0, 0.0, 0.0
    for name in names:
        if done >= count:
            break
        took, used, mib = timed(command(run, folder / "source" / name, folder / "plain" / name, beam))
        seconds, busy, peak = seconds + took - loading, busy + used - least, max(peak, mib)
        done += count_lines(folder / "plain" / name)
    processor = 1e3 * busy / done
    return {"lines": done, "rate": done / seconds, "peak_mib": peak, "loading": loading, "processor_seconds": processor}


def translate_side_by_side(run: Path, folder: Path, names: list[str], beam: int, loading: float) -> float:
    """Translate each file in a process with one thread, all at once; return the rate of all, without their loading."""
    target = folder / "side by side"
    target.mkdir()
    with ThreadPoolExecutor(len(names)) as pool:
        runs = [command(run, folder / "source" / name, target / name, beam) for name in names]
        seconds = max(took - loading for took, _, _ in pool.map(timed, runs))
    return sum(count_lines(target / name) for name in names) / seconds


def timed(words: list[str]) -> tuple[float, float, float]:
    """Run a command with one thread; return its seconds, those of processor time, and its peak of memory in MiB."""
    began = time.perf_counter()
    with subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)} failed with {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


class Killer:
    """Kills workers at random moments, about evenly over the time that is expected."""

    def __init__(self, kills: int, seconds: float, seed: int) -> None:
        draw = random.Random(seed)
        self._moments = sorted(draw.uniform(0.05, 0.95) * seconds for _ in range(kills))
        self._draw = draw
        self.killed = 0

    def act(self, seconds: float, workers: list[int]) -> None:
        """Kill a worker if it is time for it, and there is one."""
        if workers and self.killed < len(self._moments) and seconds >= self._moments[self.killed]:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self._draw.choice(workers), signal.SIGKILL)
                self.killed += 1


@dataclass
class Samples:
    """The memory and the processor time of all processes of a cluster, from the first block on."""

    memory_mib: list[float] = field(default_factory=list)
    seconds: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Processor time of each process, when it was seen first and when last."""
    workers: set[int] = field(default_factory=set)

    def take(self, root: int) -> None:
        """Look at the processes below `root`."""
        found = descendants(root)
        self.memory_mib.append(memory_mib(found))
        self.workers |= {process for process in found if WORKER in title(process)}
        begun_later = bool(self.seconds)
        for process, seconds in found.items():
            first, _ = self.seconds.get(process, (0.0 if begun_later else seconds, 0.0))
            self.seconds[process] = first, seconds

    def used(self) -> tuple[float, float]:
        """Return the processor time that workers, and all others, took from the first look to the last."""
        took = {process: last - first for process, (first, last) in self.seconds.items()}
        by_workers = sum(seconds for process, seconds in took.items() if process in self.workers)
        return by_workers, sum(took.values()) - by_workers


def translate_on_cluster(run: Path, folder: Path, workers: int, beam: int, killer: Killer | None) -> dict[str, Any]:
    """Translate the folder on a cluster of this machine; return rate, memory and what was killed."""
    target = folder / f"cluster-{'kills' if killer else 'rate'}"
    words = [*command(run, folder / "source", target, beam), "--cluster", "local", "--workers", str(workers)]
    samples, ended, began = Samples(), threading.Event(), time.perf_counter()
    looks: list[tuple[float, int]] = []  # when the samples were taken, and how many bytes were done then
    blocks = target / "_unfinished" / "blocks"

    def watch(root: int) -> None:
        while not ended.wait(SAMPLE_SECONDS if killer is None and looks else LOOK_SECONDS):
            now = time.perf_counter()
            if not looks and not any(blocks.glob("*/*")):
                continue
            if not looks or now - looks[-1][0] >= SAMPLE_SECONDS:
                looks.append((now, size_done(target)))
                samples.take(root)
            if killer is not None:
                killer.act(now - looks[0][0], [one for one in descendants(root) if WORKER in title(one)])

    with subprocess.Popen(words, start_new_session=True) as process:
        watcher = threading.Thread(target=watch, args=(process.pid,))
        watcher.start()
        status = process.wait()
        ended.set()
        watcher.join()
    if status:
        sys.exit(f"{' '.join(words)} failed with {status}")
    ends = time.perf_counter()
    if not looks:
        sys.exit(f"all was translated within {LOOK_SECONDS} s of the first block: give more --lines")
    seconds, (first, early), (last, late) = ends - began, looks[0], looks[-1]
    lines = sum(map(count_lines, target.glob("*.txt")))
    lines_of_byte = lines / size_done(target)
    by_workers, by_others = samples.used()
    eighth = max(1, len(samples.memory_mib) // 8)
    memory = [max(samples.memory_mib[start : start + eighth]) for start in range(0, len(samples.memory_mib), eighth)]
    return {
        "seconds": seconds,
        "starting": first - began,
        "steady": (lines - early * lines_of_byte) / (ends - first),
        "rate": lines / seconds,
        "worker_seconds": 1e3 * by_workers / max(1, (late - early) * lines_of_byte),
        "others": by_others / max(SAMPLE_SECONDS, last - first),
        "memory_mib": memory,
        "killed": 0 if killer is None else killer.killed,
        "output": str(target.name),
    }


def same_bytes(folder: Path, names: list[str]) -> bool:
    """Return whether each output of the plain command is that of the cluster too, to the byte."""
    made = [name for name in names if (folder / "plain" / name).exists()]
    outputs = sorted(folder.glob("cluster-*"), key=lambda path: path.stat().st_mtime)
    return all(filecmp.cmp(folder / "plain" / name, outputs[-1] / name, shallow=False) for name in made)


def descendants(root: int) -> dict[int, float]:
    """Return the processes of a session, each with its processor time: Ray's are started in it or below it."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        process = int(path.parent.name)
        parents[process], seconds[process] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {process: seconds[process] for process in sorted(found & seconds.keys())}


def title(process: int) -> bytes:
    """Return the name that a process has given itself."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def memory_mib(processes: Iterable[int]) -> float:
    """Return the memory of processes in MiB: what each has for itself, and the most that one shares: Ray's store.

    The kernel has counted it. To ask for each one's share of all (smaps_rollup) took 40 % of a core, every two seconds.
    """
    own, shared = 0, 0
    for process in processes:
        try:
            text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended
            continue
        kib = {name: int(size) for name, size in re.findall(r"^Rss(Anon|Shmem):\s*(\d+)", text, re.MULTILINE)}
        own += kib.get("Anon", 0)
        shared = max(shared, kib.get("Shmem", 0))
    return (own + shared) / 1024


def size_done(target: Path) -> int:
    """Return the bytes of all translations in a folder, of whole files and of blocks."""
    size = 0
    for folder, _, names in os.walk(target):  # which passes over a folder that vanishes
        for name in names if Path(folder).name != "writing" else ():
            with suppress(FileNotFoundError):  # its file is complete
                size += Path(folder, name).stat().st_size
    return size


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    with path.open("rb") as file:
        return sum(1 for _ in file)


if __name__ == "__main__":
    tyro.cli(main)
