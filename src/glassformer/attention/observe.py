"""observe(): attention's output together with exact facts about its weights, in memory linear in the length."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.attention.blocks import Problem
from glassformer.attention.blockwise import attend_in_blocks, blocks_are_faster
from glassformer.attention.masks import check_causal, check_masks
from glassformer.attention.observation import Observation
from glassformer.attention.plain import observe_plainly
from glassformer.attention.statistics import Found
from glassformer.attention.want import SUMMARY, Want
from glassformer.errors import ArgumentError

_MAPS = {"head_mean", "weights"}  # made of the weights as they are; all else is computed in float32 or better


def observe(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch key_heads k_len d_head"],
    v: Float[Tensor, "batch key_heads k_len d_value"],
    *,
    keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
    bias: Float[Tensor, "#batch #heads #q_len k_len"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    want: Want = SUMMARY,
    budget: int | None = None,
) -> tuple[Float[Tensor, "batch heads q_len d_value"], Observation]:
    """softmax(q kᵀ scale + bias) v, and what `want` asks about the weights (Vaswani et al. 2017, section 3.2.1).

    Exact, in one pass over blocks of queries (Rabe and Staats 2021, arXiv:2112.05682): no fact but `weights` takes
    batch x heads x q_len x k_len numbers, neither here nor in the backward pass. Everything is differentiable.

    `keep` (True = may look), `bias` (added to the scores; -inf blocks) and `causal` (see `masks.causal`) combine;
    `scale` is 1 / sqrt(d_head) if not given; with fewer key heads than heads, each serves heads / key_heads of them.
    With `dropout` (0 outside training) all is said of the weights that made the output, those left by dropout, except
    entropy and lse, which are of the softmax. Positions are indices; under `causal`, where the queries are the last,
    those of queries count from k_len - q_len. `budget` is the most bytes that blocks may take, for less than what is
    fastest, which is 128 MiB on a CPU; a single query of a single head is the least.

    A query that may look nowhere has zero output, weights, entropy and distance, and an lse of -inf. Of half-precision
    inputs everything is computed and given in float32, but output, head_mean and weights have their dtype.

    Raises ArgumentError for shapes or dtypes that don't fit, and for queries, heads or a `top` that don't exist.
    """
    _check_heads(q, k, v)
    check_masks(keep, bias, q, k)
    if causal:
        check_causal(q.shape[2], k.shape[2])
    if not 0 <= dropout <= 1:
        raise ArgumentError(f"dropout must be a probability, 0 to 1, got {dropout}")
    if budget is not None and budget <= 0:
        raise ArgumentError(f"budget must be a number of bytes above 0, got {budget}: 2**28 is 256 MiB")
    want.check(q.shape[1], q.shape[2], k.shape[2])
    output, found = see(
        q, k, v, keep=keep, bias=bias, causal=causal, scale=scale, dropout=dropout, want=want, budget=budget
    )
    return output, Observation(found, want)


def see(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    want: Want,
    budget: int | None = None,
) -> tuple[Tensor, Found]:
    """`observe` of checked arguments, as plain tensors by name, in whichever form is fastest."""
    of = Problem(
        q, k, v, keep, bias, causal, 1 / math.sqrt(q.shape[3]) if scale is None else scale, _dtype(q, want), budget
    )
    if blocks_are_faster(q, k, v, dropout):
        return attend_in_blocks(of, dropout, want)
    return observe_plainly(of, want, dropout=dropout)


def _dtype(q: Tensor, want: Want) -> torch.dtype:
    half = q.dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if half and not _MAPS.issuperset(want.asked) else q.dtype


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or not x.is_floating_point():
            raise ArgumentError(
                f"{name} must be floating-point, (batch, heads, length, width), got {x.dtype} {tuple(x.shape)}: of "
                "one head or entry, pass x[None]"
            )
    if not q.dtype == k.dtype == v.dtype:
        raise ArgumentError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if k.shape[:3] != v.shape[:3]:
        raise ArgumentError(
            f"k and v must agree in (batch, heads, length), got {tuple(k.shape[:3])} and {tuple(v.shape[:3])}"
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ArgumentError(
            "q and k must agree in batch and width, the first and last of their sizes, got "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    if q.shape[1] != k.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise ArgumentError(
            f"the heads of q must be a multiple of those of k and v, got {q.shape[1]} and {k.shape[1]}: are the axes "
            "(batch, heads, length, width)?"
        )
