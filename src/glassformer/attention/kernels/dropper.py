"""Random bytes for dropout, one a number: torch draws four bytes for each, a quarter of a training step on a CPU.

A byte has 256 values, so that a threshold for it is a multiple of 1/256. The two users go different ways from there.
Attention weights are dropped with p exactly, since `MultiheadAttention` promises torch's rate: `Dropper` draws a
threshold for each row from the two multiples around p. The numbers between the layers of our own Transformer
(`transformer.dropout`) are dropped with the multiple next to p, one threshold for all. What is left is scaled by that
rounded rate, so that its expectation is right, and no thresholds need to be drawn, kept or compared row by row.
"""

import math

import torch
from torch import Tensor

from glassformer.attention.kernels.scratch import Scratch


def random_bytes(shape: torch.Size, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Return uniformly random bytes, from this generator or the device's own; drawn eight at a time."""
    words = torch.empty((shape.numel() + 7) // 8, dtype=torch.int64, device=device)
    words.random_(-(2**63), None, generator=generator)
    return words.view(torch.uint8)[: shape.numel()].view(shape)


class Dropper:
    """The factors by which dropout multiplies attention weights, block after block: 0 or 1 / (1 - p).

    They are drawn from a seed, so that the backward pass draws the same again. A random byte decides for each weight,
    against a threshold drawn for each row from the two whole numbers around 256 p: each is dropped with probability p.
    """

    def __init__(self, dropout: float, seed: int, scratch: Scratch) -> None:
        device = scratch.device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._below = math.floor(256 * dropout)
        self._more_often = 256 * dropout - self._below
        self._scale = 1 / (1 - dropout)
        self._scratch = scratch

    def next(self, p: Tensor) -> Tensor:
        """Return the factors of a block's weights p, in memory that the next block reuses.

        They are numbers, not booleans, which a product would copy to numbers first.
        """
        generator, device = self._generator, p.device
        more = torch.rand(*p.shape[:2], 1, generator=generator, device=device) < self._more_often
        bytes_ = random_bytes(p.shape, device, generator)
        stays = torch.ge(bytes_, more.to(torch.uint8).add_(self._below), out=self._scratch.shaped(p.shape))
        return stays.mul_(self._scale)
