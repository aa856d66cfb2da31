"""glassformer.observe against scaled_dot_product_attention alone: what it costs to see the weights, in time and memory.

    python benchmarks/observe.py [--only short facts long train curve gpu sizes] [--draw]

8 heads of 64, float32, batch 1. `short`: 16,384 positions. `facts`: each fact alone, at 8,192. `long`: 65,536, where
all weights would take 137 GB; sampled rows are compared with explicit ones. `train`: a step at 4,096 with every head's
entropy in the loss. `curve`: time and memory from 64 to 65,536, drawn in docs/img/observe.png (extra `plots`), which
`--draw` does anew from the last curve on record. `gpu`: bfloat16 on a GPU. Results are checked for equality before
they are timed. Ratios are our time over SDPA's: lower is better, 1 is free. Everything is appended to
benchmarks/results/observe.jsonl.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor
from torch.testing import assert_close

from glassformer import MultiheadAttention, Want, attend, observe
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.weigh import weigh
from glassformer.pictures import ACCENT, INK, LABEL, MAIN, MUTED, SECOND, SMALL, new_figure, save_figure, style_axes

HEADS, WIDTH = 8, 64
LINEAR = Want(entropy=True, received=True, distance=True, lse=True)
WITH_TOP = Want(entropy=True, received=True, distance=True, lse=True, top=8)
SAMPLE = (0, 1, 777, 32_768, 65_535)
ALL = Want(entropy=True, received=True, distance=True, lse=True, top=8, rows=SAMPLE, pooled=1024)
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536]
SIDES = {"torch with weights": "weights", "SDPA alone": "sdpa", "observe": "ours", "observe, top-8 too": "top"}
IMAGES = Path(__file__).parents[1] / "docs" / "img"
Part = Literal["short", "facts", "long", "train", "curve", "gpu", "sizes"]
BLOCKS = {  # queries, keys and warps to try, by width
    64: [(128, 64, 8), (128, 64, 4), (128, 128, 8), (64, 64, 4)],
    128: [(64, 64, 8), (64, 64, 4), (128, 64, 8), (128, 128, 8)],
}


def main(only: tuple[Part, ...] = get_args(Part), seconds: float = 20.0, draw: bool = False) -> None:
    """Measure the parts named by `only`.

    Args:
        only: short, facts, long (about five minutes), train, curve (about ten), gpu, sizes.
        seconds: How long to repeat each pair of `short`, `train` and `gpu`.
        draw: Only draw the last curve on record.
    """
    if draw:
        draw_curve(bench.last("observe", "curve"))
        return
    print(bench.machine())
    measured: dict[str, Any] = {}
    for part in only:
        measured[part] = MEASURE[part](seconds)
    bench.keep("observe", measured)
    for part, found in measured.items():
        print(f"{part}: {found if isinstance(found, str) else found['summary']}")


def short(seconds: float) -> dict[str, Any]:
    length = 16_384
    q, k, v = inputs(length)
    found: dict[str, Any] = {}
    with torch.inference_mode():
        check_sample(q, k, v, (0, 77, length - 1))
        for name, want in (("linear", LINEAR), ("linear and top-8", WITH_TOP)):
            sides = partial(observe, q, k, v, want=want), partial(F.scaled_dot_product_attention, q, k, v)
            pair = bench.in_turn(*sides, seconds=seconds, least=5)
            extra = in_its_own_process("ours" if want == LINEAR else "top", length)["MiB"]
            found[name] = ratio_of(name, length, pair) | {"extra MiB": extra}
            print(f"  extra memory {extra:.0f} MiB")
    found["summary"] = ", ".join(f"{n} {x['ratio']:.2f} of SDPA, {x['extra MiB']:.0f} MiB" for n, x in found.items())
    return found


def facts(seconds: float) -> dict[str, Any]:
    """Time each fact alone against SDPA."""
    length = 8192
    q, k, v = inputs(length)
    wants = {
        "nothing": Want(),
        "lse": Want(lse=True),
        "entropy": Want(entropy=True),
        "received": Want(received=True),
        "distance": Want(distance=True),
        "top-8": Want(top=8),
        "8 rows": Want(rows=tuple(range(0, length, 1024))),
        "pooled 256": Want(pooled=256),
        "pooled_heads 256": Want(pooled_heads=256),
        "head_mean": Want(head_mean=True),
    }
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for name, want in wants.items():
            sides = partial(observe, q, k, v, want=want), partial(F.scaled_dot_product_attention, q, k, v)
            found[name] = ratio_of(name, length, bench.in_turn(*sides, seconds=seconds / 4, least=5))
    found["summary"] = ", ".join(f"{name} {x['ratio']:.2f}" for name, x in found.items())
    return found


def long(seconds: float) -> dict[str, Any]:
    """Run each side once in a process of its own, twice in turn."""
    del seconds
    length = LENGTHS[-1]
    runs = [(in_its_own_process("all", length), in_its_own_process("sdpa", length)) for _ in range(2)]
    for ours, theirs in runs:
        print(f"65,536: ours {ours['seconds']:.1f} s, {ours['MiB']:.0f} MiB extra; SDPA {theirs['seconds']:.1f} s")
    ratios = [ours["seconds"] / theirs["seconds"] for ours, theirs in runs]
    extra = max(ours["MiB"] for ours, _ in runs)
    summary = f"{ratios[0]:.2f} and {ratios[1]:.2f} of SDPA, {extra:.0f} MiB; sampled rows equal explicit ones"
    return {"runs": runs, "ratios": ratios, "summary": summary}


def train(seconds: float) -> dict[str, Any]:
    """Time a layer's forward and backward: with the entropy through observe, with explicit weights, and without."""
    length = 4096
    layer, x, towards = layer_and_input(length)
    ours, without, explicit = (partial(step, layer, x, towards, way) for way in ("observe", "none", "explicit"))
    assert_close(ours(), explicit(), atol=1e-4, rtol=1e-3)
    found = {
        "without": ratio_of("step, against without", length, bench.in_turn(ours, without, seconds=seconds)),
        "explicit": ratio_of("step, against explicit", length, bench.in_turn(ours, explicit, seconds=seconds)),
    }
    memory = {way: in_its_own_process(f"step-{way}", length)["MiB"] for way in ("observe", "none", "explicit")}
    print("  extra memory, MiB: " + ", ".join(f"{way} {extra:.0f}" for way, extra in memory.items()))
    summary = (
        f"{found['without']['ratio']:.2f} of the step without, {found['explicit']['ratio']:.2f} of explicit weights; "
        f"{memory['observe']:.0f} MiB extra, without {memory['none']:.0f}, explicit {memory['explicit']:.0f}"
    )
    return {**found, "memory": memory, "summary": summary}


def step(layer: MultiheadAttention, x: Tensor, towards: Tensor, way: str) -> list[Tensor]:
    """Compute gradients of a loss on the layer's output, and on its mean entropy unless `way` is none."""
    q, k, v = layer.project(x)
    if way == "observe":
        output, seen = observe(q, k, v, want=Want(entropy=True))
        entropy = seen.entropy
    elif way == "explicit":
        weights = weigh(q, k)
        output, entropy = weights @ v, torch.special.entr(weights).sum(-1)
    else:
        output, entropy = attend(q, k, v), torch.zeros(1)
    loss = (layer.out_proj(output.transpose(1, 2).flatten(2)) * towards).mean() + 0.1 * entropy.mean()
    return list(torch.autograd.grad(loss, list(layer.parameters())))


def curve(seconds: float) -> dict[str, Any]:
    del seconds
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found: dict[str, Any] = {"machine's memory": memory, **{name: [] for name in SIDES}}
    for length in LENGTHS:
        for name, side in SIDES.items():
            if side == "weights" and explicit_bytes(length) > memory / 2:
                continue
            found[name].append({"length": length, **in_its_own_process(side, length)})
            print(
                f"{length:6} {name:20} {found[name][-1]['seconds']:8.3f} s {found[name][-1]['MiB']:8.0f} MiB",
                flush=True,
            )
    draw_curve(found)
    ends = [next(x for x in found["observe"] if x["length"] == length) for length in (32_768, 65_536)]
    per_position = (ends[1]["MiB"] - ends[0]["MiB"]) / 32_768 * 1024
    slope = math.log2(ends[1]["MiB"] / ends[0]["MiB"])
    constant = ends[1]["MiB"] - 65_536 * per_position / 1024
    summary = f"memory is {constant:.0f} MiB and {per_position:.1f} KiB a position (slope at the end {slope:.2f})"
    return {**found, "summary": summary}


def explicit_bytes(length: int) -> int:
    """Return the bytes of all weights and of the scores that they are made from, which exist together."""
    return 2 * HEADS * length**2 * 4


def draw_curve(found: dict[str, Any]) -> None:
    """Draw time and memory of the sides, and where explicit weights are not measured what they would take."""
    figure = new_figure("the curve", figsize=(10.4, 4.6), dpi=110)
    panels = figure.subplots(1, 2)
    styles = {
        "torch with weights": dict(color=ACCENT, marker="o"),
        "SDPA alone": dict(color=MUTED, marker="s"),
        "observe": dict(color=MAIN, marker="^"),
        "observe, top-8 too": dict(color=SECOND, marker="v", linestyle="--"),
    }
    for axes, what in zip(panels, ("seconds", "MiB"), strict=True):
        for name, style in styles.items():
            points = found[name]
            axes.plot([x["length"] for x in points], [x[what] for x in points], label=name, markersize=5, **style)
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(LENGTHS, [short_length(n) for n in LENGTHS], minor=False)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
    last = found["torch with weights"][-1]["length"]
    beyond = [n for n in LENGTHS if n > last]
    if beyond:
        sizes = [found["torch with weights"][-1]["MiB"], *(explicit_bytes(n) / 2**20 for n in beyond)]
        panels[1].plot([last, *beyond], sizes, ":", color=ACCENT, label="what the weights and scores would take")
        panels[1].plot(beyond, sizes[1:], "o", color=ACCENT, markerfacecolor="white", markersize=5)
        first, longest = beyond[0], beyond[-1]
        size = explicit_bytes(first) / 2**30
        says = f"not measured: {short_length(first)} would take\n{size:.0f} GiB of weights and scores"
        if memory := found.get("machine's memory"):
            says += f",\nand this machine has {memory / 2**30:.0f} GiB"
        left: dict[str, Any] = dict(textcoords="offset points", ha="right", va="center", fontsize=SMALL, color=ACCENT)
        end = last, found["torch with weights"][-1]["seconds"]
        panels[0].annotate("stops here: see its memory", end, xytext=(-10, 8), **left)
        panels[1].annotate(says, (first, sizes[1]), xytext=(-12, 14), **left)
        most = f"{short_length(longest)}: {explicit_bytes(longest) / 2**30:.0f} GiB"
        panels[1].annotate(most, (longest, sizes[-1]), xytext=(-10, 0), **left)
    panels[0].legend()
    style_axes(panels[0], title="Time", x="length of queries and keys", y="seconds")
    style_axes(panels[1], title="Memory beyond the inputs", x="length of queries and keys", y="MiB")
    figure.suptitle(
        "8 heads of 64, float32, two CPU threads; observe gives entropy, received, distance and lse with the output",
        fontsize=LABEL,
        color=INK,
    )
    save_figure(figure, IMAGES / "observe.png")


def short_length(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 else str(length)


def gpu(seconds: float) -> dict[str, Any] | str:
    if not torch.cuda.is_available():
        return "not measured, no GPU here"
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def fused(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            output = F.scaled_dot_product_attention(q, k, v)
        torch.cuda.synchronize()
        return output

    def ours(want: Want, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output, _ = observe(q, k, v, want=want)
        torch.cuda.synchronize()
        return output

    print(torch.cuda.get_device_name())
    found: dict[str, Any] = {}
    wants = {"linear": LINEAR, "received": Want(received=True), "linear and top-8": WITH_TOP}
    for length in (1024, 2048, 4096, 8192, 16_384, 32_768):
        q, k, v = (x.to("cuda", torch.bfloat16) for x in inputs(length))
        with torch.inference_mode():
            backends = {}
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
                side = partial(fused, backend, q, k, v)
                try:
                    side()
                except RuntimeError as error:  # not built, or not for this GPU
                    print(f"  {backend.name}: {error}")
                    continue
                backends[backend.name] = side
            times = {name: bench.in_turn(side, side, seconds=1.0).ours for name, side in backends.items()}
            best = backends[min(times, key=times.__getitem__)]
            assert_close(ours(LINEAR, q, k, v), best(), atol=2e-2, rtol=2e-2)
            for name, want in wants.items():
                pair = bench.in_turn(partial(ours, want, q, k, v), best, seconds=min(seconds, 2.0), least=20)
                found[f"{name}, {length}"] = ratio_of(name, length, pair) | {"best": min(times, key=times.__getitem__)}
            found[f"received against flash-colreduce, {length}"] = against_flash_colreduce(q, k, seconds)
    worst = max(found[f"linear, {length}"]["ratio"] for length in (1024, 2048, 4096, 8192, 16_384, 32_768))
    return {**found, "summary": f"linear at most {worst:.2f} of the best SDPA backend"}


def sizes(seconds: float) -> dict[str, Any] | str:
    """Time the kernels that make the output with its facts, and the received weights, with blocks of several sizes."""
    if not torch.cuda.is_available():
        return "not measured, no GPU here"
    found: dict[str, Any] = {}
    kept = dict(choose.KERNEL_SIZES)
    wants = {"row facts": Want(entropy=True, distance=True, lse=True), "received too": LINEAR}
    for width, blocks in BLOCKS.items():
        q, k, v = (torch.randn(1, HEADS, 8192, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        for block in blocks:
            choose.KERNEL_SIZES[2, width] = block
            for name, want in wants.items():

                def side(want: Want = want, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> None:
                    observe(q, k, v, want=want)
                    torch.cuda.synchronize()

                found[f"{width}, {block}, {name}"] = bench.in_turn(side, side, seconds=min(seconds, 0.3)).ours
                print(f"  {width}, {block}, {name}: {found[f'{width}, {block}, {name}']:.3f} ms", flush=True)
        choose.KERNEL_SIZES.update(kept)
    return {**found, "summary": f"fastest {min(found, key=found.__getitem__)}"}


def against_flash_colreduce(q: Tensor, k: Tensor, seconds: float) -> dict[str, Any] | str:
    """Time the column sums alone."""
    try:
        from flash_colreduce import flash_colreduce
    except ImportError:
        return "not measured, flash-colreduce isn't installed"

    def theirs() -> Tensor:
        sums = flash_colreduce(q, k, reduction="sum")
        torch.cuda.synchronize()
        return sums

    def ours() -> Tensor:
        _, seen = observe(q, k, k, want=Want(received=True))
        torch.cuda.synchronize()
        return seen.received

    assert_close(ours(), theirs().float(), atol=2e-2, rtol=2e-2)
    return ratio_of("received, flash-colreduce", q.shape[2], bench.in_turn(ours, theirs, seconds=min(seconds, 2.0)))


def inputs(length: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, length, WIDTH) for _ in range(3)]


def layer_and_input(length: int) -> tuple[MultiheadAttention, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True)
    return layer, torch.randn(1, length, HEADS * WIDTH), torch.randn(1, length, HEADS * WIDTH)


def check_sample(q: Tensor, k: Tensor, v: Tensor, rows: tuple[int, ...]) -> None:
    """Check that observe's facts about some queries are those of their explicit weights, in float64."""
    want = Want(entropy=True, distance=True, lse=True, top=8, rows=rows)
    output, seen = observe(q, k, v, want=want)
    compare(output, seen, q, k, v, rows)


def compare(output: Tensor, seen: Any, q: Tensor, k: Tensor, v: Tensor, rows: tuple[int, ...]) -> None:
    queries = torch.tensor(rows)
    scores = q[:, :, queries].double() @ k.mT.double() / math.sqrt(WIDTH)
    weights = scores.softmax(-1)
    apart = (queries[:, None] - torch.arange(k.shape[2])).abs().double()
    for found, exact in (
        (seen.rows, weights),
        (output[:, :, queries], weights @ v.double()),
        (seen.lse[:, :, queries], scores.logsumexp(-1)),
        (seen.entropy[:, :, queries], torch.special.entr(weights).sum(-1)),
        (seen.distance[:, :, queries], (weights * apart).sum(-1)),
        (seen.top.weights[:, :, queries], weights.topk(8, -1).values),
    ):
        assert_close(found.double(), exact, atol=2e-5, rtol=2e-5)


def ratio_of(name: str, length: int, pair: bench.Pair) -> dict[str, Any]:
    """Return our time over theirs, from a pair that holds theirs over ours."""
    ratio, low, high = 1 / pair.ratio, 1 / pair.highest, 1 / pair.lowest
    print(
        f"{name}, {length}: ours {pair.ours:.0f} ms, other {pair.theirs:.0f} ms: {ratio:.2f} ({low:.2f} to {high:.2f})"
    )
    return {"ours ms": pair.ours, "other ms": pair.theirs, "ratio": ratio, "lowest": low, "highest": high}


def in_its_own_process(side: str, length: int) -> dict[str, float]:
    """Return the seconds and the peak of memory beyond the start, in MiB, of one call after a small one."""
    command = [sys.executable, __file__, f"--{side}", str(length)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def one_call(side: str, length: int) -> None:
    """Run the call that `in_its_own_process` measures."""
    if side.startswith("step-"):
        call, small = step_calls(side.removeprefix("step-"), length)
    else:
        call, small = partial(CALLS[side], *inputs(length)), partial(CALLS["ours"], *inputs(512))
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def peak() -> int:
        return int(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0])

    with torch.inference_mode(not side.startswith("step-")):
        repeats = max(1, min(5, 16_384 // length))
        small()  # libraries loaded, threads started
        clear.write_text("5")  # the peak starts from here
        before = peak()
        start = time.perf_counter()
        kept = call()
        times = [time.perf_counter() - start]
        extra = (peak() - before) / 1024
        for _ in range(repeats - 1):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        if side == "all":
            compare(*kept, *inputs(length), SAMPLE)
    print(json.dumps({"seconds": sorted(times)[len(times) // 2], "MiB": extra}))


def step_calls(way: str, length: int) -> list[Callable[[], object]]:
    return [partial(step, *layer_and_input(n), way) for n in (length, 512)]


def with_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention with all weights, as torch.nn.MultiheadAttention(need_weights=True) does."""
    weights = torch.softmax((q / math.sqrt(WIDTH)) @ k.mT, -1)
    return weights @ v, weights


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "sdpa": F.scaled_dot_product_attention,
    "ours": partial(observe, want=LINEAR),
    "top": partial(observe, want=WITH_TOP),
    "all": partial(observe, want=ALL),
    "weights": with_weights,
}
MEASURE = {"short": short, "facts": facts, "long": long, "train": train, "curve": curve, "gpu": gpu, "sizes": sizes}

if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].removeprefix("--") in {*CALLS, "step-observe", "step-none", "step-explicit"}:
        one_call(sys.argv[1].removeprefix("--"), int(sys.argv[2]))
    else:
        tyro.cli(main)
