"""Dropout (Srivastava et al. 2014) with cheap random numbers on the CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Dropout(nn.Module):
    """Zeroes each number with probability p while training and scales the rest by 1 / (1 - p).

    On the CPU one random byte decides per number (torch draws a float for each, which takes a quarter of a training
    step); p is rounded to 1/256, at least 1/256 when it isn't 0, and the scale is that of the rounded rate.
    Reproducible from `torch.manual_seed`.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must be at least 0 and less than 1, got {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = min(255, max(1, round(256 * self.p)))
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        keep = (words.view(torch.uint8)[: x.numel()] >= dropped).view(x.shape)
        return _Scale.apply(x, keep, 256 / (256 - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Scale(torch.autograd.Function):
    """x * keep * scale; its gradient needs the boolean mask alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x * keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return (grads[0] * keep).mul_(ctx.scale), None, None
