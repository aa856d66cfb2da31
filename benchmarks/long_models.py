"""A long prompt and its continuation through a model of grouped heads, seen by `capture`, beside the model's own pass.

    python benchmarks/long_models.py [--tokens 8192] [--layers 4] [--new 64] [--turns 5] [--budget 64]
        [--sides linear tiles ...]

The model is a Llama of Hugging Face with random weights (width 512, 8 heads, 2 of keys and values, feed-forward layers
of 1,408, 1,000 tokens), whose attention is torch's SDPA. `generate` reads the prompt and writes the new tokens with a
cache of keys and values. Sides: `plain` captures nothing; `linear` entropy, received, distance and lse, the default of
`capture`; `scores` these, max_score and sink; `tiles` what a page of a long text shows; `weights` all weights, which
don't fit the budget, so that others replace them. "without numba" after a side's name hides the extra `fast`.

Each side has a process of its own, and all take turns. Before anything is timed, ids and first logits are compared with
those of `plain`. Memory is the peak of the resident set above what it was before the first turn. What is kept is
compared with the budget (MiB, for all layers). The page of `tiles` is opened in headless chromium: seconds from the
address until the first map is painted, and milliseconds until a choice is. Prints the ratios last, and appends to
benchmarks/results/long_models.jsonl.
"""

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench
import torch
import tyro

HIDING = " without numba"
SIDES = ("linear", "linear without numba", "scores", "tiles", "weights")


def main(
    tokens: int = 8192,
    layers: int = 4,
    new: int = 64,
    turns: int = 5,
    budget: int = 64,
    sides: tuple[str, ...] = SIDES,
) -> None:
    """Time all sides in turns.

    Args:
        tokens: Tokens of the prompt.
        layers: Layers of the model.
        new: Tokens that are generated.
        turns: Turns of each side.
        budget: MiB that the capture of all layers may take.
        sides: What is captured.
    """
    print(bench.machine())
    names = ("plain", *sides)
    sizes = (tokens, layers, new, budget)
    found: dict[str, Any] = {"tokens": tokens, "layers": layers, "new": new, "budget_mib": budget}
    with tempfile.TemporaryDirectory() as scratch, bench.Sides(__file__, names, Path(scratch)) as asked:
        first = {name: asked.ask(name, "first", *sizes) for name in names}
        for name in sides:
            if first[name]["ids"] != first["plain"]["ids"]:
                sys.exit(f"long_models.py: error: {name} generates other ids than plain")
            far = max(abs(a - b) for a, b in zip(first[name]["logits"], first["plain"]["logits"], strict=True))
            extra = first[name]["mib"] - first["plain"]["mib"]
            found[name] = {"difference": far, "kept_mib": first[name]["kept"], "extra_mib": extra}
            print(
                f"{name:22} ids equal, logits within {far:.0e}; {first[name]['kept']:.1f} of {budget} MiB kept, "
                f"{extra:,.0f} MiB more than plain at the peak"
            )
            if first[name]["kept"] > budget:
                sys.exit(f"long_models.py: error: {name} keeps more than its budget")
            for words in first[name]["dropped"]:
                print(f"{'':22} {words}")
        times: dict[str, list[list[float]]] = {name: [] for name in names}
        for _ in range(turns):
            for name in names:
                times[name].append(asked.ask(name, "seconds", *sizes))
        if "tiles" in sides:
            found["page"] = opened(Path(asked.ask("tiles", "page", *sizes)), turns)
    for name in names:
        prefill, step = (statistics.median(part) for part in zip(*times[name], strict=True))
        print(f"{name:22}{prefill:8.2f} s for the prompt{1e3 * step:9.2f} ms a new token")
        found.setdefault(name, {}).update(prompt_s=prefill, token_ms=1e3 * step)
    for name in sides:
        words = []
        for n, part in enumerate(("prompt", "tokens")):
            pairs = zip(times[name], times["plain"], strict=True)
            ratios = sorted(one[n] / other[n] for one, other in pairs)
            found[name][f"{part}_ratios"] = ratios
            words.append(f"{part} {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"{name:22} in the time of plain: {', '.join(words)}")
    bench.keep("long_models", found)


def opened(path: Path, turns: int) -> dict[str, Any]:
    """Return the size of a page, and how long it takes to open and to answer, and print them."""
    from page import visit
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("long_models.py: error: there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
        visits = [visit(browser, path) for _ in range(turns + 1)][1:]
        browser.close()
    seconds = [seconds for seconds, _ in visits]
    chosen = {kind: [ms for _, found in visits for ms in found[kind]] for kind in visits[0][1]}
    size = path.stat().st_size
    words = ", ".join(f"{kind} {statistics.median(ms):.0f} (at most {max(ms):.0f})" for kind, ms in chosen.items())
    print(
        f"page: {size / 1e6:.2f} MB, open in {statistics.median(seconds):.2f} s ({min(seconds):.2f} to "
        f"{max(seconds):.2f}); ms until a choice is painted: {words}"
    )
    return {"bytes": size, "open_s": seconds, "choice_ms": chosen}


class Clock:
    """Takes tokens as a streamer does, and notes when they came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: object) -> None:
        """Note the time at which the prompt, and then each token, came."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing."""


def side(name: str, folder: Path) -> None:
    """Run a side in its own process."""
    if name.endswith(HIDING):
        sys.modules["numba"] = None  # importing it fails
    from transformers import LlamaConfig, LlamaForCausalLM

    from glassformer import Want, capture, page
    from glassformer.page.views import LONG_INPUT_WANT

    linear = dict(entropy=True, received=True, distance=True, lse=True)
    wants = {
        "linear": Want(**linear),
        "scores": Want(**linear, max_score=True, sink=4),
        "tiles": LONG_INPUT_WANT,
        "weights": Want(weights=True),
    }
    want = wants.get(name.removesuffix(HIDING))
    models: dict[int, Any] = {}

    def make(layers: int, length: int) -> Any:
        torch.manual_seed(0)
        sizes = dict(hidden_size=512, intermediate_size=1408, num_attention_heads=8, num_key_value_heads=2)
        ends = dict(bos_token_id=None, eos_token_id=None, pad_token_id=0)
        config = LlamaConfig(vocab_size=1000, num_hidden_layers=layers, max_position_embeddings=length, **sizes, **ends)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter *= 2  # sharper than as initialised
        return model

    def generate(tokens: int, layers: int, new: int, budget: int) -> tuple[Any, Clock, float, Any]:
        if layers not in models:
            models[layers] = make(layers, tokens + new)
        model = models[layers]
        ids = torch.randint(1, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))
        clock, began = Clock(), time.perf_counter()
        seen = contextlib.nullcontext() if want is None else capture(model, want, budget=budget << 20)
        with torch.no_grad(), seen as captured:
            output = model.generate(
                ids,
                max_new_tokens=new,
                do_sample=False,
                streamer=clock,
                return_dict_in_generate=True,
                output_logits=True,
            )
        return output, clock, began, captured

    def answer(what: str, *sizes: int) -> Any:
        before = bench.status("VmRSS")
        output, clock, began, captured = generate(*sizes)
        if what == "seconds":
            (_, first, *_, last), count = clock.times, len(clock.times) - 2
            return first - began, (last - first) / count
        if what == "page":
            return str(page(captured, title=f"{sizes[0]:,} tokens").save(folder / "page.html"))
        kept = 0 if captured is None else bytes_kept(captured)
        return {
            "ids": output.sequences[0].tolist(),
            "logits": output.logits[0][0].tolist(),
            "mib": (bench.status("VmHWM") - before) / 1024,
            "kept": kept / 2**20,
            "dropped": [] if captured is None else list(captured.dropped.values())[:1],
        }

    bench.serve(answer)


def bytes_kept(captured: Any) -> int:
    """Return the memory of all tensors of a capture."""
    calls = (call for name in captured for call in captured.calls(name))
    return sum(x.untyped_storage().nbytes() for call in calls for x in call.tensors().values())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(sys.argv[2], Path(sys.argv[3]))
    else:
        tyro.cli(main)
