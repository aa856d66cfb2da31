"""Attention over small inputs, where calling the operations takes longer than the operations: as few as there can be.

A GPU waits for the first call, too, whatever the size. At 1 x 8 x 64 an operation takes 1 to 9 us, of which next to
nothing is arithmetic. So nothing is made here that is only handed on, and what doesn't fit is left to the general way,
which also explains what is wrong with an argument. Somewhat larger inputs are here, too, where all weights are wanted
and all at once are faster than blocks of them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention.attend import attend_fused
from glassformer.attention.kernels import choose

with torch.inference_mode(False):  # wherever this file is imported first
    _IGNORED = {
        dtype: torch.zeros((), dtype=dtype, device="cpu")
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    }
"""Stand in `baddbmm` for the matrix that it adds, times zero: a product and its factor are then one operation."""


def attend_small(
    query: Tensor,
    key: Tensor,
    heads: int,
    projections: tuple[Tensor, Tensor | None, Tensor, Tensor | None],
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    *,
    is_causal: bool,
    need_weights: bool,
    average: bool,
    dropout: float,
    batch_first: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Return the output and the weights of `MultiheadAttention.forward`, or None where the general way is needed.

    `projections` are in_proj and out_proj, weight and bias each. The key is the value, too; the other arguments are
    those of the module.
    """
    if torch.compiler.is_compiling():  # first: a comparison of sizes would become a condition of the graph
        return None
    if query.dim() != 3 or key.dim() != 3 or not 0 <= dropout <= 1 or not query.is_contiguous():
        return None
    packed, bias, output, output_bias = projections
    of_q, of_k = query.shape, key.shape
    if of_k[2] != of_q[2] or of_q[2] != packed.shape[1]:
        return None
    (batch, q_len), (entries, k_len) = (of_q[:2], of_k[:2]) if batch_first else (of_q[1::-1], of_k[1::-1])
    if entries != batch or (is_causal and attn_mask is None):
        return None
    tensors = (query, key, packed, bias, output, output_bias)
    hint = is_causal and not need_weights and key_padding_mask is None
    wanted = (need_weights, average)
    if not choose.calls_are_the_time(batch, q_len, k_len, heads, tensors, key_padding_mask, attn_mask, *wanted):
        unmasked = key_padding_mask is None and (hint or attn_mask is None)
        if need_weights or not unmasked:
            return None
        if not choose.calls_are_the_gpus_time(batch, q_len, k_len, heads, tensors, attn_mask):
            return None
    apart = _folded_heads if need_weights else _heads
    if query is key:
        q, k, v = apart(F.linear(query, packed, bias), 3, heads, batch_first)
    else:
        width = query.shape[2]
        # Not slices: each would have a gradient as large as the whole.
        to_q, to_kv = packed.split_with_sizes((width, 2 * width))
        b_q, b_kv = (None, None) if bias is None else bias.split_with_sizes((width, 2 * width))
        (q,) = apart(F.linear(query, to_q, b_q), 1, heads, batch_first)
        k, v = apart(F.linear(key, to_kv, b_kv), 2, heads, batch_first)
    if need_weights:
        found = _weigh(q, k, batch, key_padding_mask, attn_mask)
        if found is None:
            return None
        if dropout:
            found = F.dropout(found, dropout)
        seen = torch.bmm(found, v)
        weights = found.view(batch, heads, q_len, k_len)
        weights = weights.mean(1) if average else weights
        if batch == 1 or not batch_first:
            return F.linear(seen.transpose(0, 1).reshape(of_q), output, output_bias), weights
        seen = seen.view(batch, heads, q_len, -1)
    else:
        mask = None if hint else _sdpa_mask(key_padding_mask, attn_mask)
        seen, weights = attend_fused(q, k, v, mask, dropout, hint), None
    merged = (seen.transpose(1, 2) if batch_first else seen.permute(2, 0, 1, 3)).flatten(2)
    return F.linear(merged, output, output_bias), weights


def _heads(x: Tensor, parts: int, heads: int, batch_first: bool) -> tuple[Tensor, ...]:
    """Return what lies side by side in x as views (batch, heads, length, d_head)."""
    first, second, width = x.shape
    x = x.view(first, second, parts, heads, width // (parts * heads))
    return (x.permute(2, 0, 3, 1, 4) if batch_first else x.permute(2, 1, 3, 0, 4)).unbind(0)


def _folded_heads(x: Tensor, parts: int, heads: int, batch_first: bool) -> tuple[Tensor, ...]:
    """Return the same as (batch * heads, length, d_head)."""
    batch, length = x.shape[:2] if batch_first else x.shape[1::-1]
    if batch > 1 and (batch_first or parts > 1):
        return tuple(part.flatten(0, 1) for part in _heads(x, parts, heads, batch_first))
    x = x.view(length, batch * parts * heads, -1).transpose(0, 1)
    return x.split(heads) if parts > 1 else (x,)


def _weigh(q: Tensor, k: Tensor, batch: int, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Return the weights (batch * heads, q_len, k_len), or None if a query may look nowhere: it would be NaN."""
    scale, k_transposed = 1 / math.sqrt(q.shape[2]), k.transpose(1, 2)
    if mask is not None and mask.dtype != torch.bool:
        # A finite number may become -inf in float16: its weight is zero all the same, or the row is NaN.
        scores = torch.baddbmm(mask, q, k_transposed, alpha=scale)
    else:
        scores = torch.baddbmm(_IGNORED[q.dtype], q, k_transposed, beta=0, alpha=scale)
        if mask is not None:
            scores.masked_fill_(mask, -math.inf)
    if padding is not None:
        scores.unflatten(0, (batch, -1)).masked_fill_(padding[:, None, None], -math.inf)
    weights = scores.softmax(-1)
    if (mask is not None or padding is not None) and math.isnan(weights.detach().sum()):
        return None
    return weights


def _sdpa_mask(padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Return a mask as torch's fused attention takes it: True = may look, or added to the scores."""
    if padding is None:
        return mask if mask is None or mask.dtype != torch.bool else ~mask
    if mask is None:
        return ~padding[:, None, None]
    if mask.dtype == torch.bool:
        return ~(padding[:, None, None] | mask)
    return mask.masked_fill(padding[:, None, None], -math.inf)
