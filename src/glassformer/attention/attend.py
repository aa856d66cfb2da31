"""softmax(q kᵀ / sqrt(d_head)) v: the one file that calls fused attention kernels.

B batch, H heads, L query length, S key length, D width of one head.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.blockwise import attend_in_blocks, blocks_are_faster
from glassformer.attention.kernels.products import is_eager
from glassformer.attention.kernels.short import attend_short
from glassformer.attention.kernels.weigh import weigh
from glassformer.attention.masks import causal as causal_keep
from glassformer.attention.masks import check_causal, check_masks, open_blocked_rows

# Measured with torch 2.13 on an Intel Xeon, forward and backward of 4,096 positions, lengths 8 to 256: in bfloat16 the
# fused kernel takes 2 to 14 times as long as `attend_short` up to 128, in float32 1.1 to 1.5 times up to 16, then 0.8.
_SHORT_UP_TO_SCORES = {torch.float32: 20 * 20, torch.float64: 20 * 20}
_SHORT_UP_TO_SCORES_IN_HALF = 128 * 128
_ONE_QUERY_UP_TO_KEYS = 128 * 128
_COPIES_FROM_SCORES = 512 * 512
_PRODUCTS_FROM_HEADS = 64
# Up to how many scores torch's one operator for all of self-attention is at least as fast as its parts: (with weights,
# without). It materialises all weights, and a mask doubles its time.
_ONE_CALL_UP_TO_SCORES = {
    torch.float32: (1 << 20, 1 << 14),
    torch.float64: (1 << 14, 1 << 14),
    torch.bfloat16: (1 << 23, 1 << 20),
    torch.float16: (1 << 23, 1 << 20),
}
_ONE_CALL_WITH_MASK_UP_TO_SCORES = 1 << 14


def attend(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch heads k_len d_head"],
    v: Float[Tensor, "batch heads k_len d_value"],
    *,
    keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
    bias: Float[Tensor, "#batch #heads #q_len k_len"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads q_len d_value"]:
    """Scaled dot-product attention, fused (Vaswani et al. 2017, section 3.2.1).

    `keep` (True = may look), `bias` (added to the scores; -inf blocks) and `causal` (see `masks.causal`) combine.
    `dropout` is the probability with which a weight is dropped; pass 0 outside training. A query that may look
    nowhere returns zeros, with finite gradients.
    """
    check_masks(keep, bias, q, k)
    if causal:
        check_causal(q.shape[-2], k.shape[-2])
    if bias is None and not dropout and _short_is_faster(q, k, v):
        return attend_short(q, k, v, _with_causal(keep, causal, q, k))
    if _products_are_faster(q, k):
        weights = weigh(q, k, keep=_with_causal(keep, causal, q, k), bias=bias, dropout=dropout)
        return weights.to(v.dtype) @ v
    if dropout and q.device.type == "cpu" and blocks_are_faster(q, k, v, dropout):
        of = Problem(q, k, v, keep, bias, causal, 1 / math.sqrt(q.shape[-1]), q.dtype)
        return attend_in_blocks(of, dropout)[0]
    if _copies_are_faster(q, k):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if causal and keep is None and bias is None and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    keep = _with_causal(keep, causal, q, k)
    mask = keep if bias is None else bias if keep is None else bias.masked_fill(~keep, -math.inf)
    if mask is None or q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    # Not every GPU kernel returns zeros for a row with every key blocked: such rows look everywhere, then are cleared.
    mask, blocked = open_blocked_rows(mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).masked_fill(blocked, 0.0)


def attend_step(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch heads k_len d_head"],
    v: Float[Tensor, "batch heads k_len d_value"],
    bias: Float[Tensor, "#batch #heads #q_len k_len"] | None = None,
) -> Float[Tensor, "batch heads q_len d_value"]:
    """`attend` for a step of generation: few queries, nothing checked (a call is 10 us, checks as much again).

    Every query may look somewhere; no gradients.
    """
    if (
        1 < q.shape[2] < 16
        and q.shape[0] * q.shape[1] >= _PRODUCTS_FROM_HEADS
        and k.is_contiguous()
        and q.device.type == "cpu"
    ):
        # 32 x 8 heads x 4 x 25: 0.6 ms on one thread of an Intel Xeon, the fused kernel 0.77 (and less than plain
        # products of keys that must be copied first, or of few heads).
        weights = torch.matmul(q * (1 / math.sqrt(q.shape[3])), k.mT)
        if bias is not None:
            weights += bias
        return torch.matmul(weights.softmax(-1), v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def small_self_attention(
    x: Float[Tensor, "batch length d_model"],
    heads: int,
    projections: tuple[Tensor, Tensor, Tensor, Tensor],
    padding: Tensor | None,
    *,
    need_weights: bool,
    average: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Projections, attention and weights of a small input in one call of torch's; None where its parts do better.

    At 1 x 8 x 64 the calls themselves are the time: this one operator takes 26 us, our nine of them 60. Without
    gradients, on the CPU; `projections` are in_proj and out_proj, weight and bias each; `padding` True = may not look.
    """
    if not is_eager(x, *projections):
        return None
    batch, length, _ = x.shape
    most = _ONE_CALL_UP_TO_SCORES.get(x.dtype, (0, 0))[not need_weights]
    if padding is not None:
        most = min(most, _ONE_CALL_WITH_MASK_UP_TO_SCORES)
    if (
        batch * heads * length * length > most
        or any(p.dtype != x.dtype for p in projections)
        or x.shape[2] != projections[0].shape[1]
        or not length
        or x.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
        or not torch.backends.mha.get_fastpath_enabled()
        or not hasattr(torch, "_native_multi_head_attention")
    ):
        return None
    if padding is not None and (
        padding.dtype != torch.bool or padding.shape != (batch, length) or padding.all(-1).any()
    ):
        return None  # with nothing to see it would return NaN; wrong masks are explained elsewhere
    kind = None if padding is None else 1
    one_call = torch._native_multi_head_attention  # pyright: ignore[reportPrivateImportUsage]
    output, weights = one_call(x, x, x, x.shape[2], heads, *projections, padding, need_weights, average, kind)
    return output, weights if need_weights else None


def _with_causal(keep: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    if not causal or q.shape[-2] == 1:  # a single query is the last position: nothing comes after it
        return keep
    triangle = causal_keep(q.shape[-2], k.shape[-2], q.device)
    return triangle if keep is None else keep & triangle


def _copies_are_faster(q: Tensor, k: Tensor) -> bool:
    """On the CPU the fused kernel reads long heads a tenth faster from memory of their own than out of packed ones."""
    return (
        not torch.compiler.is_compiling()
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and q.shape[-2] * k.shape[-2] >= _COPIES_FROM_SCORES
    )


def _short_is_faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """On the CPU, when gradients are needed on short sequences; never in a graph or a transform, which must see all."""
    return (
        is_eager(q, k, v)
        and q.numel() > 0
        and q.dim() == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and k.shape[2] == v.shape[2]
        and q.device.type == "cpu"
        and q.shape[-2] * k.shape[-2] <= _SHORT_UP_TO_SCORES.get(q.dtype, _SHORT_UP_TO_SCORES_IN_HALF)
        and torch.is_grad_enabled()
        and (q.requires_grad or k.requires_grad or v.requires_grad)
    )


def _products_are_faster(q: Tensor, k: Tensor) -> bool:
    """On the CPU for a single query over few keys."""
    if torch.compiler.is_compiling():  # what it sees compared becomes a condition of the graph
        return False
    return q.device.type == "cpu" and q.shape[-2] == 1 and k.shape[-2] <= _ONE_QUERY_UP_TO_KEYS
