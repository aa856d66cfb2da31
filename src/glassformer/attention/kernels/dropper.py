"""Which attention weights dropout takes, drawn block by block, the same again in the backward pass."""

import math

import torch
from torch import Tensor

from glassformer.attention.kernels.scratch import Scratch


class Dropper:
    """What dropout multiplies the weights with, block after block: 0 or 1 / (1 - p).

    One random byte decides for each, against a threshold drawn for each row from the two whole numbers around 256 p, so
    that each is dropped with probability p exactly.
    """

    def __init__(self, dropout: float, seed: int, scratch: Scratch) -> None:
        device = scratch.device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._below = math.floor(256 * dropout)
        self._more_often = 256 * dropout - self._below
        self._scale = 1 / (1 - dropout)
        self._scratch = scratch

    def next(self, p: Tensor) -> Tensor:
        """Like p, in memory that the next block reuses: as numbers, which products with booleans would copy them to."""
        generator, device = self._generator, p.device
        more = torch.rand(*p.shape[:2], 1, generator=generator, device=device) < self._more_often
        words = torch.empty((p.numel() + 7) // 8, dtype=torch.int64, device=device)
        words.random_(-(2**63), None, generator=generator)
        bytes_ = words.view(torch.uint8)[: p.numel()].view(p.shape)
        stays = torch.ge(bytes_, more.to(torch.uint8).add_(self._below), out=self._scratch.shaped(p.shape))
        return stays.mul_(self._scale)
