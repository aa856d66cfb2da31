"""Attention without projections as a function, with torch's additive mask; it returns the weights too."""

import math

import torch
from torch import Tensor

from glassformer.reference.errors import InputError
from glassformer.reference.softmax import masked_softmax


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return softmax(q kᵀ / sqrt(d) + attn_mask) v and its weights: (batch, q_len, d_v), (batch, q_len, k_len).

    `q` is (batch, q_len, d), `k` (batch, k_len, d), `v` (batch, k_len, d_v). `attn_mask` is added to the scores: floats
    (q_len, k_len) or (batch, q_len, k_len), where -inf blocks. A query with every key blocked gets zeros. `dropout_p`
    of the weights are dropped, also in those that are returned. Older versions of torch have it in Python as
    `torch.nn.functional._scaled_dot_product_attention`. Raises InputError for other shapes. Source: Vaswani et al.
    2017, section 3.2.1.

    >>> attended, weights = scaled_dot_product_attention(*torch.zeros(3, 1, 2, 4), torch.tensor([[0, -torch.inf]] * 2))
    >>> weights.tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    if any(x.dim() != 3 or len(x) != len(q) for x in (q, k, v)) or q.shape[2] != k.shape[2] or k.shape[1] != v.shape[1]:
        raise InputError(
            "q, k and v must be (batch, q_len, d), (batch, k_len, d) and (batch, k_len, d_v), got "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    blocked = None
    if attn_mask is not None:
        if tuple(attn_mask.shape) not in (scores.shape[1:], scores.shape):
            raise InputError(
                f"attn_mask must be (q_len, k_len) = {tuple(scores.shape[1:])} or (batch, q_len, k_len) = "
                f"{tuple(scores.shape)}, got {tuple(attn_mask.shape)}"
            )
        if not attn_mask.is_floating_point():
            raise InputError(f"attn_mask must be floats, which are added (-inf blocks), got {attn_mask.dtype}")
        blocked = attn_mask == -math.inf
        scores = scores + attn_mask.masked_fill(blocked, 0.0)
    weights = torch.nn.functional.dropout(masked_softmax(scores, blocked, dim=-1), dropout_p)
    return weights @ v, weights
