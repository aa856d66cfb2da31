"""Divide the time of a batch's translation: products, attention, passes over rows, the search, and the rest.

    python benchmarks/step.py [--precisions int8 float32] [--beams 4 1]

The base model (d_model 512, 6+6 layers, 8 heads, d_ff 2048, swish, 32,000 classes) with random weights translates 32
sources of 15 to 27 random ids into 25 tokens, on one thread, as each worker does of the several that a CPU has. Each
part is timed around its calls, less the parts inside it; "the rest" is small operators and Python. Prints milliseconds
of the whole translation, median of `rounds`, and goes to benchmarks/results/step.jsonl.
"""

import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import bench
import torch
import tyro

from glassformer.attention.kernels.products import PackedLinear
from glassformer.generation import search
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines import engine
from glassformer.generation.engines.cache import BeamCache
from glassformer.generation.engines.engine import Engine
from glassformer.generation.engines.precision import pick_generation_precision
from glassformer.generation.kernels import passes
from glassformer.generation.kernels.quantized import QuantizedLinear
from glassformer.text.batching import pad_source
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

VOCABULARY, TOKENS, BATCH = 32_000, 25, 32
PARTS: dict[str, list[tuple[Any, list[str]]]] = {
    "products": [
        (QuantizedLinear, ["_multiply", "_multiply_panels"]),
        (PackedLinear, ["__call__", "activated", "added"]),
    ],
    "attention": [(passes, ["attend"]), (engine, ["attend"])],
    "rounding to eight bits": [(passes, ["quantize"])],
    "scales, biases, activations, sums": [(passes, ["rescale", "rescale_add", "rescale_activated"])],
    "layer norms": [(engine._Norm, ["__call__"])],
    "output layer and best classes in one": [(QuantizedLinear, ["best_classes"])],
    "best classes": [(passes, ["best_classes"])],
    "cache": [(BeamCache, ["extend", "write", "branch", "take_sources"])],
    "beams": [(search._Beams, ["extend"])],
}


class Clock:
    """Times the parts of what runs meanwhile, each without those inside it."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inside: list[float] = []
        for part, places in PARTS.items():
            for owner, names in places:
                for name in names:
                    setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **settings: Any) -> Any:
            self._inside.append(0.0)
            start = time.perf_counter()
            try:
                return function(*arguments, **settings)
            finally:
                took = time.perf_counter() - start
                self.spent[part] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return timed


def main(precisions: tuple[str, ...] = ("int8", "float32"), beams: tuple[int, ...] = (4, 1), rounds: int = 5) -> None:
    """Print the table of each precision and beam."""
    torch.set_num_threads(1)
    print(bench.machine(), "" if passes.compiled() else "(without numba)")
    clock = Clock()
    torch.manual_seed(1)
    model = Transformer(
        ModelConfig.base(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, activation="swish")
    )
    lengths = torch.randint(15, 28, (BATCH,)).tolist()
    source, keep = pad_source([torch.randint(3, VOCABULARY - 1, (length,)) for length in lengths], model.source_pad)
    measured: dict[str, dict[str, float]] = {}
    for name in precisions:
        picked = pick_generation_precision(name, torch.device("cpu"), torch.float32)
        prepared = Engine.of(model, picked.dtype, int8=picked.int8)
        for beam in beams:
            config = SearchConfig(beam=beam, min_length=TOKENS, max_length=TOKENS)
            find = search.greedy if beam == 1 else search.beam_search
            taken: list[dict[str, float]] = []
            for _ in range(rounds + 1):
                clock.spent.clear()
                start = time.perf_counter()
                find(prepared, source, keep, [TOKENS] * BATCH, config)
                whole = 1e3 * (time.perf_counter() - start)
                parts = {part: 1e3 * clock.spent[part] for part in PARTS}
                taken.append({**parts, "the rest": whole - sum(parts.values()), "all": whole})
            found = {part: statistics.median(times[part] for times in taken[1:]) for part in taken[0]}
            measured[f"{picked}, beam {beam}"] = found
            print(f"{picked}, beam {beam}: {BATCH * TOKENS / found['all'] * 1e3:.0f} tokens/s on one thread")
            for part, ms in found.items():
                print(f"  {part:36} {ms:7.1f} ms  {ms / found['all']:5.1%}")
    bench.keep("step", {"step": measured, "compiled": passes.compiled() is not None})


if __name__ == "__main__":
    tyro.cli(main)
