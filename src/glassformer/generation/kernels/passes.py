"""The passes over rows that a step of generation takes beside its products, each in two forms.

`compiled.py` has them compiled by numba, for float32 on a CPU. The others are torch's operators: for other types and
devices, without the extra, and as what the tests compare with.
"""

from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from glassformer.attention.attend import attend_fused
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.products import ACTIVATIONS_IN_PLACE
from glassformer.attention.kernels.topk import topk_classes

ZERO = 128
"""The code of the number 0, in eight bits."""
IN_CACHE = 1 << 19  # log-probabilities that are normalised at once, so that they stay in the processor's cache


@cache
def compiled() -> ModuleType | None:
    """Return the compiled passes, or None where numba doesn't serve (see `choose.compiler_is_there`)."""
    if not choose.compiler_is_there():
        return None
    from glassformer.generation.kernels import compiled as passes

    return passes


@cache
def compiled_codes() -> ModuleType | None:
    """Return the compiled product of codes, or None where numba or the processor's instructions don't serve."""
    if compiled() is None:
        return None
    from glassformer.generation.kernels import codes

    return codes if codes.is_supported() else None


def quantize(x: Float[Tensor, "rows width"]) -> tuple[UInt8[Tensor, "rows width"], Float[Tensor, " rows"]]:
    """Return codes and scales of rows: x is (codes - 128) * scales, rounded.

    The largest number of a row, up to its sign, is 127 scales. A row that isn't finite has a scale that isn't.
    """
    if passes := _serving(x):
        x = x.contiguous()
        codes, scales = torch.empty_like(x, dtype=torch.uint8), x.new_empty(len(x))
        passes.quantize(x.numpy(), codes.numpy(), scales.numpy())
        return codes, scales
    largest = x.abs().amax(1, keepdim=True)
    steps = torch.where(largest > 0, 127.0 / largest, 0.0)
    return x.mul(steps).round_().add_(ZERO).to(torch.uint8), largest.squeeze(1) * (1 / 127)


def rescale(
    product: Float[Tensor, "rows width"], scales: Float[Tensor, " rows"], bias: Float[Tensor, " width"]
) -> None:
    """Set product = product scales + bias."""
    if passes := _serving(product):
        passes.rescale(product.numpy(), scales.numpy(), bias.numpy())
    else:
        product.mul_(scales[:, None]).add_(bias)


def rescale_add(
    product: Float[Tensor, "rows width"],
    scales: Float[Tensor, " rows"],
    bias: Float[Tensor, " width"],
    to: Float[Tensor, "rows width"],
) -> None:
    """Set product = product scales + bias + to."""
    if passes := _serving(product):
        passes.rescale_add(product.numpy(), scales.numpy(), bias.numpy(), to.contiguous().numpy())
    else:
        product.mul_(scales[:, None]).add_(bias).add_(to)


def rescale_activated(
    product: Float[Tensor, "rows width"], scales: Float[Tensor, " rows"], bias: Float[Tensor, " width"], activation: str
) -> Float[Tensor, "rows width"]:
    """Return the activation (relu, swish or gelu) of product scales + bias, which `product` holds no more."""
    if passes := _serving(product):
        in_one = {"relu": passes.rescale_relu, "swish": passes.rescale_swish, "gelu": passes.rescale_gelu}[activation]
        in_one(product.numpy(), scales.numpy(), bias.numpy())
        return product
    rescale(product, scales, bias)
    return ACTIVATIONS_IN_PLACE[activation](product)


def attend(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch heads k_len d_head"],
    v: Float[Tensor, "batch heads k_len d_head"],
    bias: Float[Tensor, "batch 1 #q_len k_len"] | None,
) -> Float[Tensor, "batch heads q_len d_head"]:
    """Return softmax(q kᵀ / sqrt(d_head) + bias) v for a bias of 0 and -inf, by which each query may look somewhere.

    Keys and values may be the first of more, and are read where they are.
    """
    passes = _serving(q)
    if passes is None:
        return attend_fused(q, k, v, bias)
    rows = q.transpose(1, 2).contiguous()
    blocked = q.new_empty(0, 0, 0) if bias is None else bias[:, 0].expand(len(q), -1, -1).contiguous()
    out = torch.empty_like(rows)
    passes.attend(rows.numpy(), _with_room(k).numpy(), _with_room(v).numpy(), blocked.numpy(), k.shape[2], out.numpy())
    return out.transpose(1, 2)


def attend_compiled_serves(q: Tensor) -> bool:
    """Return whether `attend` has a compiled form for these numbers."""
    return _serving(q) is not None


def best_classes(
    logits: Float[Tensor, "rows classes"], k: int, forbidden: int | None
) -> tuple[Float[Tensor, "rows {k}"], Int[Tensor, "rows {k}"]]:
    """Return each row's k highest log-probabilities, highest first, and their classes, without `forbidden`."""
    if passes := _serving(logits):
        log_probs, classes = logits.new_empty(len(logits), k), logits.new_empty(len(logits), k, dtype=torch.long)
        passes.best(logits.numpy(), -1 if forbidden is None else forbidden, log_probs.numpy(), classes.numpy())
        return log_probs, classes
    parts = []
    for rows in logits.split(max(1, IN_CACHE // logits.shape[1])):
        log_probs = log_softmax(rows)
        if forbidden is not None:
            log_probs[:, forbidden] = -torch.inf
        parts.append(topk_classes(log_probs, k))
    if len(parts) == 1:
        return parts[0]
    return torch.cat([log_probs for log_probs, _ in parts]), torch.cat([classes for _, classes in parts])


def log_softmax(logits: Float[Tensor, "rows classes"]) -> Float[Tensor, "rows classes"]:
    """Return log-probabilities, in float32 or better."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _serving(x: Tensor) -> ModuleType | None:
    """Return the compiled passes if they are for such numbers."""
    return compiled() if x.dtype == torch.float32 and x.device.type == "cpu" else None


def _with_room(keys: Float[Tensor, "batch heads k_len d_head"]) -> Float[Tensor, "batch room heads d_head"]:
    """Return all slots of which keys are the first, a slot's heads side by side; a copy if they don't lie like that."""
    batch, heads, length, width = keys.shape
    row = heads * width
    room = keys.stride(0) // row
    strides = (room * row, row, width, 1)
    slots = keys.transpose(1, 2)
    if slots.stride() == strides and room >= length:
        return slots.as_strided((batch, room, heads, width), strides)
    return slots.contiguous()
