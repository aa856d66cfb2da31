"""Memory that each block uses anew: fresh memory costs as much as computing in it."""

import math

import torch
from torch import Tensor


class Place:
    """A tensor that stands where scratch memory might: what is computed in it stays."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def shaped(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        assert self._tensor.shape == torch.Size(shape)
        return self._tensor


class Scratch:
    """Memory for a tensor of any shape, which grows to the largest asked for. Each use overwrites the one before."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._memory = torch.empty(0, dtype=dtype, device=device)

    def shaped(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        if self._memory.numel() < math.prod(shape):
            self._memory = self._memory.new_empty(0)  # freed before the larger one is taken
            self._memory = self._memory.new_empty(math.prod(shape))
        return self._memory[: math.prod(shape)].view(shape)
