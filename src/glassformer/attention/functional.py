"""`torch.nn.functional.multi_head_attention_forward`, argument for argument (Vaswani et al. 2017, section 3.2.2)."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from glassformer.attention.attend import attend
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.products import linear
from glassformer.attention.masks import add_open_columns, causal_from_start, check_type, fit_bias, masks_from_torch
from glassformer.attention.observe import observe_problem
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
    """Concat(head_1 .. head_h) W_o, head_i = softmax(q_i k_iᵀ / sqrt(d_head) + mask) v_i.

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
    """
    tensors = (query, key, value, in_proj_weight, in_proj_bias, bias_k, bias_v, out_proj_weight, out_proj_bias)
    arguments = (*tensors[:3], embed_dim_to_check, num_heads, *tensors[3:7], add_zero_attn, dropout_p, *tensors[7:])
    settings: dict[str, Any] = dict(
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
    if has_torch_function(tensors):
        return handle_torch_function(multi_head_attention_forward, tensors, *arguments, **settings)
    output, weights = forward_in_memory_order(*arguments, **settings)
    return output.contiguous(), weights


def forward_in_memory_order(
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
    *,
    training: bool,
    key_padding_mask: Tensor | None,
    need_weights: bool,
    attn_mask: Tensor | None,
    use_separate_proj_weight: bool,
    q_proj_weight: Tensor | None,
    k_proj_weight: Tensor | None,
    v_proj_weight: Tensor | None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool,
    is_causal: bool,
    attention: AttentionFunction = compute_attention,
) -> tuple[Tensor, Tensor | None]:
    """`multi_head_attention_forward`, but the output lies in memory as the query does: batch-major where that is."""
    batched = query.dim() == 3
    _check_dimensions(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = on_each(lambda x: x.unsqueeze(1), query, key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    _check_sizes(query, key, value, embed_dim_to_check, num_heads, in_proj_weight, separate)
    _check_further_keys(query, num_heads, bias_k, bias_v, static_k, static_v)
    if is_causal and attn_mask is None:
        raise ArgumentError("is_causal needs attn_mask: it only says that attn_mask is the causal mask, pass both")

    q, k, v = _project(query, key, value, num_heads, in_proj_weight, in_proj_bias, separate, static_k, static_v)
    keys = k.shape[2]
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, _one_key(bias_k, k)], dim=2)
        v = torch.cat([v, _one_key(bias_v, v)], dim=2)
    if add_zero_attn:
        k, v = torch.nn.functional.pad(k, (0, 0, 0, 1)), torch.nn.functional.pad(v, (0, 0, 0, 1))
    further = k.shape[2] - keys

    dropout, scale = dropout_p if training else 0.0, 1 / math.sqrt(q.shape[3])
    hinted = is_causal and key_padding_mask is None and not need_weights
    if hinted and attn_mask is not None:
        check_type("attn_mask", attn_mask)
    if hinted and q.shape[2] == keys and not further:
        of, want = Problem(q, k, v, None, None, True, scale, q.dtype), None
    else:
        if hinted:
            keep, bias = causal_from_start(q.shape[2], keys, q.device), None
        else:
            sizes = {"batch": q.shape[0], "heads": num_heads, "q_len": q.shape[2], "k_len": keys}
            keep, bias = masks_from_torch(key_padding_mask, attn_mask, **sizes)
            if bias is not None:
                # Beside a boolean mask it counts as torch counts it: converted to the query's dtype first.
                dtype = bias.dtype if keep is None else torch.promote_types(bias.dtype, query.dtype)
                bias = fit_bias(bias.to(dtype), query.dtype, q.dtype, float32_too=not need_weights)
        keep, bias = add_open_columns(keep, bias, further)
        want = (HEAD_MEAN if average_attn_weights else WEIGHTS) if need_weights else None
        of = Problem(q, k, v, keep, bias, False, scale, q.dtype)
    output, weights = attention(of, dropout, want)

    output = _merge_heads(output, query, out_proj_weight, out_proj_bias)
    if batched:
        return output, weights
    return output.squeeze(1), None if weights is None else weights.squeeze(0)


def on_each(change: Callable[[Tensor], Tensor], *tensors: Tensor) -> list[Tensor]:
    """Each tensor changed; what was one object stays one, so that a shared input is still projected in one product."""
    changed: list[Tensor] = []
    for n, x in enumerate(tensors):
        first = next((m for m in range(n) if tensors[m] is x), None)
        changed.append(change(x) if first is None else changed[first])
    return changed


def _project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    packed: Tensor | None,
    bias: Tensor | None,
    separate: tuple[Tensor | None, Tensor | None, Tensor | None] | None,
    static_k: Tensor | None,
    static_v: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of each head, (N, heads, length, d_head); one product for inputs that are one tensor."""
    if packed is not None and separate is None and key is value and static_k is None and static_v is None:
        if query is key:
            q, k, v = _linear_heads(query, packed, bias, heads, 3)
        else:
            width = query.shape[-1]
            b_q, b_kv = (None, None) if bias is None else (bias[:width], bias[width:])
            (q,) = _linear_heads(query, packed[:width], b_q, heads, 1)
            k, v = _linear_heads(key, packed[width:], b_kv, heads, 2)
        return q, k, v
    weights = cast(tuple[Tensor, Tensor, Tensor], separate if packed is None or separate else packed.chunk(3))
    biases = (None, None, None) if bias is None else bias.chunk(3)
    q, k, v = (
        _linear_heads(x, weight, b, heads, 1)[0] if static is None else static.unflatten(0, (query.shape[1], heads))
        for x, weight, b, static in zip((query, key, value), weights, biases, (None, static_k, static_v), strict=True)
    )
    return q, k, v


def _linear_heads(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int, parts: int) -> tuple[Tensor, ...]:
    """x (length, N, width) times `parts` weights stacked; each part as (N, heads, length, d_head), a view."""
    batch_major = _is_batch_major(x)
    y = linear(x.transpose(0, 1) if batch_major else x, weight, bias)
    first, second, width = y.shape
    y = y.view(first, second, parts, heads, width // (parts * heads))
    return (y.permute(2, 0, 3, 1, 4) if batch_major else y.permute(2, 1, 3, 0, 4)).unbind(0)


def _merge_heads(output: Tensor, query: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(N, heads, L, d_head) -> (L, N, E), projected, in the memory order of `query`."""
    if _is_batch_major(query):
        return linear(output.transpose(1, 2).flatten(2), weight, bias).transpose(0, 1)
    return linear(output.permute(2, 0, 1, 3).flatten(2), weight, bias)


def _is_batch_major(x: Tensor) -> bool:
    """True for a (length, N, width) view of (N, length, width): products read it as it lies, without a copy."""
    return not x.is_contiguous() and x.transpose(0, 1).is_contiguous()


def _one_key(bias: Tensor, like: Tensor) -> Tensor:
    """bias_k or bias_v (1, 1, E) as one more key of each head: (N, heads, 1, d_head)."""
    batch, heads, _, width = like.shape
    return bias.view(1, heads, 1, width).expand(batch, -1, -1, -1)


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


def _check_sizes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    heads: int,
    packed: Tensor | None,
    separate: tuple[Tensor | None, Tensor | None, Tensor | None] | None,
) -> None:
    if query.shape[2] != embed_dim:
        raise ArgumentError(f"query must be embed_dim = {embed_dim} wide, got shape {tuple(query.shape)}")
    if embed_dim % heads:
        raise ArgumentError(f"embed_dim must be divisible by num_heads, got embed_dim {embed_dim}, num_heads {heads}")
    if key is not value and key.shape[:2] != value.shape[:2]:
        raise ArgumentError(
            f"key and value must have one length and batch, got {tuple(key.shape[:2])} and {tuple(value.shape[:2])}"
        )
    if key is not query and key.shape[1] != query.shape[1]:
        raise ArgumentError(
            f"query and key must have one batch size, got {query.shape[1]} and {key.shape[1]}: was batch_first meant?"
        )
    if separate is not None:
        for name, x, weight in zip(("query", "key", "value"), (query, key, value), separate, strict=True):
            if weight is None:
                raise ArgumentError(f"{name[0]}_proj_weight must be given with use_separate_proj_weight, got None")
            _check_width(name, x, weight)
    elif packed is None:
        raise ArgumentError("in_proj_weight must be given unless use_separate_proj_weight is set, got None")
    else:
        _check_width("query", query, packed)
        if key is not query or value is not query:
            _check_width("key", key, packed)
            _check_width("value", value, packed)


def _check_width(name: str, x: Tensor, weight: Tensor) -> None:
    if x.shape[2] != weight.shape[1]:
        raise ArgumentError(
            f"{name} must be {weight.shape[1]} wide, as its projection weight {tuple(weight.shape)} says, got shape "
            f"{tuple(x.shape)}: another width needs kdim or vdim"
        )


def _check_further_keys(
    query: Tensor,
    heads: int,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    static_k: Tensor | None,
    static_v: Tensor | None,
) -> None:
    if (bias_k is None) != (bias_v is None):
        given, missing = ("bias_v", "bias_k") if bias_k is None else ("bias_k", "bias_v")
        raise ArgumentError(f"{given} is set but {missing} is None: pass both or neither")
    for name, static in (("key", static_k), ("value", static_v)):
        if static is None:
            continue
        if bias_k is not None:
            raise ArgumentError(
                f"bias cannot be added to static {name}: pass bias_k and bias_v, or static ones, not both"
            )
        rows, width = query.shape[1] * heads, query.shape[2] // heads
        if static.dim() != 3 or static.shape[0] != rows or static.shape[2] != width:
            raise ArgumentError(
                f"static_{name[0]} must be (batch * num_heads, {name}_len, d_head) = ({rows}, any, {width}), got "
                f"{tuple(static.shape)}"
            )
