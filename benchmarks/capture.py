"""Seeing every layer of a model of BERT-base's size at 4,096 tokens, beside its plain forward pass: time and memory.

    python benchmarks/capture.py [--length 4096] [--rounds 5] [--eager]

The model is Hugging Face's BertModel with random weights; entropy, received, distance and the eight largest weights of
each query are captured of all 12 layers. Each side has a process of its own, and both take turns. Memory is the peak of
the resident set above what it was before the first pass. `--eager` also measures output_attentions=True, which keeps
all weights: 9.7 GB and more at 4,096 tokens. Prints the ratio of the times last, and appends to
benchmarks/results/capture.jsonl.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import bench
import torch
import tyro

SIDES = ("plain", "captured", "eager")


def main(length: int = 4096, rounds: int = 5, eager: bool = False) -> None:
    """Time all sides in turns.

    Args:
        length: Tokens of the one sequence.
        rounds: Turns of each side.
        eager: Also output_attentions=True.
    """
    print(bench.machine())
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
