"""glassformer.MultiheadAttention against torch.nn.MultiheadAttention: time and memory; on a GPU, the kernels by hand.

    python benchmarks/attention.py [--only infer train tiny half memory gpu] [--seconds 2]
    python benchmarks/attention.py --grid [--cells float32 1x8,32x64] [--seconds 0.3] [--limit 110] [--again 1.05]

The second form measures every way to call it (`attention_grid.py`), and prints the worst first.

Width 512, 8 heads. Both sides get the same inputs, weights and threads, run in turn, and are checked to agree first.
Torch runs with its fast path on, in both layouts: batch_first, where that is taken, and the default. Prints the
lowest ratio (torch's time over ours) of each part last, and appends everything to benchmarks/results/attention.jsonl.
Beside each float32 time stands what the products alone would take at the processor's measured peak: no float32
implementation can be faster than that.
"""

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import attention_grid
import bench
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import MultiheadAttention

WIDTH, HEADS = 512, 8
SIZES = [(32, 64), (4, 512), (1, 2048), (1, 4096)]  # batch x length
Part = Literal["infer", "train", "tiny", "half", "memory", "gpu"]


def main(
    only: tuple[Part, ...] = get_args(Part),
    seconds: float | None = None,
    threads: int | None = None,
    grid: bool = False,
    cells: tuple[str, ...] = (),
    file: Path = Path("runs/grid.jsonl"),
    limit: float = math.inf,
    again: float = 0.0,
    record: bool = False,
) -> None:
    """Measure the parts named by `only`, or the grid.

    Args:
        only: infer, train (both float32), tiny (1 x 8, width 64), half (bfloat16 and float16), memory, gpu.
        seconds: How long to repeat each pair: 2, or 0.3 in the grid.
        threads: Threads of both sides; torch's own number if not given.
        grid: Measure the grid in place of the parts.
        cells: Measure those cells of the grid alone that have one of the words of each of these.
        file: Where the grid's cells are kept. What stands there isn't measured again.
        limit: Seconds after which no cell of the grid is begun.
        again: Measure the cells again whose ratio was lower.
        record: Keep what stands in the file in results/attention.jsonl.
    """
    if threads:
        torch.set_num_threads(threads)
    if grid:
        attention_grid.measure(cells, 0.3 if seconds is None else seconds, file, limit, again, record)
        return
    seconds = 2.0 if seconds is None else seconds
    print(f"{bench.machine()}\n{'':58}{'torch':>9} {'':5}{'ours':>6}")
    measured: dict[str, Any] = {}
    for part in only:
        measured[part] = MEASURE[part](seconds)
    bench.keep("attention", measured)
    for part, rows in measured.items():
        print(f"{part}: {summary(rows)}")


def summary(rows: Any) -> str:
    if isinstance(rows, str):
        return rows
    worst = min(rows, key=lambda row: row["ratio"])
    return f"lowest ratio {worst['ratio']:.2f} ({worst['case']})"


def pair_of(width: int, heads: int, batch_first: bool, dtype: torch.dtype, dropout: float = 0.0, device: str = "cpu"):
    theirs = nn.MultiheadAttention(width, heads, dropout, batch_first=batch_first, dtype=dtype, device=device)
    ours = MultiheadAttention(width, heads, dropout, batch_first=batch_first, dtype=dtype, device=device)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def inputs(batch: int, length: int, width: int, batch_first: bool, dtype: torch.dtype, padded: bool):
    x = torch.randn((batch, length, width) if batch_first else (length, batch, width), dtype=dtype)
    padding = None
    if padded:  # a quarter of every sequence but the first
        padding = torch.arange(length).expand(batch, length) >= 3 * length // 4
        padding = padding.clone()
        padding[0] = padding[0] & (batch == 1)
    return x, padding


def infer(seconds: float, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> list[dict[str, Any]]:
    rows = []
    cases = itertools.product(dtypes, (True, False), SIZES, (True, False), (False, True))
    for dtype, batch_first, (batch, length), need_weights, padded in cases:
        ours, theirs = (module.eval() for module in pair_of(WIDTH, HEADS, batch_first, dtype))
        x, padding = inputs(batch, length, WIDTH, batch_first, dtype, padded)
        call = {"need_weights": need_weights, "key_padding_mask": padding}
        with torch.inference_mode():
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            assert_close(ours(x, x, x, **call), theirs(x, x, x, **call), atol=tolerance, rtol=1e-2)
            found = bench.in_turn(partial(ours, x, x, x, **call), partial(theirs, x, x, x, **call), seconds=seconds)
        floor = products(batch, length) / peak_rate() if dtype == torch.float32 else None
        rows.append(row(name(dtype, batch_first, batch, length, need_weights, padded), found, floor))
    return rows


def half(seconds: float) -> list[dict[str, Any]]:
    return infer(seconds, (torch.bfloat16, torch.float16))


def train(seconds: float) -> list[dict[str, Any]]:
    """Time forward and backward. Dropout draws differ, so the sides are compared without it and timed with it."""
    rows = []
    cases = itertools.product((True, False), SIZES, (True, False), (False, True))
    for batch_first, (batch, length), need_weights, padded in cases:
        ours, theirs = pair_of(WIDTH, HEADS, batch_first, torch.float32, dropout=0.1)
        x, padding = inputs(batch, length, WIDTH, batch_first, torch.float32, padded)
        x.requires_grad_()
        towards = torch.randn_like(x)

        def step(module: nn.Module, x=x, towards=towards, need_weights=need_weights, padding=padding) -> list[Tensor]:
            output, _ = module(x, x, x, need_weights=need_weights, key_padding_mask=padding)
            return list(torch.autograd.grad(output, [x, *module.parameters()], towards))

        ours.dropout = theirs.dropout = 0.0
        assert_close(step(ours), step(theirs), atol=1e-2, rtol=1e-3)
        ours.dropout = theirs.dropout = 0.1
        found = bench.in_turn(partial(step, ours), partial(step, theirs), seconds=seconds, least=3)
        floor = 3 * products(batch, length) / peak_rate()
        rows.append(row(name(torch.float32, batch_first, batch, length, need_weights, padded), found, floor))
    return rows


def tiny(seconds: float) -> list[dict[str, Any]]:
    rows = []
    for batch_first, need_weights, padded, grad in itertools.product((True, False), repeat=4):
        ours, theirs = (module.eval() for module in pair_of(64, HEADS, batch_first, torch.float32))
        x, padding = inputs(1, 8, 64, batch_first, torch.float32, padded)
        call = {"need_weights": need_weights, "key_padding_mask": padding}
        with torch.set_grad_enabled(grad):
            assert_close(ours(x, x, x, **call), theirs(x, x, x, **call))
            sides = [partial(often, partial(module, x, x, x, **call)) for module in (ours, theirs)]
            found = bench.in_turn(*sides, seconds=seconds)
        case = name(torch.float32, batch_first, 1, 8, need_weights, padded)
        rows.append(row(case + (", with grad" if grad else ""), found))
    return rows


def often(side: Callable[[], object]) -> None:
    for _ in range(20):
        side()


def memory(seconds: float) -> list[dict[str, Any]]:
    """Measure the peak of memory beyond the start, with head-averaged weights at 1 x 4096, in a process each."""
    del seconds
    rows = []
    for batch_first in (True, False):
        peaks = {}
        for side in ("ours", "theirs"):
            command = [sys.executable, __file__, "--only", f"{side}-{batch_first}"]
            peaks[side] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        case = f"{'batch first' if batch_first else 'length first'}, 1x4096, weights"
        print(f"{case:56} {peaks['theirs']:6.0f} MiB {peaks['ours']:6.0f} MiB")
        rows.append({"case": case, **peaks, "ratio": peaks["theirs"] / peaks["ours"]})
    return rows


def peak(side: str, batch_first: bool) -> None:
    """Run what `memory` measures, in a process of its own."""
    ours, theirs = (module.eval() for module in pair_of(WIDTH, HEADS, batch_first, torch.float32))
    module = ours if side == "ours" else theirs
    x, _ = inputs(1, 4096, WIDTH, batch_first, torch.float32, padded=False)
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    with torch.inference_mode():
        small = x[:, :256].contiguous() if batch_first else x[:256].contiguous()
        module(small, small, small)  # libraries loaded, threads started
        clear.write_text("5")  # the peak starts from here
        before = int(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0])
        kept = module(x, x, x)
        print((int(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0]) - before) / 1024)
    del kept


def gpu(seconds: float) -> list[dict[str, Any]] | str:
    """Compare the module with the same projections and SDPA written by hand: what it adds around the kernels."""
    if not torch.cuda.is_available():
        return "not measured, no GPU here"
    print(torch.cuda.get_device_name())
    lengths = (64, 256, 1024, 4096, 16384, 32768)
    return [
        gpu_row(dtype, length, causal, seconds)
        for dtype, length, causal in itertools.product((torch.bfloat16, torch.float16), lengths, (False, True))
    ]


def gpu_row(
    dtype: torch.dtype, length: int, causal: bool, seconds: float, width: int = 1024, device: str = "cuda"
) -> dict[str, Any]:
    batch, heads = max(1, 16384 // length), width // 64
    ours = MultiheadAttention(width, heads, batch_first=True, dtype=dtype, device=device).eval()
    x = torch.randn(batch, length, width, dtype=dtype, device=device)
    # Under the causal hint the mask isn't read: one number in the shape of a mask will do.
    mask = torch.zeros((), dtype=torch.bool, device=device).expand(length, length) if causal else None

    def by_hand() -> Tensor:
        q, k, v = F.linear(x, ours.in_proj_weight, ours.in_proj_bias).unflatten(-1, (3, heads, 64)).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return ours.out_proj(seen.transpose(1, 2).flatten(2))

    def through_module() -> Tensor:
        return ours(x, x, x, need_weights=False, attn_mask=mask, is_causal=causal)[0]

    with torch.inference_mode():
        assert_close(through_module(), by_hand(), atol=2e-2, rtol=2e-2)
        sides = [synchronised(side, device) for side in (through_module, by_hand)]
        found = bench.in_turn(*sides, seconds=seconds, least=20)
    return row(f"{str(dtype).removeprefix('torch.')}, {batch}x{length}{', causal' if causal else ''}", found)


def synchronised(side: Callable[[], object], device: str) -> Callable[[], None]:
    def run() -> None:
        side()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def products(batch: int, length: int) -> float:
    """Return the operations of one call's matrix products: four projections, q kᵀ, and the weights times v."""
    return batch * length * (8.0 * WIDTH * WIDTH + 4.0 * length * WIDTH)


@cache
def peak_rate() -> float:
    """Return the operations per millisecond of the fastest float32 product, through either library."""
    x, weight = torch.randn(4096, WIDTH), torch.randn(3 * WIDTH, WIDTH)
    rates = []
    for product in (F.linear, lambda x, w: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")):
        with torch.inference_mode():
            found = bench.in_turn(partial(product, x, weight), partial(product, x, weight), seconds=0.5)
        rates.append(2.0 * x.numel() * weight.shape[0] / min(found.ours, found.theirs))
    print(f"peak of float32 products: MKL {rates[0] / 1e6:.0f}, oneDNN {rates[1] / 1e6:.0f} GFLOP/s")
    return max(rates)


def name(dtype: torch.dtype, batch_first: bool, batch: int, length: int, need_weights: bool, padded: bool) -> str:
    layout = "batch first" if batch_first else "length first"
    kind = str(dtype).removeprefix("torch.")
    return f"{kind}, {layout}, {batch}x{length}{', weights' if need_weights else ''}{', padding' if padded else ''}"


def row(case: str, found: bench.Pair, floor: float | None = None) -> dict[str, Any]:
    most = "" if floor is None else f"   products alone {floor:7.2f} ms: at most {found.theirs / floor:.2f}"
    print(f"{case:56} {found}{most}", flush=True)
    return {"case": case, **vars(found)} | ({} if floor is None else {"products": floor})


MEASURE = {"infer": infer, "train": train, "tiny": tiny, "half": half, "memory": memory, "gpu": gpu}

if __name__ == "__main__":
    if len(sys.argv) == 3 and "-" in sys.argv[2]:
        side, batch_first = sys.argv[2].split("-")
        peak(side, batch_first == "True")
    else:
        tyro.cli(main)
