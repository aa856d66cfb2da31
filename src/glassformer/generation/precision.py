"""In which numbers to generate."""

from dataclasses import dataclass

import torch

from glassformer.device import pick_precision
from glassformer.errors import ConfigError
from glassformer.generation.quantized import can_quantize

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The type of weights and products, and whether eight bits do where they are faster (see `Engine`)."""

    dtype: torch.dtype
    int8: bool = False

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} and int8" if self.int8 else name


def pick_generation_precision(name: str, device: torch.device, own: torch.dtype) -> Precision:
    """The precision of this name, for a model whose weights are of the type `own`.

    `auto` on a CPU with instructions for bfloat16 (AVX512_BF16, AMX) is bfloat16, and, if it has those for eight bits
    too (VNNI), a decoder of eight bits for a batch of a single source with a beam of at most 8. On a GPU it is
    bfloat16, before Ampere float16; elsewhere float32. A float64 model stays one.
    """
    if name != "auto":
        if name not in _TYPES:
            raise ConfigError(f"precision must be one of auto, {', '.join(_TYPES)}, got {name!r}")
        return Precision(_TYPES[name])
    if own == torch.float64:
        return Precision(own)
    fast = pick_precision("auto", device)
    if device.type == "cuda" and fast == torch.float32:
        return Precision(torch.float16)
    return Precision(fast, int8=device.type == "cpu" and fast == torch.bfloat16 and can_quantize())
