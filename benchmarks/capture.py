"""Seeing every layer of a model of BERT-base's size at 4,096 tokens, beside its plain forward pass: time and memory.

    python benchmarks/capture.py [--length 4096] [--rounds 5] [--eager]
    python benchmarks/capture.py --calls [--rounds 5]

The model is Hugging Face's BertModel with random weights; entropy, received, distance and the eight largest weights of
each query are captured of all 12 layers. Each side has a process of its own, and both take turns. Memory is the peak of
the resident set above what it was before the first pass. `--eager` also measures output_attentions=True, which keeps
all weights: 9.7 GB and more at 4,096 tokens. Prints the ratio of the times last, and appends to
benchmarks/results/capture.jsonl.

`--calls` measures what `capture` costs each call of torch that is not attention, since it sees them all: a model of
10,000 additions and one attention, which is recorded, beside the same model alone, in one process on one thread.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import bench
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

SIDES = ("plain", "captured", "eager")


CALLS = 10_000


def main(length: int = 4096, rounds: int = 5, eager: bool = False, calls: bool = False) -> None:
    """Time all sides in turns.

    Args:
        length: Tokens of the one sequence.
        rounds: Turns of each side.
        eager: Also output_attentions=True.
        calls: Only what a call of torch costs that is not attention.
    """
    print(bench.machine())
    if calls:
        time_calls(rounds)
        return
    names = SIDES if eager else SIDES[:2]
    with bench.Sides(__file__, names, Path()) as sides:
        memory = {name: sides.ask(name, "memory", length) for name in names}
        apart = sides.ask("captured", "difference", length)
        times = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                times[name].append(sides.ask(name, "seconds", length))
    median = {name: statistics.median(found) for name, found in times.items()}
    ratios = sorted(one / other for one, other in zip(times["captured"], times["plain"], strict=True))
    for name in names:
        print(f"{name:10}{median[name]:8.2f} s{memory[name]:10,.0f} MiB")
    print(f"largest difference of the outputs, of the largest output: {apart:.1e}")
    extra = memory["captured"] - memory["plain"]
    found = {"length": length, "seconds": median, "mib": memory, "extra_mib": extra, "difference": apart}
    bench.keep("capture", {**found, "ratios": ratios})
    print(f"captured: {extra:,.0f} MiB more than the plain pass")
    print(f"captured takes {statistics.median(ratios):.2f} times the plain pass ({ratios[0]:.2f} to {ratios[-1]:.2f})")


class Additions(nn.Module):
    """Adds many times, and computes attention once."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(CALLS):
            x = x + 1.0
        return self.attention(x)


class Attention(nn.Module):
    """Calls torch's attention."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def time_calls(rounds: int) -> None:
    """Time a model of many calls that are not attention, with its one attention recorded and without."""
    from glassformer import capture

    torch.set_num_threads(1)
    model, x = Additions().eval(), torch.zeros(1, 1, 4, 8)

    def captured() -> None:
        with torch.no_grad(), capture(model, layers="attention") as seen:
            model(x)
        assert list(seen) == ["attention"]

    def plain() -> None:
        with torch.no_grad():
            model(x)

    pair = bench.in_turn(plain, captured, seconds=rounds)
    each = 1e3 * (pair.theirs - pair.ours) / CALLS
    bench.keep("capture", {"calls": CALLS, "plain_ms": pair.ours, "captured_ms": pair.theirs, "us_a_call": each})
    print(f"captured / plain: {pair}")
    print(f"capture adds {each:.2f} us to a call of torch, which takes {1e3 * pair.ours / CALLS:.2f} us")


def side(name: str) -> None:
    """Run a side in its own process."""
    from transformers import BertConfig, BertModel

    from glassformer import Want, capture

    torch.manual_seed(0)
    model = BertModel(BertConfig(max_position_embeddings=4096), add_pooling_layer=False).eval()
    if name == "eager":
        model.set_attn_implementation("eager")
    want = Want(entropy=True, received=True, distance=True, top=8)

    def run(length: int, seen: bool) -> Any:
        ids = torch.arange(length)[None] % 30_000
        with torch.no_grad():
            if not seen:
                return model(input_ids=ids, output_attentions=name == "eager").last_hidden_state
            with capture(model, want) as captured:
                output = model(input_ids=ids).last_hidden_state
            assert len(captured) == 12
            return output

    def answer(what: str, length: int) -> float:
        if what == "difference":
            plain = run(length, False)
            return ((run(length, True) - plain).abs().max() / plain.abs().max()).item()
        before, began = bench.status("VmRSS"), time.perf_counter()
        run(length, name == "captured")
        return (bench.status("VmHWM") - before) / 1024 if what == "memory" else time.perf_counter() - began

    bench.serve(answer)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(sys.argv[2])
    else:
        tyro.cli(main)
