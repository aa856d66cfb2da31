"""What a page shows as bytes: names and tokens as JSON, numbers beside it as typed planes, all of it deflated.

The script page/data.js reads it.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

NOTHING = {"u2": 0xFFFF, "u4": 0xFFFFFFFF}
"""Stands for -1, no position."""


class Numbers:
    """Tensors one after the other, equal ones once, each described by what `add` returns.

    Kinds: f4, float32; p2, numbers from 0 up in 16 bits with 5 bits of exponent and 11 of fraction (to 1 in 4,096,
    below 2^-31 of the largest 0); u2 and u4, positions. The bytes of a tensor lie in planes, all lowest first, which
    deflates better.
    """

    def __init__(self) -> None:
        self._parts: dict[bytes, int] = {}
        self._size = 0

    def add(self, tensor: Tensor, kind: str) -> dict[str, Any]:
        """Where it is and what; `tensor` is of any shape, and numbers are from 0 up (positions from -1)."""
        tensor = tensor.detach().cpu()
        scale = 1.0
        if kind == "p2":
            scale = max(1.0, float(tensor.max()))  # weights are at most 1
            codes = _short(tensor.float() / scale)
        elif kind == "f4":
            codes = tensor.float()
        else:
            codes = torch.where(tensor < 0, NOTHING[kind], tensor.long())
        width = int(kind[1])
        planes = codes.contiguous().view(torch.uint8).view(*tensor.shape, -1)[..., :width]
        raw = planes.flatten(0, -2).T.contiguous().numpy().tobytes()
        if raw not in self._parts:
            self._parts[raw] = self._size
            self._size += len(raw)
        place = {"offset": self._parts[raw], "count": tensor.numel(), "type": kind, "scale": scale}
        return place | {"shape": list(tensor.shape)}

    def pack(self, header: Mapping[str, Any]) -> bytes:
        """Header and tensors."""
        text = json.dumps(header, ensure_ascii=False, allow_nan=False).encode(errors="replace")
        return zlib.compress(b"".join([len(text).to_bytes(4, "little"), text, *self._parts]), 9)


def _short(x: Tensor) -> Tensor:
    """Codes of numbers from 0 to 1: the middle of float32's bits, rounded."""
    bits = x.clamp(0.0, 1.0).contiguous().view(torch.int32)
    return (((bits + (1 << 11)) >> 12) - (96 << 11)).clamp(min=0)
