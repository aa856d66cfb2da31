"""What a command takes that hardly works: `--help`, and one short line translated, against another commit.

    git worktree add --detach ../before COMMIT
    python benchmarks/startup.py RUN --before ../before [--seconds 60]

The two checkouts run as processes in turn, with this Python and its libraries; each must print the same. Appends to
benchmarks/results/startup.jsonl and prints this commit's time in units of the other's.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import bench
import tyro

HERE = Path(__file__).parents[1]


def main(run: tyro.conf.Positional[Path], before: Path, text: str = "hello", seconds: float = 60.0) -> None:
    """Measure both commands.

    Args:
        run: A run folder that both commits read.
        before: The other checkout.
        text: The line to translate.
        seconds: Time for each command.
    """
    print(bench.machine())
    commands = {"--help": ["--help"], "translate": ["translate", str(run), text, "--device", "cpu"]}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=before, capture_output=True, text=True)
    measured: dict[str, Any] = {"before": commit.stdout.strip(), "run": run.name}
    for name, command in commands.items():
        ours, theirs = (partial(start, folder, command) for folder in (HERE, before))
        if ours() != theirs():
            sys.exit(f"{name}: the two commits print different things")
        pair = bench.in_turn(ours, theirs, seconds=seconds)
        measured[name] = {"ours": pair.ours, "theirs": pair.theirs, "ratio": 1 / pair.ratio}
        spread = f"{1 / pair.highest:.3f} to {1 / pair.lowest:.3f}"
        print(f"{name}: {pair.theirs:.0f} -> {pair.ours:.0f} ms, {1 / pair.ratio:.3f} times as long ({spread})")
    bench.keep("startup", measured)


def start(checkout: Path, command: list[str]) -> str:
    """Run a command of a checkout and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", *command], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    tyro.cli(main)
