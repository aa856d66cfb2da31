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
_MOST_OF_A_TILE = 256  # rows and keys of a tile that one program sums


def attend_with_kernels(of: Problem, want: Want) -> tuple[Tensor, Facts]:
    """softmax(q kᵀ scale + bias) v, and what is wanted of its weights. Raises OutOfResources on a GPU too small."""
    batch, heads, q_len, _ = of.q.shape
    k_len = of.k.shape[2]
    output = of.v.new_empty(batch, q_len, heads, of.v.shape[3]).transpose(1, 2)

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=of.q.device)

    per_query = (batch, heads, q_len)
    peak, tilt = numbers(*per_query), numbers(*per_query)
    found = {name: numbers(*per_query) for name in ("entropy", "distance") if getattr(want, name)}
    inputs, settings = _common(of)
    down, across = _parts(q_len, settings["M"]), _parts(k_len, settings["N"])
    facts = (found.get("entropy", peak), found.get("distance", peak))  # peak: not written to
    values = (of.v, *of.v.stride(), output, *output.stride())
    width = {"E": of.v.shape[3], "WIDTH_E": _width(of.v.shape[3])}
    asked = {"ENTROPY": want.entropy, "DISTANCE": want.distance}
    _launch(attend, down * batch * heads, *inputs, *values, peak, tilt, *facts, **settings, **width, **asked)
    inputs = (*inputs, peak, tilt)
    if want.received:
        found["received"] = numbers(batch, heads, k_len)
        _launch(receive, across * batch * heads, *inputs, found["received"], **settings)
    if want.head_mean:
        found["head_mean"] = torch.empty(batch, q_len, k_len, dtype=of.q.dtype, device=of.q.device)
        _launch(average, down * across * batch, *inputs, found["head_mean"], **settings)
    if want.pooled:
        found["pooled"] = _pooled(of, inputs, settings, want.pooled, groups=(batch,))
    if want.pooled_heads:
        found["pooled_heads"] = _pooled(of, inputs, settings, want.pooled_heads, groups=(batch, heads))
    if want.top:
        top = numbers(*per_query, want.top)
        keys = torch.empty(top.shape, dtype=torch.int64, device=of.q.device)
        slots = _power_of_2(max(2, want.top))
        _launch(rank, down * batch * heads, *inputs, top, keys, **settings, K=want.top, SLOTS=slots)
        found["top"], order = top.sort(-1, descending=True)
        found["top_keys"] = keys.gather(-1, order).masked_fill_(found["top"] == 0, -1)
    if want.rows:
        found["rows"] = _rows(of, want)
    if want.lse:
        found["lse"] = (peak + tilt) / _LOG2_E
    return output, found


def _common(of: Problem) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that all kernels begin with, and those they name."""
    q, k = of.q, of.k
    shape = (*q.shape[:3], k.shape[2])
    keep = q if of.keep is None else of.keep.expand(shape)
    bias = q if of.bias is None else of.bias.expand(shape)
    size = q.element_size()
    width = max(_width(q.shape[3]), _width(of.v.shape[3]))
    m, n, warps = choose.KERNEL_SIZES[size, min(w for s, w in choose.KERNEL_SIZES if s == size and w >= width)]
    exact = q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    settings = dict(
        rate=of.scale * _LOG2_E,
        H=q.shape[1],
        G=q.shape[1] // k.shape[1],
        L=q.shape[2],
        S=k.shape[2],
        offset=k.shape[2] - q.shape[2] if of.causal else 0,
        D=q.shape[3],
        WIDTH_D=_width(q.shape[3]),
        KEEP=of.keep is not None,
        BIAS=of.bias is not None,
        CAUSAL=of.causal,
        PRECISION="ieee" if exact else "tf32",  # without effect on half precision
        M=m,
        N=n,
        num_warps=warps,
        num_stages=2,
    )
    return (q, *q.stride(), k, *k.stride(), keep, *keep.stride(), bias, *bias.stride()), settings


def _launch(kernel: Any, programs: int, *arguments: object, **settings: object) -> None:
    kernel[(programs,)](*arguments, **settings)


def _parts(length: int, size: int) -> int:
    return -(-length // size)


def _power_of_2(n: int) -> int:
    """The least that is n or more."""
    return 1 << (n - 1).bit_length()


def _width(d: int) -> int:
    return max(16, _power_of_2(d))


def _pooled(
    of: Problem, inputs: tuple[Any, ...], settings: dict[str, Any], most: int, groups: tuple[int, ...]
) -> Tensor:
    """Tiles of each group of heads: of an entry's, their mean, or of single ones. A large tile has several programs."""
    lengths = of.q.shape[2], of.k.shape[2]
    rows, keys = (tile_size(length, most) for length in lengths)
    tiles = [_parts(length, size) for length, size in zip(lengths, (rows, keys), strict=True)]
    parts = [_parts(size, _MOST_OF_A_TILE) for size in (rows, keys)]
    shape = (math.prod(groups), tiles[0], parts[0], tiles[1], parts[1])
    pooled = torch.empty(shape, dtype=torch.float32, device=of.q.device)
    small = {name: max(16, min(settings[name], _power_of_2(n))) for name, n in (("M", rows), ("N", keys))}
    tile = dict(ROWS=rows, KEYS=keys, MOST_ROWS=_MOST_OF_A_TILE, MOST_KEYS=_MOST_OF_A_TILE)
    heads = math.prod(of.q.shape[:2]) // math.prod(groups)
    _launch(pool, pooled.numel(), *inputs, pooled, **{**settings, **small}, **tile, HEADS=heads)
    return pooled.sum((2, 4)).view(*groups, *tiles)


def _rows(of: Problem, want: Want) -> Tensor:
    """The weights of a few queries, in torch's operations."""
    device, k_len = of.q.device, of.k.shape[2]
    shape = (*of.q.shape[:3], k_len)
    chosen = torch.arange(of.q.shape[1], device=device)
    if want.row_heads is not None:
        chosen = chosen[list(want.row_heads)]
    queries = torch.arange(of.q.shape[2], device=device)[list(want.rows)]

    def cut(x: Tensor) -> Tensor:
        return x[:, chosen[:, None], queries]  # in one step: a mask expanded to all heads isn't copied

    keep = None if of.keep is None else cut(of.keep.expand(shape))
    if of.causal:
        before = torch.arange(k_len, device=device) <= (queries + k_len - of.q.shape[2])[:, None]
        keep = before[None, None] if keep is None else keep & before
    bias = None if of.bias is None else cut(of.bias.expand(shape)).float()
    keys = of.k[:, of.key_heads[chosen]].float()
    return weigh(cut(of.q).float(), keys, keep=keep, bias=bias, scale=of.scale)
