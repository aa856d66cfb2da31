"""The grid of `benchmarks/attention.py --grid`: every way to call the drop-in, each against torch, the worst first.

A cell is measured in a fraction of a second, or in a few runs where a run takes longer. It is kept in a file at once,
so that the grid can be measured in parts: a cell that is in the file isn't measured again, unless its ratio is low
and `--again` asks for it.
"""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import bench
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import MultiheadAttention

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZES = {"1x8": (1, 8), "32x64": (32, 64), "4x512": (4, 512), "1x2048": (1, 2048), "1x4096": (1, 4096)}
WEIGHTS = {"averaged": (True, True), "per-head": (True, False), "none": (False, True)}
MASKS = ("open", "padding", "causal", "float-mask")
WIDTH, SMALL_WIDTH, HEADS, DROPOUT = 512, 64, 8, 0.1
LEAST = 0.97
"""The lowest ratio (torch's time over ours) that counts as not slower."""
CLEAR = 1.3
"""A ratio from which a long cell needs no further runs."""
ENDLESS, VERY_CLEAR = 1000.0, 2.0
"""Milliseconds of torch's, and a ratio, from which the run that checks results (without dropout) is the only one."""
LONG = 1024
"""Queries from which a cell should come near its floor, and by how much of it."""
NEAR = 0.85
TOLERANCE = {"float32": (1e-2, 1e-3), "bfloat16": (6e-2, 4e-2), "float16": (2e-2, 1e-2)}


@dataclass(frozen=True)
class Cell:
    """One way to call attention: a value of each axis of the grid."""

    dtype: str
    size: str
    weights: str
    mask: str
    layout: str
    kind: str
    mode: str

    def __str__(self) -> str:
        return " ".join(asdict(self).values())

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Return batch, queries, keys and width: queries of another sequence look at three quarters as many keys."""
        batch, length = SIZES[self.size]
        return batch, length, length if self.kind == "self" else 3 * length // 4, SMALL_WIDTH if length < 64 else WIDTH


CELLS = [
    Cell(*values)
    for values in itertools.product(
        DTYPES, SIZES, WEIGHTS, MASKS, ("batch-first", "length-first"), ("self", "cross"), ("eval", "training")
    )
]


def measure(chosen: tuple[str, ...], seconds: float, file: Path, limit: float, again: float, record: bool) -> None:
    """Measure the cells that have one of the words of each choice (`float32,float16 1x8 eval`), and print the worst.

    Those that stand in `file` are left out, unless their ratio is below `again`. None is begun after `limit` seconds.
    With `record` what stands there of the chosen cells is appended to results/attention.jsonl.
    """
    began = time.perf_counter()
    known = read(file)
    wanted = [cell for cell in CELLS if all(set(words.split(",")) & set(str(cell).split()) for words in chosen)]
    missing = [cell for cell in wanted if str(cell) not in known or known[str(cell)]["ratio"] < again]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as kept:
        for cell in missing:
            if time.perf_counter() - began > limit:
                print(f"stopped after {limit:.0f} s: run it again for what is missing")
                break
            row = measure_cell(cell, seconds)
            known[str(cell)] = row
            kept.write(json.dumps(row) + "\n")
            kept.flush()
    # A busy moment makes a rate too low: the best that was seen with any cell counts.
    rates = {cell.dtype: 0.0 for cell in wanted}
    for row in known.values():
        dtype = row["case"].split()[0]
        rates[dtype] = max(row["rate"], rates.get(dtype, 0.0))
    memory = max((row["memory"] for row in known.values()), default=0.0)
    measured = [cell for cell in wanted if str(cell) in known]
    rows = [known[str(cell)] | {"floor": floor(cell, rates[cell.dtype], memory)} for cell in measured]
    report(rows)
    if record:
        bench.keep(
            "attention", {"grid": summary(rows) | {"cells": {row["case"]: round(row["ratio"], 3) for row in rows}}}
        )


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by their cells; the last one of each counts."""
    if not file.exists():
        return {}
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {row["case"]: row for row in rows}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    worst = min(rows, key=lambda row: row["ratio"])
    long = [row for row in rows if SIZES[row["case"].split()[1]][1] >= LONG]
    return {
        "measured": len(rows),
        "worst": worst["case"],
        "ratio": worst["ratio"],
        "below": sum(row["ratio"] < LEAST for row in rows),
        "short_of_two": sum(row["ratio"] < 2 <= row["theirs"] / row["floor"] for row in rows),
        "long": len(long),
        "long_near_floor": sum(row["floor"] / row["ours"] >= NEAR for row in long),
    }


def report(rows: list[dict[str, Any]], most: int = 60) -> None:
    """Print the cells with the lowest ratios, and how many there are below the bound."""
    for row in sorted(rows, key=lambda row: row["ratio"])[:most]:
        print(line(row))
    if rows:
        found = summary(rows)
        print(
            f"{found['measured']} cells, worst {found['ratio']:.2f} ({found['worst']}), "
            f"below {LEAST}: {found['below']}; "
            f"below 2 where the floor allows it: {found['short_of_two']}; from {LONG} queries on within {NEAR:.0%} of "
            f"the floor: {found['long_near_floor']} of {found['long']}"
        )


def line(row: dict[str, Any]) -> str:
    pair = bench.Pair(*(row[name] for name in ("ours", "theirs", "ratio", "lowest", "highest")))
    return f"{row['case']:66} {pair}  floor {row['floor']:8.3f} ms, {row['floor'] / row['ours']:4.0%} of ours"


def measure_cell(cell: Cell, seconds: float) -> dict[str, Any]:
    """Check that both sides agree, then time them."""
    torch.manual_seed(0)
    batch, q_len, k_len, width = cell.sizes
    dtype, batch_first = DTYPES[cell.dtype], cell.layout == "batch-first"
    theirs = nn.MultiheadAttention(width, HEADS, DROPOUT, batch_first=batch_first, dtype=dtype)
    ours = MultiheadAttention(width, HEADS, DROPOUT, batch_first=batch_first, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    training = cell.mode == "training"
    query, memory = (
        torch.randn((batch, length, width) if batch_first else (length, batch, width))
        .to(dtype)
        .requires_grad_(training)
        for length in (q_len, k_len)
    )
    memory = query if cell.kind == "self" else memory
    need_weights, average = WEIGHTS[cell.weights]
    call = masks(cell) | {"need_weights": need_weights, "average_attn_weights": average}
    towards = torch.randn(query.shape).to(dtype)

    def run(module: nn.Module) -> list[Tensor]:
        output, weights = module(query, memory, memory, **call)
        if not training:
            return [output] if weights is None else [output, weights]
        leaves = list(dict.fromkeys((query, memory)))
        return [output.detach(), *torch.autograd.grad(output, [*leaves, *module.parameters()], towards)]

    with torch.inference_mode(not training):
        for module in (ours, theirs):
            module.train(training)
            module.dropout = 0.0
        began = time.perf_counter()
        one = run(ours)
        between = time.perf_counter()
        other = run(theirs)
        first = 1e3 * (between - began), 1e3 * (time.perf_counter() - between)
        check(cell, one, other)
        del one, other
        ours.dropout = theirs.dropout = DROPOUT
        if first[1] > max(ENDLESS, VERY_CLEAR * first[0]):
            ratio = first[1] / first[0]
            found = bench.Pair(*first, ratio, ratio, ratio)
        else:
            found = in_pairs(partial(run, ours), partial(run, theirs), seconds)
    rate, memory = peak_rate(cell.dtype), bandwidth()
    row = {"case": str(cell), **asdict(found), "floor": floor(cell, rate, memory), "rate": rate, "memory": memory}
    print(line(row), flush=True)
    return row


def masks(cell: Cell) -> dict[str, Any]:
    """Return the arguments that say what may be looked at: padding is a quarter of every sequence but the first."""
    batch, q_len, k_len, _ = cell.sizes
    if cell.mask == "padding":
        padding = torch.arange(k_len).expand(batch, k_len) >= 3 * k_len // 4
        padding = padding.clone()
        padding[0] &= batch == 1
        return {"key_padding_mask": padding}
    if cell.mask == "causal":
        return {"attn_mask": torch.ones(q_len, k_len, dtype=torch.bool).triu(1), "is_causal": True}
    if cell.mask == "float-mask":
        return {"attn_mask": torch.randn(q_len, k_len).to(DTYPES[cell.dtype])}
    return {}


def check(cell: Cell, ours: list[Tensor], theirs: list[Tensor]) -> None:
    """Compare both sides in units of each tensor's own size."""
    atol, rtol = TOLERANCE[cell.dtype]
    for one, other in zip(ours, theirs, strict=True):
        scale = max(1e-6, other.float().abs().max().item())
        assert_close(one.float(), other.float(), atol=atol * scale, rtol=rtol, msg=partial("{} {}".format, cell))


def in_pairs(ours: Callable[[], object], theirs: Callable[[], object], seconds: float) -> bench.Pair:
    """Time both sides in turn, the first of a pair changing; few pairs where a run is long and the result is clear."""
    once = min(timed(ours, 1) + timed(theirs, 1) for _ in range(2 if seconds else 1)) / 1e3
    often = max(1, min(50, int(0.01 / once)))
    times: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    while True:
        for n in (0, 1) if len(times[0]) % 2 else (1, 0):
            times[n].append(timed((ours, theirs)[n], often))
        ratios = sorted(b / a for a, b in zip(*times, strict=True))
        elapsed, ratio = time.perf_counter() - began, statistics.median(ratios)
        enough = len(ratios) >= 7 or (len(ratios) >= 2 and ratio > CLEAR) or (len(ratios) >= 5 and once > 1)
        if enough and (elapsed > seconds or once > 1):
            break
    quarter = len(ratios) // 4
    medians = [statistics.median(kept) for kept in times]
    return bench.Pair(*medians, ratio, ratios[quarter], ratios[-1 - quarter])


def timed(side: Callable[[], object], often: int) -> float:
    """Return the milliseconds of one run."""
    start = time.perf_counter()
    for _ in range(often):
        side()
    return 1e3 * (time.perf_counter() - start) / often


def floor(cell: Cell, rate: float, memory: float) -> float:
    """Return the milliseconds below which nobody gets.

    The products at the best `rate` of any library and shape here, and one pass at the speed of `memory` over what must
    be read and written. Keys that no query may look at cost nothing; training takes three times the products of a
    forward pass.
    """
    batch, q_len, k_len, width = cell.sizes
    seen = batch * q_len * k_len
    if cell.mask == "causal":
        seen = batch * sum(min(n + 1, k_len) for n in range(q_len))
    elif cell.mask == "padding":
        seen = q_len * (3 * k_len // 4) * batch if batch == 1 else q_len * (k_len + (batch - 1) * (3 * k_len // 4))
    training = cell.mode == "training"
    operations = (4.0 * batch * (q_len + k_len) * width * width + 4.0 * seen * width) * (3 if training else 1)
    numbers = 4 * width * width + batch * width * (2 * q_len + (k_len if cell.kind == "cross" else 0))
    numbers *= 2 if training else 1
    numbers += {"averaged": 1, "per-head": HEADS, "none": 0}[cell.weights] * batch * q_len * k_len
    numbers += q_len * k_len if cell.mask == "float-mask" else 0
    return 1e3 * (operations / rate + numbers * DTYPES[cell.dtype].itemsize / memory)


@cache
def peak_rate(dtype: str) -> float:
    """Return the operations a second of the fastest product."""
    kind = DTYPES[dtype]
    x, weight, square = (torch.randn(n, m).to(kind) for n, m in ((4096, WIDTH), (3 * WIDTH, WIDTH), (2048, 2048)))
    q, k = torch.randn(HEADS, 512, 64).to(kind), torch.randn(HEADS, 64, 2048).to(kind)
    sides: list[tuple[Callable[[], Tensor], float]] = [
        (partial(F.linear, x, weight), 2.0 * x.numel() * len(weight)),
        (partial(torch.mm, square, square), 2.0 * 2048**3),
        (partial(torch.bmm, q, k), 2.0 * q.numel() * k.shape[2]),
    ]
    if kind == torch.float16:  # may be computed in float32, and the others may take seconds
        sides = sides[:1]
    elif torch.backends.mkldnn.is_available():
        through_onednn = partial(torch.ops.mkldnn._linear_pointwise, x, weight, None, "none", [], "")
        sides.append((through_onednn, sides[0][1]))
    with torch.inference_mode():
        rate = max(1e3 * operations / min(timed(side, 1) for _ in range(8)) for side, operations in sides)
    rate = max(rate, peak_rate("float32")) if kind == torch.float16 else rate
    print(f"peak of {dtype} products: {rate / 1e9:.0f} GFLOP/s")
    return rate


@cache
def bandwidth() -> float:
    """Return the bytes a second that a copy reads and writes."""
    x = torch.ones(1 << 25)
    y = torch.empty_like(x)
    bytes_ = 2 * x.numel() * x.itemsize
    rate = 1e3 * bytes_ / min(timed(partial(y.copy_, x), 1) for _ in range(8))
    print(f"memory: {rate / 1e9:.0f} GB/s")
    return rate if math.isfinite(rate) else 1.0
