"""Record a call of `F.scaled_dot_product_attention`, or of glassformer's `attend` and `observe`."""

import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from glassformer.attention.autocast import cast_as_autocast
from glassformer.attention.masks import causal_from_start
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe
from glassformer.capture.record import Place
from glassformer.errors import ArgumentError


def record_scaled_dot_product(
    place: Place,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return what `F.scaled_dot_product_attention` does, recorded.

    Axes before the heads are one batch, and there may be none: three axes are (heads, length, width). (length, width)
    has one head.
    """
    if query.is_nested or key.is_nested:
        raise ArgumentError(
            f"{place.name} computes attention of nested tensors, which observe doesn't: pad them, or choose "
            "other layers"
        )
    query, key, value = cast_as_autocast(query, key, value)
    leading = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q, k, v = (_with_heads(x, leading) for x in (query, key, value))
    most = max(k.shape[1], v.shape[1])
    q, k, v = (x.expand(-1, most, -1, -1) if x.shape[1] == 1 else x for x in (q, k, v))  # a single head for all
    if enable_gqa:  # keys may have other heads than values
        k, v = (x.repeat_interleave(most // x.shape[1], 1) if x.shape[1] < most else x for x in (k, v))
    q_len, k_len = q.shape[2], k.shape[2]
    mask = None if attn_mask is None else _of_four_axes(_as_plain(attn_mask, place.name, q), leading, k_len)
    keep, bias = (mask, None) if mask is None or mask.dtype == torch.bool else (None, mask)
    if is_causal and q_len != k_len:  # torch counts both from their beginnings, observe from their ends
        before = causal_from_start(q_len, k_len, q.device)
        keep, is_causal = before if keep is None else keep & before, False
    scale = None if scale is None else float(scale)  # torch takes what can be made a number, such as a tensor
    asked = place.reserve(q.shape[0], q.shape[1], q_len, k_len)
    settings: dict[str, Any] = dict(keep=keep, bias=bias, causal=is_causal, scale=scale, dropout=dropout_p)
    first_query = asked.first_under(causal=is_causal)
    output, observation = observe(q, k, v, **settings, want=asked.want, first_query=first_query)
    place.add(observation)
    # Torch's fused forms lay the output out as (batch, length, heads, width), and models merge the heads by a view.
    output = output.transpose(1, 2).contiguous().transpose(1, 2)
    return output.reshape(*leading, *(q.shape[1:3] if query.dim() > 2 else q.shape[2:3]), v.shape[3])


def record_attend(place: Place, q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
    """Return what glassformer's `attend` does, recorded."""
    q, k, v = cast_as_autocast(q, k, v)
    asked = place.reserve(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    first_query = asked.first_under(causal=settings.get("causal", False))
    output, observation = observe(q, k, v, **settings, want=asked.want, first_query=first_query)
    place.add(observation)
    return output


def record_observe(place: Place, q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> tuple[Tensor, Observation]:
    """Return what `observe` does, and record it with the facts that the record wants, of the same dropped weights."""
    asked = place.reserve(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    first_query = settings.get("first_query") or asked.first_under(causal=settings.get("causal", False))
    with random_numbers_apart(q):
        place.add(observe(q, k, v, **{**settings, "want": asked.want, "first_query": first_query})[1])
    return observe(q, k, v, **settings)


def random_numbers_apart(like: Tensor | tuple[Tensor, ...]) -> AbstractContextManager[None]:
    """Return a context after which the random numbers of a tensor's device go on as if nothing had been drawn."""
    device = (like if isinstance(like, Tensor) else like[0]).device
    on_cpu = device.type == "cpu"
    return torch.random.fork_rng([] if on_cpu else [device], device_type="cuda" if on_cpu else device.type)


def _with_heads(x: Tensor, leading: torch.Size) -> Tensor:
    """Return (batch, heads, length, width)."""
    x = x[(None,) * (3 - x.dim())]
    x = x.expand(*leading, *x.shape[-3:])
    return x.flatten(0, -4) if leading else x[None]


def _as_plain(mask: Any, name: str, q: Tensor) -> Tensor:
    """Return a mask as a tensor of torch's own class, where it is a causal one of `torch.nn.attention.bias`."""
    biases = sys.modules.get("torch.nn.attention.bias")  # loading it takes over a second
    if biases is not None and isinstance(mask, biases.CausalBias):
        q_len, k_len = mask.seq_len_q, mask.seq_len_kv
        from_start = mask.variant == biases.CausalVariant.UPPER_LEFT
        return torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).tril(0 if from_start else k_len - q_len)
    if type(mask) not in (Tensor, Parameter):
        raise ArgumentError(f"{name} computes attention with a {type(mask)}, which can't be recorded: pass a Tensor")
    return mask


def _of_four_axes(mask: Tensor, leading: torch.Size, k_len: int) -> Tensor:
    """Return a mask that broadcasts to (batch, heads, queries, keys), the axes `leading` being one batch."""
    mask = mask.expand(*mask.shape[:-1], k_len)
    mask = mask[(None,) * (2 - mask.dim())]
    if mask.dim() <= 3:
        return mask[(None,) * (4 - mask.dim())]
    mask = mask.expand(*leading, *mask.shape[-3:]) if leading else mask
    return mask.flatten(0, -4)
