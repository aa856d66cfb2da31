"""Attention over short sequences in plain products, forward and backward by hand.

On the CPU the fused kernel works through heads of a few dozen positions one by one: at 273 x 4 heads x 15 x 15 it takes
4.1 ms forward and backward in float32 and 40 in bfloat16, this 2.8. It computes in float32 whatever it is given: such
small products are bound by memory, and in bfloat16 oneDNN compiles each anew for every shape. A few sequences are taken
at a time, whose float32 copies stay in the cache. Keys are filled up to a multiple of 16: on other numbers torch's
softmax is up to 15 times as slow.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.weigh import weigh

KEYS_AT_ONCE = 16


def attend_short(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    """Return softmax(q kᵀ / sqrt(d_head)) v with gradients, in (batch, heads, length, width); `keep` as in `attend`."""
    with torch.autocast(q.device.type, enabled=False):  # or it would take the products in bfloat16 again
        return _Short.apply(q, k, v, keep)


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        batch, heads, q_len, d_head = q.shape
        columns = -(-k.shape[2] // KEYS_AT_ONCE) * KEYS_AT_ONCE
        exact = torch.promote_types(q.dtype, torch.float32)
        mask, nowhere = _mask(keep, k.shape[2], columns, q.new_empty(0, dtype=exact))
        weights = q.new_empty(batch, heads, q_len, columns, dtype=exact)
        output = _heads_side_by_side(v, q_len)
        for part in _parts(q):
            q32, k32, v32 = _folded(q[part], q_len), _folded(k[part], columns), _folded(v[part], columns)
            of_part = weights[part].flatten(0, 1)
            scores = (mask if len(mask) == 1 else mask[part]).expand_as(weights[part]).flatten(0, 1)
            scores = torch.baddbmm(scores, q32, k32.mT, alpha=1 / math.sqrt(d_head))
            torch.softmax(scores, -1, out=of_part)
            if nowhere is not None:
                weights[part].masked_fill_(nowhere if len(nowhere) == 1 else nowhere[part], 0.0)
            output[part].copy_(torch.bmm(of_part, v32).unflatten(0, (-1, heads)))
        ctx.save_for_backward(q, k, v, keep, weights)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, keep, weights = ctx.saved_tensors
        if torch.is_grad_enabled() or choose.is_batched(grads[0]):
            return *_gradients(q, k, v, keep, grads[0]), None
        heads, q_len, k_len, columns = q.shape[1], q.shape[2], k.shape[2], weights.shape[3]
        scale = 1 / math.sqrt(q.shape[3])
        to_q, to_k, to_v = _heads_side_by_side(q, q_len), _heads_side_by_side(k, k_len), _heads_side_by_side(v, k_len)
        for part in _parts(q):
            p, grad = weights[part].flatten(0, 1), _folded(grads[0][part], q_len)
            to_v[part].copy_(torch.bmm(p.mT, grad).unflatten(0, (-1, heads))[:, :, :k_len])
            to_weights = torch.bmm(grad, _folded(v[part], columns).mT)
            to_scores = torch.ops.aten._softmax_backward_data(to_weights, p, -1, p.dtype).mul_(scale)
            to_q[part].copy_(torch.bmm(to_scores, _folded(k[part], columns)).unflatten(0, (-1, heads)))
            to_k[part].copy_(torch.bmm(to_scores.mT, _folded(q[part], q_len)).unflatten(0, (-1, heads))[:, :, :k_len])
        return to_q, to_k, to_v, None


def _gradients(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, in operations that have gradients themselves."""
    weights = weigh(q, k, keep=keep)
    to_weights = (grad @ v.mT).to(weights.dtype)
    to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True)) * (1 / math.sqrt(q.shape[3]))
    return to_scores @ k, to_scores.mT @ q, weights.mT.to(grad.dtype) @ grad


def _parts(q: Tensor) -> Iterator[slice]:
    """Return which sequences to take at a time."""
    size = max(1, choose.SHORT_IN_CACHE // q[:1].numel())
    return (slice(first, first + size) for first in range(0, len(q), size))


def _folded(x: Tensor, length: int) -> Tensor:
    """Return a copy (batch * heads, length, width) in float32 or better; zeros past the end."""
    batch, heads, given, width = x.shape
    folded = x.new_empty(batch, heads, length, width, dtype=torch.promote_types(x.dtype, torch.float32))
    folded[:, :, :given].copy_(x)
    folded[:, :, given:] = 0
    return folded.flatten(0, 1)


def _heads_side_by_side(like: Tensor, length: int) -> Tensor:
    """Return room for (batch, heads, length, width) in which the heads of a position lie side by side."""
    batch, heads, _, width = like.shape
    return like.new_empty(batch, length, heads, width).transpose(1, 2)


def _mask(keep: Tensor | None, k_len: int, columns: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what is added to the scores, -inf where no query may look, and which queries may look nowhere, if any."""
    shape = (1, 1, 1) if keep is None else keep.shape[:3]
    mask = like.new_zeros(*shape, columns)
    mask[..., k_len:] = -math.inf
    if keep is None:
        return mask, None
    mask[..., :k_len].masked_fill_(~keep, -math.inf)
    nowhere = ~keep.any(-1, keepdim=True)
    if not nowhere.any():
        return mask, None
    return mask.masked_fill_(nowhere, 0.0), nowhere
