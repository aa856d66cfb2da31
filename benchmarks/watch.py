"""What `watch` costs a step of training: on the steps that it looks at, and on the others.

    python benchmarks/watch.py [--seconds 4]

The step is the forward and backward pass of one MultiheadAttention (width 256, 4 heads, float32), projections included,
so whatever else a model does makes the share smaller. Three sides take turns in one process: no watch, a watch that
doesn't look at this step, and one that does, with its figures taken. Gradients are checked for equality first. Prints
the times with and without, their ratio and its quartiles, and appends to benchmarks/results/watch.jsonl.
"""

import bench
import torch
import tyro
from torch.testing import assert_close

from glassformer import MultiheadAttention, watch

SHAPES = ((32, 64), (4, 512), (128, 24))
"""Batch and length."""


def main(seconds: float = 4.0) -> None:
    """Time all shapes.

    Args:
        seconds: For each comparison.
    """
    print(bench.machine())
    for batch, length in SHAPES:
        bench.keep("watch", {"batch": batch, "length": length, **measure(batch, length, seconds)})


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

    with watch(attention, every=1 << 30) as idle:
        train()
        plain = attention.in_proj_weight.grad.clone()
        idle.log(1)

        def train_unlooked() -> None:
            train()
            idle.log(2)

        unlooked = bench.in_turn(train, train_unlooked, seconds=seconds)
        train_and_look()
        assert_close(attention.in_proj_weight.grad, plain, rtol=1e-3, atol=1e-3)
        seen = bench.in_turn(train, train_and_look, seconds=seconds)
    found = {}
    for name, pair in (("looked at", seen), ("other steps", unlooked)):
        found[name] = [pair.ratio, pair.lowest, pair.highest]
        print(f"batch {batch:3}, length {length:3}, {name:11} {pair}")
    return found


if __name__ == "__main__":
    tyro.cli(main)
