"""A training whose nodes are killed ends with the weights of one that nothing disturbed, to the bit, if it had the same
numbers of processes at the same updates; and how many updates the kills cost.

    python benchmarks/elastic.py --folder DIR [--parts killed replayed spread] [--kills 10] [--updates 600]

Each node is a torchrun of its own with one process, here on one machine; they meet in a file (`--nnodes 1:2`). "killed"
trains in DIR/killed: again and again SIGKILL ends a node at random, torchrun and process, the first one as often as the
second. Another takes its place at once, or after the survivor has trained alone. "replayed" trains in DIR/replayed as
many updates with one and with two processes as those counted in the end, stopped and continued without a kill, and
compares. "spread" trains with two processes and other seeds, undisturbed. Each part reads what the one before left.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Literal, get_args

import bench
import tyro
from torch.optim.optimizer import register_optimizer_step_post_hook

from glassformer import cli

Part = Literal["killed", "replayed", "spread"]
QUICKLY = "store_type=file,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
SIZES = "--preset tiny --d-model 32 --heads 4 --encoder-layers 1 --decoder-layers 1 --d-ff 64 --batch-tokens 128"
LEARNING = "--dropout 0.1 --score-pairs 20 --metric ser --patience 0 --device cpu --precision float32"
SETTINGS = f"{SIZES} --tokenizer symbols {LEARNING}"
LONGEST = 120.0  # seconds in which something must happen
SEEDS = (2, 3, 4)
BETWEEN = (5, 40)  # updates, from a start to the next kill


def main(
    folder: Path,
    parts: tuple[Part, ...] = get_args(Part),
    kills: int = 10,
    alone: int = 2,
    updates: int = 600,
    checkpoint_seconds: float = 0.5,
    seed: int = 1,
) -> None:
    """Measure these parts.

    Args:
        folder: Where the trainings are, and what a part leaves for the next.
        parts: killed, replayed, spread, in this order.
        kills: How many nodes are killed.
        alone: After how many kills the survivor trains alone for a while.
        updates: Length of the training.
        checkpoint_seconds: Seconds between two checkpoints.
        seed: The seed of the training, and of the moments of the kills.
    """
    print(bench.machine())
    folder.mkdir(parents=True, exist_ok=True)
    write_pairs(folder / "pairs.tsv")
    course = folder / "course.json"
    settings = f"{folder / 'pairs.tsv'} {SETTINGS} --max-updates {updates} --checkpoint-seconds {checkpoint_seconds}"
    if "killed" in parts:
        found = disturbed(folder, f"{settings} --seed {seed}".split(), kills, alone, random.Random(seed))
        course.write_text(json.dumps(found))
    found = json.loads(course.read_text())
    if "replayed" in parts:
        found |= replayed(folder, f"{settings} --seed {seed}".split(), found["phases"])
        course.write_text(json.dumps(found))
    if "spread" in parts:
        losses = [undisturbed(folder, f"{settings} --seed {other}".split(), f"seed-{other}") for other in SEEDS]
        others = ", ".join(f"{loss:.4f}" for loss in losses)
        print(f"  validation loss {found['loss']:.4f}; of other seeds, undisturbed: {others}")
        found["losses of other seeds"] = losses
    bench.keep("elastic", found)


def write_pairs(path: Path) -> None:
    """Write pairs to learn from: letters, and the same ones backwards."""
    draw = random.Random(7)
    lines = [[draw.choice("abcdefghij") for _ in range(draw.randint(2, 12))] for _ in range(3000)]
    path.write_text("".join(f"{' '.join(line)}\t{' '.join(line[::-1])}\n" for line in lines), encoding="utf-8")


@dataclass
class Node:
    """A torchrun with one process, whose lines on standard error go to `lines` with the time at which they came."""

    process: "subprocess.Popen[str]"
    lines: list[tuple[float, str]]
    _reader: Thread = field(init=False)

    def __post_init__(self) -> None:
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def kill(self) -> None:
        """End it and its process as a power cut would."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()

    def finish(self) -> int:
        """Return its exit status once it has come to its end."""
        status = self.process.wait(LONGEST)
        self._reader.join()
        return status


def start_node(
    lines: list[tuple[float, str]], launcher: list[str], training: list[str], made: Path, stop: int = 0
) -> Node:
    """Start a torchrun. Its process notes each update in `made`, and stops as for SIGTERM after `stop` of them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--local-addr", "localhost", *launcher]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"ELASTIC_MADE": str(made), "ELASTIC_STOP": str(stop)}
    process = subprocess.Popen(
        [*command, __file__, "--worker", "train", *training],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return Node(process, lines)


def worker(arguments: list[str]) -> None:
    """Be `glassformer` in a node's process."""
    made, stop = Path(os.environ["ELASTIC_MADE"]), int(os.environ["ELASTIC_STOP"])
    first = os.environ["RANK"] == "0"
    updates = 0

    def count(*_: object) -> None:
        nonlocal updates
        updates += 1
        if first:
            with made.open("a") as file:
                file.write(".")
            if updates == stop:
                signal.raise_signal(signal.SIGTERM)

    register_optimizer_step_post_hook(count)
    cli.main(arguments)


def updates_made(path: Path) -> int:
    """Return the updates that were made in all, those that were lost too."""
    return path.stat().st_size if path.exists() else 0


def disturbed(folder: Path, settings: list[str], kills: int, alone: int, draw: random.Random) -> dict[str, Any]:
    """Train while nodes are killed; return what it came to."""
    made, lines, began = folder / "made", list[tuple[float, str]](), time.monotonic()
    launcher = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "100", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", str(folder / "rendezvous"), "--rdzv-conf", QUICKLY, "--rdzv-id", "elastic"]
    training = [*settings, "--out", str(folder / "killed")]

    def another() -> Node:
        return start_node(lines, launcher, training, made)

    nodes = [another(), another()]
    plan = [True] * alone + [False] * (kills - alone)
    draw.shuffle(plan)
    with ending(nodes, lines):
        for number, lonely in enumerate(plan):
            wait_for_updates(nodes, lines, made, 2, draw.randint(*BETWEEN))
            lost = draw.randrange(2)
            nodes.pop(lost).kill()
            since = time.monotonic() - began
            print(
                f"  {since:5.1f} s: kill {number + 1}, node {lost + 1} after {updates_made(made)} updates", flush=True
            )
            if lonely:
                wait_for_updates(nodes, lines, made, 1, draw.randint(*BETWEEN))
            nodes.append(another())
        assert [node.finish() for node in nodes] == [0, 0]
    phases = phases_of(lines)
    updates = last_update(folder / "killed")
    counted = [end - begin for (begin, _), (end, _) in zip(phases, [*phases[1:], (updates, 0)], strict=True)]
    lost = updates_made(made) - updates
    took = time.monotonic() - began
    print(f"  {kills} kills, {len(phases)} starts, {took:.0f} s: {lost / kills:.1f} updates a kill were made twice")
    return {
        "updates": updates,
        "kills": kills,
        "starts": len(phases),
        "phases": [[count, size] for count, (_, size) in zip(counted, phases, strict=True) if count],
        "updates lost": lost,
        "seconds": took,
        "loss": validations(folder / "killed")[-1]["valid_loss"],
    }


@contextmanager
def ending(nodes: list[Node], lines: list[tuple[float, str]]) -> Iterator[None]:
    """Leave no node behind; after an error show what they said last."""
    try:
        yield
    except BaseException:
        print("\n".join(f"{when - lines[0][0]:6.1f} s  {line}" for when, line in lines[-60:]), file=sys.stderr)
        raise
    finally:
        for node in nodes:
            if node.process.poll() is None:
                node.kill()


def wait_for_updates(nodes: list[Node], lines: list[tuple[float, str]], made: Path, size: int, count: int) -> None:
    """Return when the last start has so many processes, and has made so many updates."""
    until = time.monotonic() + LONGEST
    while not (sizes := [size for _, size in starts(lines)]) or sizes[-1] != size:
        check(nodes, until)
    before = updates_made(made)
    while updates_made(made) < before + count:
        check(nodes, until)


def check(nodes: list[Node], until: float) -> None:
    """Wait a little; fail where a node has come to its end, or nothing happens for long."""
    assert all(node.process.poll() is None for node in nodes), "a node has come to its end"
    assert time.monotonic() < until, "nothing has happened for long"
    time.sleep(0.005)


def starts(lines: list[tuple[float, str]]) -> Iterator[tuple[float, int]]:
    """Yield the time of each start of the training and its number of processes."""
    for when, line in sorted(lines):
        if line.startswith("model: "):
            yield when, 2 if " and 1 more with " in line else 1


def phases_of(lines: list[tuple[float, str]]) -> list[tuple[int, int]]:
    """Return for each start the update from which it went on, and its number of processes.

    A start that was given up before it knew from where to go on is left out.
    """
    phases, size = list[tuple[int, int]](), 0
    for _, line in sorted(lines):
        if line.startswith("model: "):
            size = 2 if " and 1 more with " in line else 1
            if not phases:
                phases.append((0, size))
        elif line.startswith("going on from update "):
            update = int(line.removeprefix("going on from update ").partition(";")[0].replace(",", ""))
            phases.append((update, size))
    return phases


def replayed(folder: Path, settings: list[str], phases: list[list[int]]) -> dict[str, Any]:
    """Train as many updates with each number of processes, undisturbed, and compare with the training of the kills."""
    merged: list[list[int]] = []
    for count, size in phases:
        if merged and merged[-1][1] == size:
            merged[-1][0] += count
        else:
            merged.append([count, size])
    made, out, lines = folder / "made-again", folder / "replayed", list[tuple[float, str]]()
    for number, (count, size) in enumerate(merged):
        training = ["--resume"] if number else settings
        launcher = ["--standalone", "--nproc-per-node", str(size)]
        stop = count if number < len(merged) - 1 else 0
        start_node(lines, launcher, [*training, "--out", str(out)], made, stop).finish()
    same = digest(folder / "killed") == digest(out)
    agree = validations(folder / "killed") == validations(out)
    print(
        f"  final weights {'bit-identical' if same else 'DIFFERENT'}, as {', '.join(f'{n} x {s}' for n, s in merged)}"
    )
    return {"phases without kills": merged, "bit-identical": same, "validations the same": agree}


def undisturbed(folder: Path, settings: list[str], name: str) -> float:
    """Return the last validation loss of a training with two processes."""
    launcher = ["--standalone", "--nproc-per-node", "2"]
    node = start_node([], launcher, [*settings, "--overwrite", "--out", str(folder / name)], folder / f"made-{name}")
    assert node.finish() == 0, node.lines[-10:]
    return validations(folder / name)[-1]["valid_loss"]


def validations(folder: Path) -> list[dict[str, float]]:
    """Return update, loss and score of each validation."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: line[name] for name in ("update", "valid_loss", "score")} for line in lines if "valid_loss" in line]


def last_update(folder: Path) -> int:
    """Return the last update of a training."""
    return max(int(one["update"]) for one in validations(folder))


def digest(folder: Path) -> str:
    """Return a digest of the final weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2:])
    else:
        tyro.cli(main)
