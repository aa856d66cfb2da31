"""Linear maps with weights of eight bits, which oneDNN multiplies by rows that are rounded to eight bits on the way.

torch offers oneDNN's products of eight bits through private operators, `onednn.qlinear_prepack` and
`onednn.qlinear_pointwise`. This file alone names them; `can_quantize` says whether they are there.
"""

from typing import Any

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor

from glassformer.generation.kernels import passes

ZERO = 128
"""The code of the number 0."""


class QuantizedLinear:
    """The map x weightᵀ + bias in int8: each row of the weight has a scale, and so has each row of x, at each call.

    x and the result are float32. The products themselves are sums of whole numbers, so that a row's result doesn't
    depend on what other rows there are, nor on the number of threads.
    """

    def __init__(
        self,
        weight: Float[Tensor, "width_out width_in"],
        bias: Float[Tensor, " width_out"],
    ) -> None:
        weight = weight.float()
        scales = weight.abs().amax(1).div(127).clamp(min=torch.finfo(torch.float32).tiny)
        self._lay_out(weight.div(scales[:, None]).round_().to(torch.int8), scales, bias.float())

    def _lay_out(
        self,
        codes: Int8[Tensor, "width_out width_in"],
        scales: Float[Tensor, " width_out"],
        bias: Float[Tensor, " width_out"],
    ) -> None:
        self._scales, self._bias = scales, bias.detach()
        self._zeros = torch.zeros_like(scales, dtype=torch.int32)
        self._packed = torch.ops.onednn.qlinear_prepack(codes, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of, in this process or another: the weight's codes, scales and bias."""
        width = self._packed.shape[0]
        ones = torch.eye(width, dtype=torch.uint8, device=self._scales.device).add_(ZERO)
        codes = self._multiply(ones, torch.ones_like(self._scales)).mT.to(torch.int8).contiguous()
        return {"codes": codes, "scales": self._scales, "bias": self._bias}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Lay the weight out anew."""
        self._lay_out(**state)

    def __call__(self, x: Float[Tensor, "... width_in"]) -> Float[Tensor, "... width_out"]:
        """Return x weightᵀ + bias; a row of x that isn't finite gives one that isn't."""
        product, scales = self._product(x)
        passes.rescale(product, scales, self._bias)
        return product.view(*x.shape[:-1], -1)

    def activated(self, x: Float[Tensor, "... width_in"], activation: str) -> Float[Tensor, "... width_out"]:
        """Return the activation (relu, swish or gelu) of x weightᵀ + bias."""
        product, scales = self._product(x)
        return passes.rescale_activated(product, scales, self._bias, activation).view(*x.shape[:-1], -1)

    def added(
        self, x: Float[Tensor, "... width_in"], to: Float[Tensor, "... width_out"]
    ) -> Float[Tensor, "... width_out"]:
        """Return to + x weightᵀ + bias."""
        product, scales = self._product(x)
        passes.rescale_add(product, scales, self._bias, to.reshape(product.shape))
        return product.view(to.shape)

    def _product(self, x: Tensor) -> tuple[Float[Tensor, "rows width_out"], Float[Tensor, " rows"]]:
        """Return the rows of x weightᵀ, each still to be multiplied by its scale, and these scales."""
        codes, scales = passes.quantize(x.reshape(-1, x.shape[-1]))
        return self._multiply(codes, self._scales), scales

    def _multiply(self, codes: UInt8[Tensor, "rows width_in"], scales: Tensor) -> Float[Tensor, "rows width_out"]:
        return torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, ZERO, self._packed, scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )


def can_quantize() -> bool:
    """Return whether this torch has these products and this processor the instructions (VNNI) for them."""
    has = torch.cpu.get_capabilities()
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.onednn, "qlinear_prepack")
        and hasattr(torch.ops.onednn, "qlinear_pointwise")
        and bool(has.get("avx512_vnni") or has.get("avx_vnni") or has.get("amx_int8"))
    )
