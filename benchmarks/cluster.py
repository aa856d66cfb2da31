"""Bulk translation on a local Ray cluster against the plain command: rate, memory, and the same bytes under kills.

    python benchmarks/cluster.py RUN [--lines 2000000] [--workers 2] [--kills 20] [--only rate kills]

The lines are phrases of the demonstration's dates, each as often as it takes, in eight files. One side is `glassformer
translate` of each file with one thread. The other is one `glassformer translate --cluster local` with workers of one
core. Prints the ratio of the rates, with the start and the end of the cluster and without its start; the memory of all
its processes together from the first block on; and whether the output is the same to the byte. Then it translates
again while workers are killed with SIGKILL at random moments. Each part is a line in benchmarks/results/cluster.jsonl.
"""

import filecmp
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import tyro

from glassformer.demo.dates import make_dates

FILES = 8
SAMPLE_SECONDS = 2.0
WORKER = b"ray::MapWorker"
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
        for part in only:
            killer = Killer(kills, lines / (workers * plain["rate"]), seed) if part == "kills" else None
            found = translate_on_cluster(run, folder, workers, beam, killer)
            found |= {"lines": lines, "plain": plain, "beam": beam, "ratio": found["rate"] / plain["rate"]}
            found["same bytes"] = same_bytes(folder, names)
            print(f"{part}: {found['rate']:,.0f} lines/s in all, {found['ratio']:.2f} times the plain rate")
            steady = found["steady"] / plain["rate"]
            print(f"  {found['starting']:.1f} s until the first blocks were done; from then on {steady:.2f} times")
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
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    (folder / "plain").mkdir()
    (folder / "none.txt").touch()
    loading, _ = timed(command(run, folder / "none.txt", folder / "none", beam), environment)
    done, seconds, peak = 0, 0.0, 0.0
    for name in names:
        if done >= count:
            break
        took, mib = timed(command(run, folder / "source" / name, folder / "plain" / name, beam), environment)
        seconds, peak = seconds + took - loading, max(peak, mib)
        done += count_lines(folder / "plain" / name)
    return {"lines": done, "rate": done / seconds, "peak_mib": peak, "loading": loading}


def timed(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return how many seconds it took, and its peak of memory in MiB."""
    began = time.perf_counter()
    with subprocess.Popen(words, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)} failed with {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


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


def translate_on_cluster(run: Path, folder: Path, workers: int, beam: int, killer: Killer | None) -> dict[str, Any]:
    """Translate the folder on a cluster of this machine; return rate, memory and what was killed."""
    target = folder / f"cluster-{'kills' if killer else 'rate'}"
    words = [*command(run, folder / "source", target, beam), "--cluster", "local", "--workers", str(workers)]
    samples: list[float] = []
    ended = threading.Event()
    began = time.perf_counter()
    first_block: list[float] = []  # when it was seen, and how many lines were done then

    def watch(root: int) -> None:
        while not ended.wait(SAMPLE_SECONDS if killer is None and first_block else 0.2):
            processes = descendants(root)
            if not first_block and (blocks := list((target / "_unfinished" / "blocks").glob("*/*"))):
                first_block.extend((time.perf_counter(), sum(map(count_lines, blocks))))
            if first_block:
                samples.append(sum(map(shared_mib, processes)))
            if killer is not None and first_block:
                killer.act(time.perf_counter() - first_block[0], [one for one in processes if WORKER in title(one)])

    with subprocess.Popen(words, start_new_session=True) as process:
        watcher = threading.Thread(target=watch, args=(process.pid,))
        watcher.start()
        status = process.wait()
        ended.set()
        watcher.join()
    if status:
        sys.exit(f"{' '.join(words)} failed with {status}")
    ends = time.perf_counter()
    seconds, (first, early) = ends - began, first_block or (began, 0)
    lines = sum(map(count_lines, target.glob("*.txt")))
    eighth = max(1, len(samples) // 8)
    memory = [max(samples[start : start + eighth]) for start in range(0, len(samples), eighth)]
    return {
        "seconds": seconds,
        "starting": first - began,
        "steady": (lines - early) / (ends - first),
        "rate": lines / seconds,
        "memory_mib": memory,
        "killed": 0 if killer is None else killer.killed,
        "output": str(target.name),
    }


def same_bytes(folder: Path, names: list[str]) -> bool:
    """Return whether each output of the plain command is that of the cluster too, to the byte."""
    made = [name for name in names if (folder / "plain" / name).exists()]
    outputs = sorted(folder.glob("cluster-*"), key=lambda path: path.stat().st_mtime)
    return all(filecmp.cmp(folder / "plain" / name, outputs[-1] / name, shallow=False) for name in made)


def descendants(root: int) -> list[int]:
    """Return the processes of a session: Ray's are started in it or below it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def title(process: int) -> bytes:
    """Return the name that a process has given itself."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def shared_mib(process: int) -> float:
    """Return the memory of a process in MiB, with its share of what several use."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has ended
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    with path.open("rb") as file:
        return sum(1 for _ in file)


if __name__ == "__main__":
    tyro.cli(main)
