"""Linear maps with weights of eight bits, multiplied by rows that are rounded to eight bits on the way.

`codes.py`, compiled by numba, multiplies where it is the faster, elsewhere oneDNN. torch offers oneDNN's products of
eight bits through private operators, `onednn.qlinear_prepack` and `onednn.qlinear_pointwise`. This file alone names
them; `can_quantize` says whether they are there.
"""

from threading import Lock
from typing import Any

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor

from glassformer.device import mapped_memory
from glassformer.generation.kernels import passes
from glassformer.generation.kernels.passes import ZERO

FEW = 16
"""Rows up to which the compiled product is faster than oneDNN on two threads (AMD Zen 4; widths of 512 to 2,048)."""
_packing = Lock()


class QuantizedLinear:
    """The map x weightᵀ + bias in int8: each row of the weight has a scale, and so has each row of x, at each call.

    x and the result are float32. The products themselves are sums of whole numbers, so that a row's result doesn't
    depend on what other rows there are, nor on the number of threads, nor on which library multiplies. Where oneDNN is
    asked for some rows and the compiled product for others, the weight is held in both forms.
    """

    def __init__(
        self,
        weight: Float[Tensor, "width_out width_in"],
        bias: Float[Tensor, " width_out"],
    ) -> None:
        weight = weight.detach().float()
        scales = weight.abs().amax(1).div(127).clamp(min=torch.finfo(torch.float32).tiny)
        self._lay_out(weight.div(scales[:, None]).round_().to(torch.int8), scales, bias.detach().float())

    def _lay_out(
        self,
        codes: Int8[Tensor, "width_out width_in"],
        scales: Float[Tensor, " width_out"],
        bias: Float[Tensor, " width_out"],
    ) -> None:
        self._scales, self._bias = scales, bias
        compiled = passes.compiled_codes()
        self._panels = compiled.Panels(codes.numpy(), scales.numpy(), bias.numpy()) if compiled else None
        self._packed = None if compiled else torch.ops.onednn.qlinear_prepack(codes, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of, in this process or another: the weight's codes, scales and bias."""
        return {"codes": self._codes(), "scales": self._scales, "bias": self._bias}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Lay the weight out anew."""
        self._lay_out(**state)

    def __call__(self, x: Float[Tensor, "... width_in"]) -> Float[Tensor, "... width_out"]:
        """Return x weightᵀ + bias; a row of x that isn't finite gives one that isn't."""
        if self.is_compiled_for(x):
            return self._multiply_panels(x, "")
        product, scales = self._product(x)
        passes.rescale(product, scales, self._bias)
        return product.view(*x.shape[:-1], len(self._scales))

    def activated(self, x: Float[Tensor, "... width_in"], activation: str) -> Float[Tensor, "... width_out"]:
        """Return the activation (relu, swish or gelu) of x weightᵀ + bias."""
        if self.is_compiled_for(x):
            return self._multiply_panels(x, activation)
        product, scales = self._product(x)
        return passes.rescale_activated(product, scales, self._bias, activation).view(*x.shape[:-1], len(self._scales))

    def added(
        self, x: Float[Tensor, "... width_in"], to: Float[Tensor, "... width_out"]
    ) -> Float[Tensor, "... width_out"]:
        """Return to + x weightᵀ + bias."""
        if self.is_compiled_for(x):
            return self._multiply_panels(x, "add", to)
        product, scales = self._product(x)
        passes.rescale_add(product, scales, self._bias, to.reshape(product.shape))
        return product.view(to.shape)

    def is_compiled_for(self, x: Tensor) -> bool:
        """Return whether the compiled product is right and the faster one: it takes one thread, and no AMX."""
        if self._panels is None or x.dtype != torch.float32 or not x.is_cpu:
            return False
        alone = torch.get_num_threads() == 1 and not torch.cpu.get_capabilities().get("amx_int8")
        return alone or x.shape[:-1].numel() <= FEW

    def best_classes(
        self, x: Float[Tensor, "rows width_in"], k: int, forbidden: int | None
    ) -> tuple[Float[Tensor, "rows {k}"], Int[Tensor, "rows {k}"]]:
        """Return `passes.best_classes` of x weightᵀ + bias, if `is_compiled_for` x, without keeping the logits."""
        assert self._panels is not None
        log_probs, classes = x.new_empty(len(x), k), x.new_empty(len(x), k, dtype=torch.long)
        excluded = -1 if forbidden is None else forbidden
        self._panels.best_classes(x.contiguous().numpy(), excluded, log_probs.numpy(), classes.numpy())
        return log_probs, classes

    def _product(self, x: Tensor) -> tuple[Float[Tensor, "rows width_out"], Float[Tensor, " rows"]]:
        """Return the rows of x weightᵀ, each still to be multiplied by its scale, and these scales."""
        codes, scales = passes.quantize(x.reshape(-1, x.shape[-1]))
        return self._multiply(codes, self._scales), scales

    def _multiply(self, codes: UInt8[Tensor, "rows width_in"], scales: Tensor) -> Float[Tensor, "rows width_out"]:
        if self._packed is None:
            with _packing, mapped_memory():
                if self._packed is None:
                    self._packed = torch.ops.onednn.qlinear_prepack(self._codes(), None)
        zeros = torch.zeros_like(scales, dtype=torch.int32)
        return torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, ZERO, self._packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    def _codes(self) -> Int8[Tensor, "width_out width_in"]:
        if self._panels is not None:
            return torch.from_numpy(self._panels.codes())
        assert self._packed is not None
        ones = torch.eye(self._packed.shape[0], dtype=torch.uint8).add_(ZERO)
        return self._multiply(ones, torch.ones_like(self._scales)).mT.to(torch.int8).contiguous()

    def _multiply_panels(self, x: Tensor, then: str, to: Tensor | None = None) -> Tensor:
        assert self._panels is not None
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = rows.new_empty(len(rows), len(self._scales))
        beside = out if to is None else to.reshape(out.shape).contiguous()
        self._panels.multiply(rows.numpy(), then, beside.numpy(), out.numpy())
        return out.view(*x.shape[:-1], len(self._scales))


def can_quantize() -> bool:
    """Return whether this torch has these products and this processor the instructions (VNNI) for them."""
    has = torch.cpu.get_capabilities()
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.onednn, "qlinear_prepack")
        and hasattr(torch.ops.onednn, "qlinear_pointwise")
        and bool(has.get("avx512_vnni") or has.get("avx_vnni") or has.get("amx_int8"))
    )
