"""Attention and facts about its weights on a GPU: the launches of the kernels in triton.py."""

import math
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.statistics import Facts
from glassformer.attention.kernels.triton import attend, average, pool, rank, receive
from glassformer.attention.kernels.weigh import weigh
from glassformer.attention.want import Want, tile_size

_LOG2_E = math.log2(math.e)


def attend_with_kernels(problem: Problem, want: Want) -> tuple[Tensor, Facts]:
    """Return softmax(q kᵀ scale + bias) v, and what is wanted of its weights.

    Raises OutOfResources on a GPU that is too small.
    """
    batch, heads, q_len, _ = problem.q.shape
    k_len = problem.k.shape[2]
    output = problem.v.new_empty(batch, q_len, heads, problem.v.shape[3]).transpose(1, 2)

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=problem.q.device)

    per_query = (batch, heads, q_len)
    peak, tilt = numbers(*per_query), numbers(*per_query)
    facts = {name: numbers(*per_query) for name in ("entropy", "distance") if getattr(want, name)}
    inputs, settings = _common(problem)
    down, across = _parts(q_len, settings["M"]), _parts(k_len, settings["N"])
    written = (facts.get("entropy", peak), facts.get("distance", peak))  # peak: not written to
    values = (problem.v, *problem.v.stride(), output, *output.stride())
    e = problem.v.shape[3]
    width = {"E": e, "WIDTH_E": _width(e), "FULL_E": e == _width(e)}
    asked = {"ENTROPY": want.entropy, "DISTANCE": want.distance}
    _launch(attend, down * batch * heads, *inputs, *values, peak, tilt, *written, **settings, **width, **asked)
    inputs = (*inputs, peak, tilt)
    settings["num_warps"] = choose.KERNEL_WARPS
    if want.received:
        facts["received"] = numbers(batch, heads, k_len)
        _launch(receive, across * batch * heads, *inputs, facts["received"], **settings)
    if want.head_mean:
        facts["head_mean"] = torch.empty(batch, q_len, k_len, dtype=problem.q.dtype, device=problem.q.device)
        _launch(average, down * across * batch, *inputs, facts["head_mean"], **settings)
    if want.pooled:
        facts["pooled"] = _pooled(problem, inputs, settings, want.pooled, groups=(batch,))
    if want.pooled_heads:
        facts["pooled_heads"] = _pooled(problem, inputs, settings, want.pooled_heads, groups=(batch, heads))
    if want.top:
        top = numbers(*per_query, want.top)
        keys = torch.empty(top.shape, dtype=torch.int64, device=problem.q.device)
        slots = _power_of_2(max(2, want.top))
        _launch(rank, down * batch * heads, *inputs, top, keys, **settings, K=want.top, SLOTS=slots)
        facts["top"], order = top.sort(-1, descending=True)
        facts["top_keys"] = keys.gather(-1, order).masked_fill_(facts["top"] == 0, -1)
    if want.rows:
        facts["rows"] = _rows(problem, want)
    if want.lse:
        facts["lse"] = (peak + tilt) / _LOG2_E
    return output, facts


def _common(problem: Problem) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that all kernels begin with, and those passed by name."""
    q, k = problem.q, problem.k
    shape = (*q.shape[:3], k.shape[2])
    keep = q if problem.keep is None else problem.keep.expand(shape)
    bias = q if problem.bias is None else problem.bias.expand(shape)
    size = q.element_size()
    width = max(_width(q.shape[3]), _width(problem.v.shape[3]))
    m, n, warps = choose.KERNEL_SIZES[size, min(w for s, w in choose.KERNEL_SIZES if s == size and w >= width)]
    exact = q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    settings = dict(
        rate=problem.scale * _LOG2_E,
        H=q.shape[1],
        G=q.shape[1] // k.shape[1],
        L=q.shape[2],
        S=k.shape[2],
        offset=problem.offset,
        D=q.shape[3],
        WIDTH_D=_width(q.shape[3]),
        FULL_D=q.shape[3] == _width(q.shape[3]),
        KEEP=problem.keep is not None,
        BIAS=problem.bias is not None,
        CAUSAL=problem.causal,
        PRECISION="ieee" if exact else "tf32",  # without effect on half precision
        M=m,
        N=n,
        num_warps=warps,
        num_stages=choose.kernel_stages(_shared_memory(q.device)),
    )
    return (q, *q.stride(), k, *k.stride(), keep, *keep.stride(), bias, *bias.stride()), settings


def _shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program may take; 0 where nobody says (AMD's GPUs, the interpreter)."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", 0)


def _launch(kernel: Any, programs: int, *arguments: object, **settings: object) -> None:
    kernel[(programs,)](*arguments, **settings)


def _parts(length: int, size: int) -> int:
    return -(-length // size)


def _power_of_2(n: int) -> int:
    """Return the least power of 2 that is n or more."""
    return 1 << (n - 1).bit_length()


def _width(d: int) -> int:
    return max(16, _power_of_2(d))


def _pooled(
    problem: Problem, inputs: tuple[Any, ...], settings: dict[str, Any], most: int, groups: tuple[int, ...]
) -> Tensor:
    """Return tiles of each group of heads: an entry's mean, or single heads. A large tile has several programs."""
    lengths = problem.q.shape[2], problem.k.shape[2]
    rows, keys = (tile_size(length, most) for length in lengths)
    tiles = [_parts(length, size) for length, size in zip(lengths, (rows, keys), strict=True)]
    parts = [_parts(size, choose.KERNEL_TILE) for size in (rows, keys)]
    shape = (math.prod(groups), tiles[0], parts[0], tiles[1], parts[1])
    pooled = torch.empty(shape, dtype=torch.float32, device=problem.q.device)
    small = {name: max(16, min(settings[name], _power_of_2(n))) for name, n in (("M", rows), ("N", keys))}
    tile = dict(ROWS=rows, KEYS=keys, MOST_ROWS=choose.KERNEL_TILE, MOST_KEYS=choose.KERNEL_TILE)
    heads = math.prod(problem.q.shape[:2]) // math.prod(groups)
    _launch(pool, pooled.numel(), *inputs, pooled, **{**settings, **small}, **tile, HEADS=heads)
    return pooled.sum((2, 4)).view(*groups, *tiles)


def _rows(problem: Problem, want: Want) -> Tensor:
    """Return the weights of a few queries, in torch's operations."""
    device, k_len = problem.q.device, problem.k.shape[2]
    shape = (*problem.q.shape[:3], k_len)
    chosen = torch.arange(problem.q.shape[1], device=device)
    if want.row_heads is not None:
        chosen = chosen[list(want.row_heads)]
    queries = torch.arange(problem.q.shape[2], device=device)[list(want.rows)]

    def cut(x: Tensor) -> Tensor:
        return x[:, chosen[:, None], queries]  # in one step: a mask expanded to all heads isn't copied

    keep = None if problem.keep is None else cut(problem.keep.expand(shape))
    if problem.causal:
        before = torch.arange(k_len, device=device) <= (queries + problem.offset)[:, None]
        keep = before[None, None] if keep is None else keep & before
    bias = None if problem.bias is None else cut(problem.bias.expand(shape)).float()
    keys = problem.k[:, problem.key_heads[chosen]].float()
    return weigh(cut(problem.q).float(), keys, keep=keep, bias=bias, scale=problem.scale)
