"""A training that is killed again and again ends with the weights of one that nothing disturbed, to the bit; and what
its checkpoints cost.

    python benchmarks/survival.py --data DIR [--only kills cost] [--kills 20] [--in-writing 5]

DIR holds train.en, train.de, val.en, val.de (Multi30k). SIGKILL ends the training again and again: some of the
times while a checkpoint is being written, the others at uniformly random moments. The last process is left alone.

The cost is the additional time of updates beside which a checkpoint is written, as a share of the default interval
between checkpoints.
"""

import hashlib
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import torch
import tyro

from glassformer.device import pick_precision, tame_memory
from glassformer.text.batching import Batch
from glassformer.training.checkpoint import Checkpoints
from glassformer.training.state import TrainingState
from glassformer.training.step import Step
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

LONGEST_LIFE = 20.0  # seconds, start included


Part = Literal["kills", "cost"]


def main(
    data: Path,
    only: tuple[Part, ...] = get_args(Part),
    updates: int = 1200,
    kills: int = 20,
    in_writing: int = 5,
    rounds: int = 7,
    seed: int = 1,
) -> None:
    """Measure the parts named by `only`.

    Args:
        data: Folder with train.en, train.de, val.en, val.de.
        only: kills (train twice, once disturbed, and compare), cost (of checkpoints, for the tiny and base models).
        updates: Length of the training that is killed.
        kills: How often it is killed.
        in_writing: How many of these while a checkpoint is being written.
        rounds: Turns of each side of the cost.
        seed: The seed of the random moments.
    """
    print(bench.machine())
    found: dict[Part, Any] = {}
    if "cost" in only:
        found["cost"] = {size: cost(size, rounds) for size in ("tiny", "base")}
    if "kills" in only:
        found["kills"] = disturbed(data, updates, kills, in_writing, random.Random(seed))
    bench.keep("survival", found)
    for part in found.values():
        print(part)


def cost(preset: str, rounds: int) -> dict[str, float]:
    """Return the cost of a checkpoint of a model of this size, as a share of the default interval."""
    tame_memory()
    config = ModelConfig.preset(preset, source_vocab_size=10_000, target_vocab_size=10_000, shared_vocab=True)
    dtype = pick_precision("auto", torch.device("cpu"))
    step = Step(Transformer(config), dtype=dtype, label_smoothing=0.1, clip_norm=1.0, optimizer="adam")
    ids = [torch.randint(2, 9_999, (32,)) for _ in range(64)]
    batch = Batch.of(ids, ids, 9_999, 9_999)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = Checkpoints(Path(scratch))

        def block(write: bool, updates: int) -> tuple[float, float]:
            """Return the seconds of these updates, and those until the checkpoint was there."""
            start = written = time.perf_counter()
            if write:
                checkpoints.save(step, TrainingState(update=1))
            for number in range(updates):
                step.update([batch], rate=1e-4, number=number)
                if write and written == start and not checkpoints.writing:
                    written = time.perf_counter()
            checkpoints.wait()
            return time.perf_counter() - start, written - start

        once, _ = block(False, 4)
        _, until = block(True, max(4, round(20 / once)))
        updates = max(4, round(2 * max(until, 0.5) / (once / 4)))
        extra, intervals = [], []
        for _ in range(rounds):
            alone, _ = block(False, updates)
            beside, _ = block(True, updates)
            extra.append(beside - alone)
            intervals.append(checkpoints.pause)
        checkpoints.close()
    share = statistics.median(extra) / statistics.median(intervals)
    print(
        f"  {preset}: {statistics.median(extra):.3f} s ({min(extra):.3f} to {max(extra):.3f}) a checkpoint, "
        f"one each {statistics.median(intervals):.0f} s: {share:.2%}",
        flush=True,
    )
    return {"seconds": statistics.median(extra), "interval": statistics.median(intervals), "share": share}


def disturbed(data: Path, updates: int, kills: int, in_writing: int, draw: random.Random) -> dict[str, Any]:
    """Train twice, once killed again and again, and compare."""
    with tempfile.TemporaryDirectory() as scratch:
        alone, killed = Path(scratch) / "alone", Path(scratch) / "killed"
        assert life(alone, first_of(data, updates)).wait() == 0
        print(f"  undisturbed: {updates} updates, {seconds_of(alone):.0f} s", flush=True)
        plan = [True] * in_writing + [False] * (kills - in_writing)
        draw.shuffle(plan)
        deaths = [end_a_life(killed, data, updates, writing, draw) for writing in plan]
        assert life(killed, ["--resume"]).wait() == 0
        same = digest(alone) == digest(killed)
        agree = validations(alone) == validations(killed)
        print(f"  final weights {'bit-identical' if same else 'DIFFERENT'} after {len(deaths)} kills", flush=True)
        return {
            "updates": updates,
            "seconds": seconds_of(alone),
            "killed while a checkpoint was written": sum(death["writing"] for death in deaths),
            "updates at death": [death["update"] for death in deaths],
            "bit-identical": same,
            "validations the same": agree,
        }


def first_of(data: Path, updates: int) -> list[str]:
    """Return the settings of the training: the defaults except for its size and length."""
    files = {"source": "train.en", "target": "train.de", "valid-source": "val.en", "valid-target": "val.de"}
    settings = {"preset": "tiny", "max-updates": updates, "score-pairs": 100}
    pairs = {name: data / file for name, file in files.items()} | settings
    return [part for name, value in pairs.items() for part in (f"--{name}", str(value))]


def life(folder: Path, arguments: list[str]) -> "subprocess.Popen[bytes]":
    """Start a process that trains."""
    command = [sys.executable, "-m", "glassformer", "train", *arguments, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def end_a_life(folder: Path, data: Path, updates: int, in_writing: bool, draw: random.Random) -> dict[str, int | bool]:
    """Start or continue the training and kill it; return the update, and whether it was writing."""
    resume = folder / "resume"
    process = life(folder, ["--resume"] if resume.exists() else first_of(data, updates))
    if in_writing:
        before = set(unfinished(folder))
        while process.poll() is None and not set(unfinished(folder)) - before:
            time.sleep(0.0005)
    else:
        end = time.monotonic() + draw.uniform(0, LONGEST_LIFE)
        while process.poll() is None and (time.monotonic() < end or not resume.exists()):
            time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the training ended before it was killed: raise --updates"
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    update = max((found["update"] for line in lines if (found := parsed(line))), default=0)
    writing = bool(unfinished(folder))
    print(f"  killed after update {update}{' while a checkpoint was written' if writing else ''}", flush=True)
    return {"update": update, "writing": writing}


def unfinished(folder: Path) -> list[Path]:
    """Return the checkpoints under their temporary names."""
    return [path for path in (folder / "resume").glob("checkpoint-*/.*") if path.is_file()]


def parsed(line: str) -> dict[str, float]:
    """Return a line of metrics.jsonl, empty if it was cut off."""
    try:
        return json.loads(line)
    except ValueError:
        return {}


def digest(folder: Path) -> str:
    """Return a digest of the final weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def validations(folder: Path) -> list[dict[str, float]]:
    """Return update, loss and score of each validation."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: line[name] for name in ("update", "valid_loss", "score")} for line in lines if "valid_loss" in line]


def seconds_of(folder: Path) -> float:
    """Return the seconds that the training took, by its own account."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return max(line.get("seconds", 0.0) for line in lines)


if __name__ == "__main__":
    tyro.cli(main)
