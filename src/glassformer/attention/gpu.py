"""Attention and facts about its weights on a GPU: the launches of the kernels in triton.py."""

import math
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.blocks import Problem
from glassformer.attention.statistics import Found
from glassformer.attention.triton import attend, average, pool, rank, receive
from glassformer.attention.want import NOTHING, Want, tile_size

_LOG2_E = math.log2(math.e)
_MOST_WIDTH = 256
_BLOCKS = {2: (128, 64), 4: (64, 32)}  # queries x keys of a program, by bytes of a number


def fits_kernels(of: Problem, want: Want, dropout: float) -> bool:
    """What the kernels compute: neither dropout nor float64, nor all weights of each head."""
    return (
        not dropout
        and of.q.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and max(of.q.shape[3], of.v.shape[3]) <= _MOST_WIDTH
        and not want.weights
    )


def attend_with_kernels(of: Problem, want: Want = NOTHING) -> tuple[Tensor, Found]:
    """softmax(q kᵀ scale + bias) v, and what is wanted of its weights."""
    batch, heads, q_len, _ = of.q.shape
    k_len = of.k.shape[2]
    output = of.v.new_empty(batch, q_len, heads, of.v.shape[3]).transpose(1, 2)

    def per_query() -> Tensor:
        return torch.empty(batch, heads, q_len, dtype=torch.float32, device=of.q.device)

    lse = per_query()
    found = {name: per_query() for name in ("entropy", "distance") if getattr(want, name)}
    block = _BLOCKS[of.q.element_size()]
    common = _Common(of, block)
    unused = lse  # in place of what isn't wanted
    _launch(
        attend,
        (_blocks(q_len, block[0]), batch * heads),
        *common.inputs,
        of.v,
        *of.v.stride(),
        output,
        *output.stride(),
        lse,
        found.get("entropy", unused),
        found.get("distance", unused),
        **common.settings,
        E=of.v.shape[3],
        WIDTH_E=_width(of.v.shape[3]),
        ENTROPY=want.entropy,
        DISTANCE=want.distance,
    )
    if want.received:
        received = torch.empty(batch, heads, k_len, dtype=torch.float32, device=of.q.device)
        _launch(receive, (_blocks(k_len, block[1]), batch * heads), *common.inputs, lse, received, **common.settings)
        found["received"] = received
    if want.head_mean:
        mean = torch.empty(batch, q_len, k_len, dtype=of.q.dtype, device=of.q.device)
        grid = (_blocks(q_len, block[0]), _blocks(k_len, block[1]), batch)
        _launch(average, grid, *common.inputs, lse, mean, **common.settings)
        found["head_mean"] = mean
    for name in ("pooled", "pooled_heads"):
        if tiles := getattr(want, name):
            found[name] = _pooled(of, lse, tiles, by_head=name == "pooled_heads")
    if want.top:
        top = torch.empty(batch, heads, q_len, want.top, dtype=torch.float32, device=of.q.device)
        keys = torch.empty(top.shape, dtype=torch.int64, device=of.q.device)
        slots = _power_of_2(max(2, want.top))
        grid = (_blocks(q_len, block[0]), batch * heads)
        _launch(rank, grid, *common.inputs, lse, top, keys, **common.settings, K=want.top, SLOTS=slots)
        found["top"], order = top.sort(-1, descending=True)
        found["top_keys"] = keys.gather(-1, order).masked_fill_(found["top"] == 0, -1)
    if want.rows:
        found["rows"] = _rows(of, lse, want)
    if want.lse:
        found["lse"] = lse.mul_(1 / _LOG2_E)
    return output, found


class _Common:
    """The arguments that all kernels begin with, and those they name."""

    def __init__(self, of: Problem, block: tuple[int, int]) -> None:
        q, k = of.q, of.k
        shape = (*q.shape[:3], k.shape[2])
        keep = q if of.keep is None else of.keep.expand(shape)
        bias = q if of.bias is None else of.bias.expand(shape)
        self.inputs = (q, *q.stride(), k, *k.stride(), keep, *keep.stride(), bias, *bias.stride())
        self.settings = dict(
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
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",  # tf32 has no effect on half precision
            M=block[0],
            N=block[1],
        )


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: object, **settings: object) -> None:
    kernel[grid](*arguments, **settings)


def _blocks(length: int, size: int) -> int:
    return -(-length // size)


def _power_of_2(n: int) -> int:
    """The least that is n or more."""
    return 1 << (n - 1).bit_length()


def _width(d: int) -> int:
    return max(16, _power_of_2(d))


def _pooled(of: Problem, lse: Tensor, most: int, by_head: bool) -> Tensor:
    batch, heads, q_len, _ = of.q.shape
    k_len = of.k.shape[2]
    rows, keys = tile_size(q_len, most), tile_size(k_len, most)
    tiles = _blocks(q_len, rows), _blocks(k_len, keys)
    block = tuple(min(side, max(16, _power_of_2(n))) for side, n in zip((64, 64), (rows, keys), strict=True))
    common = _Common(of, (block[0], block[1]))
    shape = (batch, heads, *tiles) if by_head else (batch, *tiles)
    pooled = torch.empty(shape, dtype=torch.float32, device=of.q.device)
    grid = (tiles[0], tiles[1], batch * heads if by_head else batch)
    _launch(
        pool, grid, *common.inputs, lse, pooled, **common.settings, ROWS=rows, KEYS=keys, HEADS=1 if by_head else heads
    )
    return pooled


def _rows(of: Problem, lse: Tensor, want: Want) -> Tensor:
    """The weights of a few queries, in torch's operations."""
    heads, k_len = of.q.shape[1], of.k.shape[2]
    shape = (*of.q.shape[:3], k_len)
    chosen = list(range(heads) if want.row_heads is None else (h % heads for h in want.row_heads))
    queries = torch.tensor([n % of.q.shape[2] for n in want.rows], device=of.q.device)

    def cut(x: Tensor) -> Tensor:
        return x[:, chosen][:, :, queries]

    keys = of.k[:, of.key_heads[chosen]].float()
    s = cut(of.q).float() @ keys.mT * of.scale
    if of.bias is not None:
        s += cut(of.bias.expand(shape))
    blocked = torch.zeros_like(s, dtype=torch.bool)
    if of.keep is not None:
        blocked |= ~cut(of.keep.expand(shape))
    if of.causal:
        blocked |= torch.arange(k_len, device=s.device) > (queries + k_len - of.q.shape[2])[:, None]
    lse = cut(lse)[..., None] / _LOG2_E
    return (s - lse).exp().masked_fill(blocked | (lse == -math.inf), 0.0)
