"""The attention weights themselves, in plain operations: every tracer and transform of torch understands them."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.attention.kernels import choose


def weigh(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch key_heads k_len d_head"],
    *,
    keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
    bias: Float[Tensor, "#batch #heads #q_len k_len"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads q_len k_len"]:
    """Return the attention weights themselves: softmax(q kᵀ scale + bias) over the keys; scale 1 / sqrt(d_head).

    Holds batch x heads x q_len x k_len numbers. Blocked keys, and all keys of a query that may look nowhere, weigh
    exactly zero.
    """
    weights = _weigh_at_once(q, k, keep, bias, scale) if choose.values_can_be_read(q, k, bias) else None
    if weights is None:
        weights = _weigh_with_care(q, k, keep, bias, scale)
    return F.dropout(weights, dropout) if dropout else weights


def _weigh_with_care(q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float | None) -> Tensor:
    """Return the weights, whoever may look nowhere."""
    if bias is None and keep is not None:
        # The lowest finite number, not -inf, so that a row with nothing to see is never NaN on its way to zero.
        scores, blocked = _product(q, k, scale), ~keep
        return scores.masked_fill(blocked, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(blocked, 0.0)
    scores, nowhere = score(q, k, keep=keep, bias=bias, scale=scale)
    weights = scores.softmax(-1)
    return weights if nowhere is None else weights.masked_fill(nowhere, 0.0)


def _weigh_at_once(
    q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float | None
) -> Tensor | None:
    """Return the weights if every query may look somewhere: that takes half of the operations, else it is NaN."""
    scores = _product(q, k, scale)
    if bias is not None:
        scores = scores + bias if bias.dtype != scores.dtype else scores.add_(bias)
    if keep is not None:
        scores.masked_fill_(~keep, -math.inf)
    weights = scores.softmax(-1)
    # NaN anywhere among a row's scores makes its first weight NaN as well.
    one_of_each = weights.detach()[..., :1]
    return None if (bias is not None or keep is not None) and one_of_each.sum().isnan() else weights


def score(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch key_heads k_len d_head"],
    *,
    keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
    bias: Float[Tensor, "#batch #heads #q_len k_len"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "batch heads q_len k_len"], Bool[Tensor, "#batch #heads #q_len 1"] | None]:
    """Return the scores, -inf where blocked, and which queries may look nowhere: these have scores of 0, never NaN."""
    scores = _product(q, k, scale)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if bias is not None:
        scores = scores + bias
        blocked = bias == -math.inf if keep is None else (bias == -math.inf) | ~keep
    elif keep is not None:
        blocked = ~keep
    else:
        return scores, None
    nowhere = blocked.all(-1, keepdim=True)
    return scores.masked_fill(blocked, -math.inf).masked_fill(nowhere, 0.0), nowhere


def multiply_by_head(
    x: Float[Tensor, "batch heads rows inner"], y: Float[Tensor, "batch key_heads inner columns"]
) -> Float[Tensor, "batch heads rows columns"]:
    """Return x y, where each of fewer heads of y serves several of x, without a copy of it for each."""
    batch, heads, rows, inner = x.shape
    if y.shape[1] == heads:
        return x @ y
    side_by_side = x.reshape(batch, y.shape[1], heads // y.shape[1] * rows, inner)
    return (side_by_side @ y).view(batch, heads, rows, y.shape[3])


def _product(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    return multiply_by_head(q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale), k.mT)
