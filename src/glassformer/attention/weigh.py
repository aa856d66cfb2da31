"""The attention weights themselves, in plain operations: every tracer and transform of torch understands them."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def weigh(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch heads k_len d_head"],
    *,
    keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
    bias: Float[Tensor, "#batch #heads #q_len k_len"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads q_len k_len"]:
    """The attention weights themselves: softmax(q kᵀ / sqrt(d_head) + bias) over the keys, explicit.

    Holds batch x heads x q_len x k_len numbers. Blocked keys, and all keys of a query that may look nowhere, weigh
    exactly zero.
    """
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.mT
    if keep is None and bias is None:
        weights = scores.softmax(-1)
    elif bias is None:
        assert keep is not None
        # The lowest finite number, not -inf, so that a row with nothing to see is never NaN on its way to zero.
        blocked = ~keep
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(blocked, lowest).softmax(-1).masked_fill(blocked, 0.0)
    else:
        # Here a score may itself be that low, so it is -inf, and a row with nothing to see gets scores of its own.
        blocked = bias == -math.inf if keep is None else (bias == -math.inf) | ~keep
        nowhere = blocked.all(-1, keepdim=True)
        scores = (scores + bias).masked_fill(blocked, -math.inf).masked_fill(nowhere, 0.0)
        weights = scores.softmax(-1).masked_fill(nowhere, 0.0)
    return F.dropout(weights, dropout) if dropout else weights
