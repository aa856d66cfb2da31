"""The format of a page's data: names and tokens as JSON, then numbers as planes of bytes, all of it deflated.

The script web/data.js reads it.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

NO_POSITION = {"u2": 0xFFFF, "u4": 0xFFFFFFFF}
"""The code of -1 (no position), by kind."""


class PackedTensors:
    """Tensors one after the other. Equal tensors are stored once; `add` returns where each one is.

    A tensor has one of four kinds. f4 is float32. p2 is for numbers from 0 up: 16 bits, with 5 of exponent and 11 of
    fraction, exact to 1 part in 4,096; numbers below 2^-31 of the largest are 0. u2 and u4 are whole numbers:
    positions, or the colours of an image. The bytes of a tensor lie in planes, the lowest bytes of all numbers first,
    because that deflates better.
    """

    def __init__(self) -> None:
        self._parts: dict[bytes, int] = {}
        self._size = 0

    def add(self, tensor: Tensor, kind: str) -> dict[str, Any]:
        """Store a tensor of any shape, of numbers from 0 up or positions from -1; return its place and description."""
        tensor = tensor.detach().cpu()
        scale = 1.0
        if kind == "p2":
            scale = max(1.0, float(tensor.max()))  # weights are at most 1
            codes = _codes_p2(tensor.float() / scale)
        elif kind == "f4":
            codes = tensor.float()
        else:
            codes = torch.where(tensor < 0, NO_POSITION[kind], tensor.long())
        width = int(kind[1])
        planes = codes.contiguous().view(torch.uint8).view(*tensor.shape, -1)[..., :width]
        raw = planes.flatten(0, -2).T.contiguous().numpy().tobytes()
        if raw not in self._parts:
            self._parts[raw] = self._size
            self._size += len(raw)
        place = {"offset": self._parts[raw], "count": tensor.numel(), "type": kind, "scale": scale}
        return place | {"shape": list(tensor.shape)}

    def pack(self, header: Mapping[str, Any]) -> bytes:
        """Return the header and the tensors, deflated."""
        text = json.dumps(header, ensure_ascii=False, allow_nan=False).encode(errors="replace")
        return zlib.compress(b"".join([len(text).to_bytes(4, "little"), text, *self._parts]), 9)


def _codes_p2(x: Tensor) -> Tensor:
    """Return the 16-bit codes of numbers from 0 to 1: the middle bits of float32, rounded."""
    bits = x.clamp(0.0, 1.0).contiguous().view(torch.int32)
    return (((bits + (1 << 11)) >> 12) - (96 << 11)).clamp(min=0)
