"""What `watch` costs a step of training, on the steps that it looks at and on the others; and what clipping costs.

    python benchmarks/watch.py [--seconds 4]

The step is the forward and backward pass of one MultiheadAttention (width 256, 4 heads, float32), projections included,
so whatever else a model does makes the share smaller. Sides take turns in one process: no watch; a watch that doesn't
look at this step; one that does, with its figures taken; and one whose largest scores are measured, as `--qk-clip` does
in each step. Gradients are checked for equality first. Then a whole update of the small model, of 2,048 tokens in pairs
of 10 to 40, with `--qk-clip` and without. On one thread, in the processor's time. Prints the times with and without,
their ratio and its quartiles, and appends to benchmarks/results/watch.jsonl.
"""

import time
from functools import partial

import bench
import torch
import tyro
from torch.testing import assert_close

from glassformer import ModelConfig, MultiheadAttention, Transformer, watch
from glassformer.attention.kernels.blocks import Problem, largest_scores
from glassformer.text.batching import Batch
from glassformer.training.step import Step

SHAPES = ((32, 64), (4, 512), (128, 24))
"""Batch and length."""


def main(seconds: float = 4.0) -> None:
    """Time all shapes.

    Args:
        seconds: For each comparison.
    """
    torch.set_num_threads(1)
    print(bench.machine())
    for batch, length in SHAPES:
        bench.keep("watch", {"batch": batch, "length": length, **measure(batch, length, seconds)})
    bench.keep("watch", {"update": {"clipped": measure_update(seconds)}})


def measure(batch: int, length: int, seconds: float) -> dict[str, list[float]]:
    """Return the ratios of both kinds of steps, each with its quartiles."""
    torch.manual_seed(0)
    attention, x = MultiheadAttention(256, 4, batch_first=True), torch.randn(batch, length, 256)

    def train() -> None:
        attention.zero_grad()
        attention(x, x, x, need_weights=False)[0].square().sum().backward()

    looked = watch(attention, every=1, alarm=print)
    steps = iter(range(1 << 30))

    def train_and_look() -> None:
        with looked.step(next(steps)):
            train()

    largest: list[torch.Tensor] = []

    def keep_largest(problem: Problem) -> None:
        largest[:] = [largest_scores(problem)]

    def train_and_measure() -> None:
        with attention.measured_by(keep_largest):
            train()

    with watch(attention, every=1 << 30) as idle:
        train()
        plain = attention.in_proj_weight.grad.clone()
        idle.log(1)

        def train_unlooked() -> None:
            train()
            idle.log(2)

        unlooked = bench.in_turn(train, train_unlooked, seconds=seconds, clock=time.process_time)
        train_and_look()
        assert_close(attention.in_proj_weight.grad, plain, rtol=1e-3, atol=1e-3)
        seen = bench.in_turn(train, train_and_look, seconds=seconds, clock=time.process_time)
    measured = bench.in_turn(train, train_and_measure, seconds=seconds, clock=time.process_time)
    found = {}
    for name, pair in (("looked at", seen), ("other steps", unlooked), ("measured", measured)):
        found[name] = [pair.ratio, pair.lowest, pair.highest]
        print(f"batch {batch:3}, length {length:3}, {name:11} {pair}")
    return found


def measure_update(seconds: float) -> list[float]:
    """Return the ratio of an update with scores measured to one without, and its quartiles."""
    torch.manual_seed(0)
    sizes = ModelConfig.small(source_vocab_size=8_000, target_vocab_size=8_000)
    lengths = torch.randint(10, 41, (80,)).tolist()
    pairs = [(torch.randint(3, 7_999, (n,)), torch.randint(3, 7_999, (n,))) for n in lengths]
    batch = Batch.of(*zip(*pairs, strict=True), 7_999, 7_999)
    plain, clipped = (
        Step(
            Transformer(sizes), dtype=torch.float32, label_smoothing=0.1, clip_norm=1.0, qk_clip=most, optimizer="muon"
        )
        for most in (0.0, 100.0)
    )
    numbers = iter(range(1, 1 << 30))

    def update(step: Step) -> None:
        step.update([batch], rate=1e-4, number=next(numbers))

    pair = bench.in_turn(partial(update, plain), partial(update, clipped), seconds=seconds, clock=time.process_time)
    print(f"an update of the small model, clipped {pair}")
    return [pair.ratio, pair.lowest, pair.highest]


if __name__ == "__main__":
    tyro.cli(main)
