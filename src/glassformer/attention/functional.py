"""`torch.nn.functional.multi_head_attention_forward`, argument for argument (Vaswani et al. 2017, section 3.2.2)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from glassformer.attention.attend import attend, attend_from_start, check_dropout
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.masks import add_open_columns, causal_from_start, check_type, fit_bias, masks_from_torch
from glassformer.attention.observe import observe_problem
from glassformer.attention.projections import Projections
from glassformer.attention.want import Want
from glassformer.errors import ArgumentError

HEAD_MEAN, WEIGHTS = Want(head_mean=True), Want(weights=True)


AttentionFunction = Callable[[Problem, float, Want | None], tuple[Tensor, Tensor | None]]
"""Attention over projected heads: from the problem, the probability of dropout and what is wanted of the weights
(HEAD_MEAN or WEIGHTS) to the output and, if wanted, the weights."""


def compute_attention(problem: Problem, dropout: float, want: Want | None) -> tuple[Tensor, Tensor | None]:
    """Compute attention in the fastest form: the `AttentionFunction` that stands unless another one is given."""
    if want is None:
        q, k, v, keep, bias = problem.q, problem.k, problem.v, problem.keep, problem.bias
        if problem.from_start and keep is not None:
            return attend_from_start(q, k, v, keep, dropout), None
        return attend(q, k, v, keep=keep, bias=bias, causal=problem.causal, dropout=dropout), None
    output, facts = observe_problem(problem, want, dropout)
    (weights,) = facts.values()
    return output, weights


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return Concat(head_1 .. head_h) W_o, head_i = softmax(q_i k_iᵀ / sqrt(d_head) + mask) v_i, and the weights.

    Shapes: `query` (L, N, E), `key` (S, N, kdim), `value` (S, N, vdim), or without N; `in_proj_weight` (3E, E), or
    with `use_separate_proj_weight` `q_proj_weight` (E, E), `k_proj_weight` (E, kdim), `v_proj_weight` (E, vdim);
    `bias_k` and `bias_v` (1, 1, E), one further key and value; `static_k`, `static_v` (N * num_heads, S, E /
    num_heads), used in place of projected keys and values. `key_padding_mask` (N, S) and `attn_mask` (L, S) or (N *
    num_heads, L, S): boolean, True = may not look, or floating-point, added to the scores.

    Returns the output, like `query`, and with `need_weights` the weights after dropout: (N, L, S) averaged over the
    heads, or (N, num_heads, L, S).

    `is_causal` says that `attn_mask` is the causal mask: without `need_weights` and padding it alone is read.

    Differs from torch: a query that may look nowhere gets zeros, not NaN; uint8 masks count as boolean, with a
    DeprecationWarning; keys added by `bias_k` and `add_zero_attn` stay visible under `is_causal`. Errors are
    ArgumentError, which is what torch raises (AssertionError, RuntimeError) and a ValueError.

    >>> module = torch.nn.MultiheadAttention(8, 2)
    >>> projections = module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0
    >>> x = torch.zeros(5, 3, 8)  # length, batch, width
    >>> output, weights = multi_head_attention_forward(
    ...     x, x, x, 8, 2, *projections, module.out_proj.weight, module.out_proj.bias
    ... )
    >>> output.shape, weights.shape
    (torch.Size([5, 3, 8]), torch.Size([3, 5, 5]))
    """
    tensors = (query, key, value, in_proj_weight, in_proj_bias, bias_k, bias_v, out_proj_weight, out_proj_bias)
    if has_torch_function(tensors):
        return handle_torch_function(
            multi_head_attention_forward,
            tensors,
            *tensors[:3],
            embed_dim_to_check,
            num_heads,
            *tensors[3:7],
            add_zero_attn,
            dropout_p,
            *tensors[7:],
            training=training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=use_separate_proj_weight,
            q_proj_weight=q_proj_weight,
            k_proj_weight=k_proj_weight,
            v_proj_weight=v_proj_weight,
            static_k=static_k,
            static_v=static_v,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    projections = Projections(
        embed_dim_to_check,
        num_heads,
        in_proj_weight,
        separate,
        in_proj_bias,
        out_proj_weight,
        out_proj_bias,
        bias_k,
        bias_v,
        add_zero_attn,
        static_k,
        static_v,
    )
    masks = (key_padding_mask, attn_mask, is_causal)
    problem, want = pose(query, key, value, projections, *masks, need_weights, average_attn_weights)
    dropout = dropout_p if training else 0.0
    check_dropout(dropout)
    heads, weights = compute_attention(problem, dropout, want)
    return projections.merge(heads, query).contiguous(), unbatched(weights, query)


def pose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    projections: Projections,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    need_weights: bool,
    average: bool,
) -> tuple[Problem, Want | None]:
    """Return the attention to compute over projected heads, and what is wanted of its weights.

    Arguments are those of `multi_head_attention_forward`, checked here.
    """
    _check_dimensions(query, key, value, key_padding_mask, attn_mask, projections.heads)
    if query.dim() == 2:
        query, key, value = on_each(lambda x: x.unsqueeze(1), query, key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    q, k, v = projections.project(query, key, value)
    if is_causal and attn_mask is None:
        raise ArgumentError("is_causal needs attn_mask: it only says that attn_mask is the causal mask, pass both")
    further = projections.further
    q_len, k_len, scale = q.shape[2], k.shape[2] - further, 1 / math.sqrt(q.shape[3])
    if is_causal and attn_mask is not None and key_padding_mask is None and not need_weights:
        check_type("attn_mask", attn_mask)  # torch reads the hint alone
        if q_len == k_len and not further:
            return Problem(q, k, v, None, None, True, scale, q.dtype), None
        keep, bias, from_start = causal_from_start(q_len, k_len, q.device), None, not further
        causal = False
    else:
        # All weights of each head are as fast with the mask: they are computed where they stay.
        causal = is_causal and not further and (average or not need_weights) and _is_causal(attn_mask, q_len, k_len)
        sizes = {"batch": q.shape[0], "heads": projections.heads, "q_len": q_len, "k_len": k_len}
        keep, bias = masks_from_torch(key_padding_mask, None if causal else attn_mask, **sizes)
        if bias is not None:
            # Beside a boolean mask it counts as torch counts it: converted to the query's dtype first.
            dtype = bias.dtype if keep is None else torch.promote_types(bias.dtype, query.dtype)
            bias = fit_bias(bias.to(dtype), query.dtype, q.dtype, float32_too=not need_weights)
        from_start = False
    keep, bias = add_open_columns(keep, bias, further)
    want = (HEAD_MEAN if average else WEIGHTS) if need_weights else None
    dtype = q.dtype if bias is None else torch.promote_types(q.dtype, bias.dtype)
    return Problem(q, k, v, keep, bias, causal, scale, dtype, from_start=from_start), want


def _is_causal(mask: Tensor | None, q_len: int, k_len: int) -> bool:
    """Return whether a mask that is said to be the causal one is, so that the later keys needn't be computed.

    Where the weights are wanted torch reads the mask itself: so a wrong hint must not count.
    """
    return (
        mask is not None
        and choose.values_can_be_read(mask)
        and mask.dtype == torch.bool
        and mask.shape == (q_len, k_len)
        and q_len == k_len
        and torch.equal(mask, torch.ones_like(mask).triu(1))
    )


def unbatched(weights: Tensor | None, query: Tensor) -> Tensor | None:
    """Return the weights without their batch axis if the query has none."""
    return weights if weights is None or query.dim() == 3 else weights.squeeze(0)


def on_each(change: Callable[[Tensor], Tensor], *tensors: Tensor) -> list[Tensor]:
    """Change each tensor; what was one object stays one, so that a shared input is still projected in one product."""
    changed: list[Tensor] = []
    for n, x in enumerate(tensors):
        first = next((m for m in range(n) if tensors[m] is x), None)
        changed.append(change(x) if first is None else changed[first])
    return changed


def _check_dimensions(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    heads: int,
) -> None:
    n = query.dim()
    if n not in (2, 3):
        raise ArgumentError(
            f"query should be unbatched 2D or batched 3D tensor but received {n}-D query tensor: pass (length, batch, "
            "embed_dim), (batch, length, embed_dim) with batch_first, or (length, embed_dim)"
        )
    of_query = f"For {'batched (3-D)' if n == 3 else 'unbatched (2-D)'} `query`"
    if key.dim() != n or value.dim() != n:
        raise ArgumentError(
            f"{of_query}, expected `key` and `value` to be {n}-D but found {key.dim()}-D and {value.dim()}-D tensors "
            "respectively: pass all three with a batch axis, or none"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != n - 1:
        shape = "(batch, key_len)" if n == 3 else "(key_len,)"
        raise ArgumentError(
            f"{of_query}, expected `key_padding_mask` to be `None` or {n - 1}-D but found {key_padding_mask.dim()}-D "
            f"tensor instead: pass {shape}"
        )
    if attn_mask is not None and attn_mask.dim() not in (2, 3):
        raise ArgumentError(
            f"{of_query}, expected `attn_mask` to be `None`, 2-D or 3-D but found {attn_mask.dim()}-D tensor instead: "
            "pass (query_len, key_len) or (batch * num_heads, query_len, key_len)"
        )
    if attn_mask is not None and attn_mask.dim() == 3 and n == 2:
        expected = (heads, query.shape[0], key.shape[0])
        if tuple(attn_mask.shape) != expected:
            raise ArgumentError(
                f"Expected `attn_mask` shape to be {expected} (num_heads, query_len, key_len) but got "
                f"{tuple(attn_mask.shape)}: for all heads alike pass (query_len, key_len)"
            )
