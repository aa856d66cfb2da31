"""Preparing a large corpus for training, with all cores and with one: time, lines a second, peak memory in all.

    python benchmarks/preparation.py [--pairs 10000000] [--scratch FOLDER]

The pairs are generated: words of a Zipf distribution, twelve a side on average. Memory is the proportional set size
(PSS) summed over the process and all that it started, looked at ten times a second; so Linux only. Checks that both
ways make the same files, and times a second start, which uses them again. Prints the ratio of the times last, and
appends to benchmarks/results/preparation.jsonl.
"""

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from filecmp import cmpfiles
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import tyro
from bench import keep

from glassformer.data.processes import count_workers
from glassformer.training.config import TrainConfig
from glassformer.training.prepare import prepare_run

WORDS = 100_000  # of each language
AT_ONCE = 10_000
LETTERS = (
    ("b c d f g h j k l m n p r s t v w z", "a e i o u"),
    ("b sch d f g h k l m n p r st t v w z", "a e i o u ä ö ü ei au"),
)


def main(pairs: int = 10_000_000, scratch: Path | None = None, tokenizer: str = "unigram") -> None:
    """Prepare generated pairs with all cores, again, and with one core.

    Args:
        pairs: How many.
        scratch: Where to put them and what is made of them, 0.6 GB for a million; left out, where the system keeps
            temporary files.
        tokenizer: The kind of the vocabulary.
    """
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        sys.exit("this system doesn't tell which processes a process has started")
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        began = time.monotonic()
        size = generate(folder, pairs)
        print(f"{pairs:,} pairs, {size / 1e6:,.0f} MB, generated in {time.monotonic() - began:.0f} s")
        sides = {}
        for side, out, cores in (("all", "all/run", 0), ("again", "all/again", 0), ("one", "one/run", 1)):
            sides[side] = measure(folder, out, cores, pairs, tokenizer)
            told = "{seconds:.1f} s, {cpu_seconds:.1f} of CPU, {lines_per_second:,.0f} lines/s, {peak_mib:,.0f} MiB"
            print(f"{side}: {told.format(**sides[side])}")
        check_same(folder / "all" / "run", folder / "one" / "run")
    ratio = sides["one"]["seconds"] / sides["all"]["seconds"]
    figures = {"pairs": pairs, "bytes": size, "tokenizer": tokenizer, "cores": max(1, count_workers())}
    keep("preparation", {**figures, "sides": sides, "ratio": ratio})
    print(f"one core takes {ratio:.2f} times as long as {figures['cores']}")


def generate(folder: Path, pairs: int) -> int:
    """Write source and target, whose words are translated one by one and reordered; return their size."""
    vocabularies = [words(letters, seed) for seed, letters in enumerate(LETTERS)]
    shares = torch.tensor([1 / (rank + 2.7) for rank in range(WORDS)], dtype=torch.float64).cumsum(0)
    draw = torch.Generator().manual_seed(1)
    with (
        (folder / "source").open("w", encoding="utf-8") as source,
        (folder / "target").open("w", encoding="utf-8") as target,
    ):
        for first in range(0, pairs, AT_ONCE):
            lengths = torch.randint(4, 21, (min(AT_ONCE, pairs - first),), generator=draw).tolist()
            chances = torch.rand(sum(lengths), generator=draw, dtype=torch.float64) * shares[-1]
            drawn = torch.searchsorted(shares, chances).tolist()
            for end, length in zip(accumulate(lengths), lengths, strict=True):
                sentence = drawn[end - length : end]
                source.write(" ".join([vocabularies[0][word] for word in sentence]) + "\n")
                target.write(" ".join([vocabularies[1][word] for word in sentence[1::2] + sentence[::2]]) + "\n")
    return sum((folder / name).stat().st_size for name in ("source", "target"))


def words(letters: tuple[str, str], seed: int) -> list[str]:
    """Return made-up words of one to five syllables, short ones first because they are to be the frequent ones."""
    draw, made = random.Random(seed), dict[str, None]()
    while len(made) < WORDS:
        syllables = draw.choices((1, 2, 3, 4, 5), (2, 4, 4, 2, 1))[0]
        word = "".join(draw.choice(part.split()) for _ in range(syllables) for part in letters)
        made[word + draw.choice(("", "", "n", "s", "r"))] = None
    return sorted(made, key=len)


def measure(folder: Path, out: str, cores: int, pairs: int, tokenizer: str) -> dict[str, Any]:
    """Return the time (s) and peak memory (MiB) of preparing in a process of its own; 0 `cores` means all.

    Where other work takes the cores, the processor's time stays much the same.
    """
    command = [sys.executable, __file__, "--prepare", str(folder), out, str(cores), tokenizer]
    began, worked = time.monotonic(), cpu_seconds()
    peak = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, sum(memory(pid) for pid in family(process.pid)))
            time.sleep(0.1)
        assert process.stderr is not None
        said = [line for line in process.stderr.read().splitlines() if " pairs/s" not in line]
    if process.returncode:
        sys.exit("\n".join(["preparing failed:", *said]))
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds() - worked,
        "lines_per_second": 2 * pairs / seconds,
        "peak_mib": peak / 1024,
        "said": said,
    }


def cpu_seconds() -> float:
    """Return the CPU seconds of all processes that this one started, and that those started, if they have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def family(pid: int) -> Iterator[int]:
    """Return a process and all its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # it has just ended
            continue
        for child in found:
            yield from family(int(child))


def memory(pid: int) -> int:
    """Return the proportional set size in kB: pages that processes share count once for all of them together."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def check_same(one: Path, other: Path) -> None:
    """Exit unless both run folders hold the same arrays and tokenizers."""
    names = [str(path.relative_to(one)) for path in one.rglob("*") if path.is_file() and path.name != "config.json"]
    same, *others = cmpfiles(one, other, names, shallow=False)
    if any(others) or len(same) < 8:
        sys.exit(f"not the same with one core: {others}")


def prepare(folder: str, out: str, cores: str, tokenizer: str) -> None:
    """Prepare the pairs, in the process that is measured."""
    if cores == "1":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    began = time.monotonic()
    source, target = (Path(folder) / name for name in ("source", "target"))
    config = TrainConfig(source=source, target=target, out=Path(folder) / out, tokenizer=tokenizer)
    prepare_run(config, lambda line: print(f"{time.monotonic() - began:.1f} s: {line}", file=sys.stderr))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepare"]:
        prepare(*sys.argv[2:])
    else:
        tyro.cli(main)
