"""The numbers to generate in, and linear maps with weights of eight bits."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.kernels.products import ACTIVATIONS_IN_PLACE
from glassformer.device import pick_precision
from glassformer.errors import ConfigError, RunError, shown

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ENGINE = "fbgemm"


@dataclass(frozen=True)
class Precision:
    """The type of weights and products, and whether eight bits are used where they are faster (see `Engine`)."""

    dtype: torch.dtype
    int8: bool = False

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} and int8" if self.int8 else name


def pick_generation_precision(name: str, device: torch.device, own: torch.dtype) -> Precision:
    """Return the precision of this name, for a model whose weights are of the type `own`.

    `auto` on a CPU with instructions for bfloat16 (AVX512_BF16, AMX) is bfloat16, and, if it has those for eight bits
    too (VNNI), a decoder of eight bits for a batch of a single source with a beam of at most 8. On a GPU it is
    bfloat16, before Ampere float16; elsewhere float32. A float64 model stays float64.
    """
    if name != "auto":
        if name not in _TYPES:
            raise ConfigError(f"precision must be one of auto, {', '.join(_TYPES)}, got {shown(name)}")
        return Precision(_TYPES[name])
    if own == torch.float64:
        return Precision(own)
    fast = pick_precision("auto", device)
    if device.type == "cuda" and fast == torch.float32:
        return Precision(torch.float16)
    return Precision(fast, int8=device.type == "cpu" and fast == torch.bfloat16 and can_quantize())


class QuantizedLinear:
    """The map x weightᵀ + bias in int8.

    Each row of the weight has a scale, and x has one, taken from its range at each call. x and the result are float32.
    Measured on Intel with AMX: one to four rows take 0.6 of bfloat16's time, 32 rows 1.3 times as much. A result's
    error is 0.5 % of its spread, bfloat16's 0.25 %.
    """

    def __init__(
        self,
        weight: Float[Tensor, "width_out width_in"],
        bias: Float[Tensor, " width_out"],
    ) -> None:
        weight = weight.float()
        scales = weight.abs().amax(1).double().div(127).clamp(min=torch.finfo(torch.float32).tiny)
        self._pack(weight, scales, bias.float())

    def _pack(self, weight: Tensor, scales: Tensor, bias: Tensor) -> None:
        zeros = torch.zeros(len(weight), dtype=torch.long)
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = _ENGINE
        try:
            with warnings.catch_warnings():
                # Deprecated, and nothing else in torch has these products; see can_quantize.
                warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
                quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(quantized, bias)
        finally:
            torch.backends.quantized.engine = before

    def __getstate__(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a copy is made of, in this process or another: the weight as it is rounded, scales and bias."""
        quantized, bias = torch.ops.quantized.linear_unpack(self._packed)
        return quantized.dequantize(), quantized.q_per_channel_scales(), bias

    def __setstate__(self, state: tuple[Tensor, Tensor, Tensor]) -> None:
        """Lay the weight out anew."""
        self._pack(*state)

    def __call__(self, x: Float[Tensor, "... width_in"]) -> Float[Tensor, "... width_out"]:
        """Return x weightᵀ + bias; raise RunError for an x without a range, since it is not finite."""
        try:
            return torch.ops.quantized.linear_dynamic(x, self._packed)
        except RuntimeError:
            if x.isfinite().all():
                raise
            raise RunError(
                "the model's numbers are not finite while it translates: its training diverged, or it is damaged"
            ) from None

    def activated(self, x: Float[Tensor, "... width_in"], activation: str) -> Float[Tensor, "... width_out"]:
        """Return the activation (relu, swish or gelu) of x weightᵀ + bias."""
        return ACTIVATIONS_IN_PLACE[activation](self(x))

    def added(
        self, x: Float[Tensor, "... width_in"], to: Float[Tensor, "... width_out"]
    ) -> Float[Tensor, "... width_out"]:
        """Return to + x weightᵀ + bias."""
        return self(x).add_(to)


def can_quantize() -> bool:
    """Return whether this torch has these products and this processor the instructions (VNNI) for them."""
    has = torch.cpu.get_capabilities()
    return (
        _ENGINE in torch.backends.quantized.supported_engines
        and hasattr(torch, "quantize_per_channel")
        and hasattr(torch.ops.quantized, "linear_dynamic")
        and hasattr(torch.ops.quantized, "linear_prepack")
        and bool(has.get("avx512_vnni") or has.get("amx_int8"))
    )
