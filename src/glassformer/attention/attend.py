"""softmax(q kᵀ / sqrt(d_head)) v: the one file that calls fused attention kernels.

B batch, H heads, L query length, S key length, D width of one head.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from glassformer.attention.autocast import cast_as_autocast
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem, open_keys
from glassformer.attention.kernels.blockwise import attend_in_blocks
from glassformer.attention.kernels.short import attend_short
from glassformer.attention.kernels.weigh import weigh
from glassformer.attention.masks import causal as causal_keep
from glassformer.attention.masks import check_causal, check_masks, check_tensors, open_blocked_rows
from glassformer.attention.want import NOTHING
from glassformer.errors import ArgumentError


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
    """Return softmax(q kᵀ / sqrt(d_head)) v, fused (Vaswani et al. 2017, section 3.2.1).

    `keep` (True = may look), `bias` (added to the scores; -inf blocks) and `causal` (see `masks.causal`) combine.
    `dropout` is the probability with which a weight is dropped; pass 0 outside training. A query that may look
    nowhere returns zeros, with finite gradients. Under autocast q, k and v are cast to its dtype, as torch's
    `scaled_dot_product_attention` does. Raises ArgumentError for shapes, dtypes and masks that don't fit.

    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4), torch.tensor([[[[1.0], [2.0], [6.0]]]])
    >>> attend(q, k, v).squeeze().tolist()  # equal scores: the mean of the values
    [3.0, 3.0]
    >>> attend(q, k, v, causal=True).squeeze().tolist()  # the first of the two queries may not look at the last key
    [1.5, 3.0]
    """
    if has_torch_function_variadic(q, k, v):  # as when `capture` sees every call
        masks: dict[str, Any] = {"keep": keep, "bias": bias, "causal": causal}
        return handle_torch_function(attend, (q, k, v), q, k, v, **masks, dropout=dropout)
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        check_tensors(q=q, k=k, v=v)
    q, k, v = cast_as_autocast(q, k, v)
    _check_inputs(q, k, v)
    check_masks(keep, bias, q, k)
    if causal:
        check_causal(q.shape[-2], k.shape[-2])
    if dropout:
        check_dropout(dropout)
    elif bias is None and choose.short_is_faster(q, k, v):
        return attend_short(q, k, v, _with_causal(keep, causal, q, k))
    if choose.products_are_faster(q, k):
        weights = weigh(q, k, keep=_with_causal(keep, causal, q, k), bias=bias, dropout=dropout)
        return weights.to(v.dtype) @ v
    # In the dtype of q such a bias would lose what tells keys apart, and its lowest numbers would become -inf.
    is_wide = bias is not None and torch.promote_types(q.dtype, bias.dtype) != q.dtype
    in_blocks = choose.blocks_are_faster(q, k, v, dropout) if dropout else choose.half_blocks_are_faster(q, k, v)
    if in_blocks and not is_wide and q.device.type == "cpu":
        problem = Problem(q, k, v, keep, bias, causal, 1 / math.sqrt(q.shape[-1]), q.dtype)
        return attend_in_blocks(problem, dropout)[0]
    if keep is not None and bias is None and not causal and choose.values_can_be_read(q, k, v, keep):
        k, v, keep = _without_padding(k, v, keep)
    if not is_wide and choose.compiled_attention_is_faster(q, k, v, keep, bias, dropout):
        from glassformer.attention.kernels.compiled.attend import attend_compiled

        problem = Problem(q, k, v, keep, bias, causal, 1 / math.sqrt(q.shape[-1]), q.dtype)
        return attend_compiled(problem, NOTHING)[0]
    if choose.copies_are_faster(q, k):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if causal and keep is None and bias is None and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    keep = _with_causal(keep, causal, q, k)
    if bias is not None and bias.dtype != q.dtype:  # the fused kernel takes no other, and misreads float32 by float64
        bias = bias.to(torch.promote_types(q.dtype, torch.float32))
    mask = keep if bias is None else bias if keep is None else bias.masked_fill(~keep, -math.inf)
    if mask is None or q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    # Not every GPU kernel returns zeros for a row with every key blocked: such rows look everywhere, then are cleared.
    mask, blocked = open_blocked_rows(mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).masked_fill(blocked, 0.0)


def attend_from_start(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, dropout: float) -> Tensor:
    """Return attention in which query i looks at keys 0 .. i, whatever the number of either: what `keep` says, too.

    Long inputs need no mask: what comes after the last query is left out, and those after the last key look at all.
    """
    q_len, k_len = q.shape[2], k.shape[2]
    if q_len <= k_len:
        return attend(q, k[:, :, :q_len], v[:, :, :q_len], causal=True, dropout=dropout)
    if k_len >= choose.PARTS_FROM_KEYS and (
        dropout
        or choose.half_blocks_are_faster(q, k, v)
        or choose.compiled_attention_is_faster(q[:, :, :k_len], k, v, None, None, dropout)
    ):
        first = attend(q[:, :, :k_len], k, v, causal=True, dropout=dropout)
        return torch.cat([first, attend(q[:, :, k_len:], k, v, dropout=dropout)], dim=2)
    if dropout:
        return attend(q, k, v, keep=keep, dropout=dropout)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend_fused(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch heads k_len d_head"],
    v: Float[Tensor, "batch heads k_len d_value"],
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal_from_start: bool = False,
) -> Float[Tensor, "batch heads q_len d_value"]:
    """Return what torch's fused kernel gives for queries that may each look somewhere.

    Nothing is checked: on small inputs and in a step of generation a call takes 10 us, and checks as much again.
    """
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal_from_start)


def small_self_attention(
    x: Float[Tensor, "batch length d_model"],
    heads: int,
    projections: tuple[Tensor, Tensor | None, Tensor, Tensor | None],
    padding: Tensor | None,
    mask: Tensor | None,
    *,
    is_causal: bool,
    need_weights: bool,
    average: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Return the output and the weights of a small input's self-attention in one call, or None where parts do better.

    `projections` are in_proj and out_proj, weight and bias each; `padding` (batch, length) or `mask` (length, length)
    True = may not look. No gradients.
    """
    packed, bias, output_weight, output_bias = projections
    if bias is None or output_bias is None or (mask is not None and mask.dtype != torch.bool):
        return None
    if is_causal and not need_weights:  # the fused kernel needs no mask
        return None
    whole = (packed, bias, output_weight, output_bias)
    if not choose.one_call_is_faster(x, heads, whole, padding, mask, need_weights):
        return None
    blocked, kind = (mask, 0) if padding is None else (padding, 1)
    one_call = torch._native_multi_head_attention  # pyright: ignore[reportPrivateImportUsage]
    output, weights = one_call(
        *(x, x, x, x.shape[2], heads, *whole, blocked, need_weights, average), None if blocked is None else kind
    )
    return output, weights if need_weights else None


def check_dropout(dropout: float) -> None:
    """Raise ArgumentError if this isn't a probability."""
    if not 0 <= dropout <= 1:
        raise ArgumentError(f"dropout must be a probability, 0 to 1, got {dropout}")


def _check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ArgumentError if q, k and v don't belong together."""
    of_q, of_k, of_v = q.shape, k.shape, v.shape
    if len(of_q) == len(of_k) == len(of_v) == 4:
        batch, heads, _, width = of_q
        if of_k[0] == batch and of_k[1] == heads and of_k[3] == width and of_k[:3] == of_v[:3]:
            if q.dtype == k.dtype == v.dtype and q.is_floating_point():
                return
            raise ArgumentError(
                f"q, k and v must have one floating-point dtype, got {q.dtype}, {k.dtype} and {v.dtype}: pass "
                "k.to(q.dtype), say"
            )
        if of_k[:3] == of_v[:3] and of_k[0] == batch and of_k[3] == width:
            raise ArgumentError(
                f"q, k and v must have the same heads, got {heads} and {of_k[1]}: where a key head serves several, "
                "call observe(), or pass k.repeat_interleave(n, dim=1)"
            )
    raise ArgumentError(
        "q, k and v must be (batch, heads, q_len, d_head), (batch, heads, k_len, d_head) and (batch, heads, k_len, "
        f"d_value) of one batch, got {tuple(of_q)}, {tuple(of_k)} and {tuple(of_v)}: of one entry or head, pass x[None]"
    )


def _without_padding(k: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Leave out the padding before and after all keys that anyone may look at, and the mask where it blocks no more."""
    keys = open_keys(keep, slice(None), k.shape[2])
    if keys.stop - keys.start == k.shape[2]:
        return k, v, keep
    keep = keep[..., keys]
    return k[:, :, keys], v[:, :, keys], None if bool(keep.all()) else keep


def _with_causal(keep: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    if not causal or q.shape[-2] == 1:  # a single query is the last position: nothing comes after it
        return keep
    triangle = causal_keep(q.shape[-2], k.shape[-2], q.device)
    return triangle if keep is None else keep & triangle
