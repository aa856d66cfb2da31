"""Dropout (Srivastava et al. 2014) with cheap random numbers on the CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.kernels.choose import is_batched, is_eager
from glassformer.attention.kernels.dropper import random_bytes
from glassformer.errors import ArgumentError


class Dropout(nn.Module):
    """Zeroes each number with probability p while training and scales the rest by 1 / (1 - p).

    On the CPU one random byte decides per number (torch draws a float for each, which takes a quarter of a training
    step); p is rounded to 1/256, at least 1/256 when it isn't 0, and the scale is that of the rounded rate.
    Reproducible from `torch.manual_seed`. It is torch's on other devices, and compiled or transformed.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ArgumentError(f"p must be at least 0 and less than 1, got {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or self.p == 0:
            return x
        if _is_torchs(x):
            return F.dropout(x, self.p)
        return _Drop.apply(x, *self._drawn(x))

    def added(self, x: Float[Tensor, "*shape"], to: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """to + dropout(x), in fewer passes over memory."""
        if not self.training or self.p == 0 or _is_torchs(x):
            return to + self(x)
        return _AddDropped.apply(x, to, *self._drawn(x))

    def _drawn(self, x: Tensor) -> tuple[Tensor, int]:
        """Random bytes, and how many of their 256 values drop."""
        return random_bytes(x.shape, x.device), min(255, max(1, round(256 * self.p)))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _is_torchs(x: Tensor) -> bool:
    """Return whether torch's dropout is taken: on other devices, and where code is compiled or transformed."""
    return x.device.type != "cpu" or not is_eager(x)


class _Drop(torch.autograd.Function):
    """x, zero where a byte is less than `dropped` of 256, the rest scaled; keeps the bytes alone.

    The mask is computed as numbers: torch multiplies by booleans five times as slowly.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bytes_: Tensor, dropped: int) -> Tensor:
        ctx.save_for_backward(bytes_)
        ctx.dropped = dropped
        return _dropped(x, bytes_, dropped)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (bytes_,) = ctx.saved_tensors
        return _gradient(grads[0], bytes_, ctx.dropped), None, None


class _AddDropped(torch.autograd.Function):
    """to + what `_Drop` makes of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, to: Tensor, bytes_: Tensor, dropped: int) -> Tensor:
        ctx.save_for_backward(bytes_)
        ctx.dropped = dropped
        return torch.add(to, _kept(x, bytes_, dropped), alpha=_scale(dropped))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (bytes_,) = ctx.saved_tensors
        return _gradient(grads[0], bytes_, ctx.dropped), grads[0], None, None


def _kept(x: Tensor, bytes_: Tensor, dropped: int) -> Tensor:
    keep = torch.ge(bytes_, dropped, out=torch.empty_like(bytes_, dtype=x.dtype))
    return x * keep if is_batched(x) else keep.mul_(x)


def _dropped(x: Tensor, bytes_: Tensor, dropped: int) -> Tensor:
    return _kept(x, bytes_, dropped).mul_(_scale(dropped))


def _gradient(grad: Tensor, bytes_: Tensor, dropped: int) -> Tensor:
    return (_Drop.apply if torch.is_grad_enabled() else _dropped)(grad, bytes_, dropped)


def _scale(dropped: int) -> float:
    return 256 / (256 - dropped)
