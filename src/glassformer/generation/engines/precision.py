"""The numbers to generate in."""

from dataclasses import dataclass

import torch

from glassformer.device import pick_precision
from glassformer.errors import ConfigError, shown
from glassformer.generation.kernels.quantized import can_quantize

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The type of weights and products, and whether linear maps are computed in eight bits instead (see `Engine`)."""

    dtype: torch.dtype
    int8: bool = False

    def __str__(self) -> str:
        return "int8" if self.int8 else str(self.dtype).removeprefix("torch.")


def pick_generation_precision(name: str, device: torch.device, own: torch.dtype) -> Precision:
    """Return the precision of this name, for a model whose weights are of the type `own`.

    `auto` on a CPU is int8 if it has instructions for products of eight bits (VNNI, AMX), else bfloat16 if it has
    those. On a GPU it is bfloat16, before Ampere float16. Elsewhere it is float32. A float64 model stays float64.
    """
    if name == "int8":
        if device.type != "cpu":
            raise ConfigError(f"precision int8 is for a CPU, got the device {device}: take the precision auto")
        if not can_quantize():
            raise ConfigError(
                "precision int8 needs a CPU with instructions for it (VNNI, AMX) and a torch with oneDNN, and this "
                "machine lacks one of them: take the precision auto, which picks what is fast here"
            )
        return Precision(torch.float32, int8=True)
    if name != "auto":
        if name not in _TYPES:
            raise ConfigError(f"precision must be one of auto, {', '.join(_TYPES)}, int8, got {shown(name)}")
        return Precision(_TYPES[name])
    if own == torch.float64:
        return Precision(own)
    if device.type == "cpu" and can_quantize():
        return Precision(torch.float32, int8=True)
    fast = pick_precision("auto", device)
    return Precision(torch.float16 if device.type == "cuda" and fast == torch.float32 else fast)
