"""A training at too high a rate: when `watch` warns, when the loss shows it, and whether it recovers.

    python benchmarks/collapse.py [--seeds 1 2 3 4 5] [--clip 30] [--picture docs/img/watch.png]

A small model learns the dates of `make demo` with Muon at a rate of 0.1 (its default would be 0.008). The warm-up takes
150 of 300 updates, then the rate falls with 1 / sqrt(update); there is no cooldown. Every tenth update is looked at.
The loss shows the collapse where the mean of 20 updates is 0.1 nats above its minimum so far; it has recovered if one
after that is below the minimum. `--clip` trains with this `--qk-clip`, and `--picture` is the curves.png of the first
seed. Prints a line for each training, and appends them all to benchmarks/results/collapse.jsonl.
"""

import shutil
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import bench
import torch
import tyro

from glassformer import TrainConfig, train
from glassformer.capture.sightings import read_sightings
from glassformer.demo.dates import make_dates
from glassformer.demo.demonstration import write_phrases
from glassformer.run.metrics import read_metrics
from glassformer.run.names import CURVES, METRICS, WATCHED

SIZES = dict(preset="tiny", d_model=64, heads=4, d_ff=128, encoder_layers=2, decoder_layers=2)
COURSE = dict(learning_rate=0.1, warmup=150, cooldown=0.0, patience=0, max_updates=300, validate_every=150)
OTHERS = dict(tokenizer="char", batch_tokens=512, precision="float32", score_pairs=10, watch=10, threads=1)
SHOWS = 0.1
"""Nats above its minimum at which a loss shows that something went wrong."""


def main(seeds: tuple[int, ...] = (1, 2, 3, 4, 5), clip: float = 0.0, picture: Path | None = None) -> None:
    """Train with each seed.

    Args:
        seeds: Of the weights and the order of pairs.
        clip: The largest score that is left as it is; 0 clips none.
        picture: Where to put the curves of the first training.
    """
    torch.set_num_threads(1)  # on cores that others use two threads wait for each other
    print(bench.machine())
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        splits = make_dates(seed=0, train=8_000)
        for name, dates in (("train", splits.train), ("valid", splits.valid)):
            write_phrases(data / f"{name}.tsv", dates)
        files = dict(source=data / "train.tsv", valid_source=data / "valid.tsv")
        for seed in seeds:
            out = data / f"collapse-{seed}"
            train(TrainConfig(**files, out=out, **SIZES, **COURSE, **OTHERS, seed=seed, qk_clip=clip))
            if picture is not None and seed == seeds[0]:
                shutil.copyfile(out / CURVES, picture)
            found.append({"seed": seed, **described(out)})
    for one in found:
        print("  ".join(f"{name} {value}" for name, value in one.items()))
    bench.keep("collapse", {"qk_clip": clip, "trainings": found})


def described(run: Path) -> dict[str, Any]:
    """Return the updates of the first warning of each kind, and what became of the loss."""
    warned: dict[str, int] = {}
    for sighting in read_sightings(run / WATCHED):
        for alarm in sighting.alarms:
            warned.setdefault(alarm.kind, sighting.step)
    reports = [(report.update, report.loss) for report in read_metrics(run / METRICS).reports]
    losses = [(update, loss) for update, loss in reports if loss is not None]
    lowest = list(accumulate((loss for _, loss in losses), min))
    above = [n for n, ((_, loss), low) in enumerate(zip(losses, lowest, strict=True)) if loss > low + SHOWS]
    shows = above[0] if above else None
    return {
        "warned": warned,
        "lowest": round(min(lowest if shows is None else lowest[: shows + 1]), 2),
        "shows": None if shows is None else losses[shows][0],
        "recovered": shows is not None and lowest[-1] < lowest[shows],
        "last": round(losses[-1][1], 2),
    }


if __name__ == "__main__":
    tyro.cli(main)
