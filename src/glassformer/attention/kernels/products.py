"""Matrix products through whichever of torch's two CPU libraries is faster on this processor.

torch sends float32 products to MKL, which on some processors leaves half of the speed unused (Zen 5: 200 GFLOP/s
against oneDNN's 475), on others nothing (Zen 4: 196 against 218; Intel with AMX: 361 against 343): `calibration.py`
measures it. torch reaches oneDNN for float32 only through the private operator `mkldnn._linear_pointwise`. This file
and `calibration.py` alone name it; without it everything goes through MKL.
"""

from copy import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.kernels import choose


def linear(
    x: Float[Tensor, "... width_in"],
    weight: Float[Tensor, "width_out width_in"],
    bias: Tensor | None,
) -> Float[Tensor, "... width_out"]:
    """Return x weightᵀ + bias, as `torch.nn.functional.linear`, differentiable twice."""
    if bias is not None and bias.dtype != weight.dtype:  # torch.nn.functional.linear takes it for some layouts only
        return F.linear(x, weight) + bias
    if not choose.onednn_is_faster(x, weight, columns=weight.shape[0]):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _Linear.apply(x, weight, bias)
    return _onednn_linear(x, weight, bias)


class RightFactor:
    """The b of many products a b (each a batch of them), laid out once as the faster library likes it. No gradients."""

    def __init__(self, b: Float[Tensor, "batch inner columns"]) -> None:
        # oneDNN's operator multiplies by a transposed weight, and is a thousand times slower if that is strided. MKL
        # takes any strides, but many columns a fifth faster if they lie in rows.
        self._through_onednn = choose.onednn_is_faster(b, b, columns=b.shape[1])  # whatever a will be
        if self._through_onednn:
            self._b = b.mT.contiguous()
        else:
            self._b = b.contiguous() if b.shape[2] >= choose.COPY_COLUMNS_FROM else b

    def columns(self, number: int, first: int = 0) -> "RightFactor":
        """Return so many columns of b, from the first on."""
        return self._cut(-1, first, number)

    def inner(self, number: int, first: int = 0) -> "RightFactor":
        """Return so many rows of b, from the first on."""
        return self._cut(-2, first, number)

    def _cut(self, axis: int, first: int, number: int) -> "RightFactor":
        axis = -3 - axis if self._through_onednn else axis
        if number == self._b.shape[axis]:
            return self
        part = copy(self)
        part._b = self._b.narrow(axis, first, number)
        if self._through_onednn and axis == -1:
            part._b = part._b.contiguous()
        return part

    def multiply(
        self, a: Float[Tensor, "batch rows inner"], out: Float[Tensor, "batch rows columns"], *, add: bool = False
    ) -> None:
        """Set out = a b; with `add`, out += a b, where out may be more precise than a and b."""
        if not self._through_onednn:
            if add and (out.dtype != a.dtype or not out.is_contiguous()):
                out += torch.bmm(a, self._b)  # into strided memory it would take one product of the batch at a time
            else:
                torch.baddbmm(out, a, self._b, beta=float(add), out=out)
            return
        for left, right, result in zip(a, self._b, out, strict=True):
            product = _onednn_linear(left, right, None)
            result.add_(product) if add else result.copy_(product)


class PackedLinear:
    """A linear map with its weight laid out once as oneDNN likes it; an activation or a sum costs no further pass.

    For generation: products of few rows, again and again with the same weights. 32 rows take half the time of a
    product with a plain weight, in float32 and bfloat16 alike (Intel with AMX; more on processors that aren't
    Intel's). No gradients. Where oneDNN doesn't serve, torch.nn.functional does the same.
    """

    def __init__(self, weight: Float[Tensor, "width_out width_in"], bias: Float[Tensor, " width_out"] | None) -> None:
        self._packed = choose.packing_is_faster(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight.contiguous()
        self._bias = bias

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy is made, in this process or another: of the plain weight, laid out anew there."""
        weight = self._weight.to_dense() if self._packed else self._weight
        return PackedLinear, (weight, self._bias)

    def __call__(self, x: Float[Tensor, "... width_in"]) -> Float[Tensor, "... width_out"]:
        """Return x weightᵀ + bias."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)

    def activated(self, x: Float[Tensor, "... width_in"], activation: str) -> Float[Tensor, "... width_out"]:
        """Return the activation (relu, swish or gelu) of x weightᵀ + bias."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, activation, [], "none")
        return ACTIVATIONS[activation](self(x))

    def added(
        self, x: Float[Tensor, "... width_in"], to: Float[Tensor, "... width_out"]
    ) -> Float[Tensor, "... width_out"]:
        """Return to + x weightᵀ + bias."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, to, self._weight, self._bias, "add")
        return to + self(x)


ACTIVATIONS = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}
"""The activations of a feed-forward layer by their names in `ModelConfig`."""
ACTIVATIONS_IN_PLACE = {"relu": F.relu_, "swish": partial(F.silu, inplace=True), "gelu": F.gelu}
"""The same where the numbers given are needed no more; gelu has no such form."""


class _Linear(torch.autograd.Function):
    """A linear map whose three products all go through oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Only what a gradient needs, so that the rest is freed, and may be changed in place.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)
        return _onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        plain = torch.is_grad_enabled() or not choose.is_eager(grad) or choose.is_batched(grad)
        product = F.linear if plain else _onednn_linear
        grad_rows = grad.reshape(-1, grad.shape[-1])
        rows = None if x is None else x.reshape(-1, x.shape[-1])
        return (
            None if weight is None else product(grad, weight.mT.contiguous(), None),
            None if rows is None else product(grad_rows.mT.contiguous(), rows.mT.contiguous(), None),
            grad_rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
