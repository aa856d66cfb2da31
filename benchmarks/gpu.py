"""The first hour on a GPU: every test that needs one, then every benchmark of one, each part's result kept as it ends.

    make gpu [OUT=folder]
    python benchmarks/gpu.py [--out FOLDER] [--only kernels tests attention ...] [--minutes 9]

Needs torch 2.11 or later that sees a CUDA GPU, Triton, and what the tests and benchmarks import (it says what is
missing); neither a network nor any data: the text to train on and to translate is made up. It runs with the Python
that starts it, in the environment that this Python has, and takes at most `minutes`; what isn't reached is named.

FOLDER/gpu.log gets what every part prints; the records go to benchmarks/results/*.jsonl as always, and copies of those
with new lines to FOLDER. Prints a line for each part, and exits with 1 if one failed or wasn't reached.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

import bench

ROOT = Path(__file__).parents[1]
NEEDED = (
    *("torch", "triton", "transformers", "jaxtyping", "safetensors", "msgspec", "sentencepiece", "rapidfuzz"),
    *("sacrebleu", "rich", "tyro", "beartype", "pytest", "xdist"),
)
"""Import names of the packages that the parts need."""
TEXT = "text"
"""Stands in a command for the folder with the made-up text."""


@dataclass(frozen=True)
class Part:
    """A command of Python's, its limit in seconds, and the records that it appends to."""

    command: tuple[str, ...]
    seconds: int
    record: str | None = None


PARTS = {
    "kernels": Part(("tests/attention/kernels/on_gpu.py",), 120),
    "tests": Part(
        ("-m", "pytest", "-n", "8", "-W", "default", "-p", "no:cacheprovider", "--durations", "12", "tests/gpu"), 240
    ),
    "attention": Part(("benchmarks/attention.py", "--only", "gpu", "--seconds", "0.4"), 120, "attention"),
    "observe": Part(("benchmarks/observe.py", "--only", "gpu", "--seconds", "0.4"), 150, "observe"),
    "sizes": Part(("benchmarks/observe.py", "--only", "sizes"), 150, "observe"),
    "generation": Part(
        ("benchmarks/generation.py", "--data", TEXT, "--only", "gpu", "--rounds", "3"), 200, "generation"
    ),
    "shapes": Part(("benchmarks/training.py", "--data", TEXT, "--only", "shapes"), 180, "training"),
    "training": Part(("benchmarks/training.py", "--data", TEXT, "--only", "gpu", "--rounds", "3"), 360, "training"),
}


def main(out: Path = ROOT / "runs" / "gpu", only: tuple[str, ...] = tuple(PARTS), minutes: float = 9.0) -> int:
    """Run the parts named by `only`, in this order, and return the exit status.

    Args:
        out: Folder for the log and the copies of the records.
        only: kernels, tests, attention, observe, sizes, generation, shapes, training.
        minutes: Time for all of them.
    """
    out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * minutes
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        make_text(Path(scratch))
        for name in only:
            left = min(PARTS[name].seconds, ends - time.monotonic())
            result = run(name, Path(scratch), out, left) if left > 0 else "not reached"
            print(f"{name}: {result}", flush=True)
            if not result.startswith("done"):
                failed.append(name)
    print("all parts are done" if not failed else f"failed or not reached: {', '.join(failed)}; see {out / 'gpu.log'}")
    return 1 if failed else 0


def run(name: str, text: Path, out: Path, seconds: float) -> str:
    """Run a part and return how it ended, with its last line."""
    part = PARTS[name]
    command = [sys.executable, *(str(text) if word == TEXT else word for word in part.command)]
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    start = time.monotonic()
    with (out / "gpu.log").open("a", encoding="utf-8") as log:
        log.write(f"== {name}: {bench.machine()}: {' '.join(part.command)}\n")
        log.flush()
        began = log.tell()
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=seconds, check=False
            ).returncode
            ended = "done" if code == 0 else f"failed with {code}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {seconds:.0f} s"
    if part.record and (bench.RESULTS / f"{part.record}.jsonl").exists():
        shutil.copy(bench.RESULTS / f"{part.record}.jsonl", out)
    with (out / "gpu.log").open(encoding="utf-8") as log:
        log.seek(began)
        lines = log.read().splitlines()
    ended = f"{ended} in {time.monotonic() - start:.0f} s: {lines[-1] if lines else 'it printed nothing'}"
    with (out / "gpu.jsonl").open("a", encoding="utf-8") as records:
        records.write(json.dumps({"part": name, "ended": ended, "machine": bench.machine()}) + "\n")
    return ended


def make_text(folder: Path) -> None:
    """Write what the benchmarks read from real corpora: pairs as Multi30k's, and sources as those of WMT22.

    Words are syllables in a row, the shorter the more frequent; a sentence has 5 to 40 of them.
    """
    draw = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
    words = ["".join(draw.choices(syllables, k=1 + n.bit_length() // 4)) for n in range(60_000)]
    weights = list(accumulate(1 / (n + 10) for n in range(len(words))))

    def sentences(count: int, shortest: int, longest: int) -> str:
        lengths = (draw.randint(shortest, longest) for _ in range(count))
        return "".join(" ".join(draw.choices(words, cum_weights=weights, k=length)) + ".\n" for length in lengths)

    for name, count in (("train.en", 8000), ("train.de", 8000), ("val.en", 500), ("val.de", 500)):
        (folder / name).write_text(sentences(count, 5, 25), encoding="utf-8")
    (folder / "generaltest2022.en-de.src.en").write_text(sentences(4000, 10, 40), encoding="utf-8")


def missing() -> list[str]:
    """Return the packages that this Python lacks."""
    return [name for name in NEEDED if find_spec(name) is None]


if __name__ == "__main__":
    if lacking := missing():
        raise SystemExit(
            f"{sys.executable} lacks {', '.join(lacking)}: pip install them (constraints.txt has the versions), or "
            "carry their wheels to this machine"
        )
    import torch
    import tyro

    if not torch.cuda.is_available():
        raise SystemExit(
            f"torch {torch.__version__} of {sys.executable} sees no CUDA GPU: there is nothing to run here"
        )
    sys.exit(tyro.cli(main))
