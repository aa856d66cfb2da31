"""Notice attention that is computed without one of torch's functions: a softmax, then a product with what it gave."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax)
PRODUCTS = (
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__),
    *(torch.bmm, Tensor.bmm, torch.baddbmm, torch.einsum),
)


class OwnAttention:
    """Remembers the shape of what the last softmax gave, to tell the product with values."""

    def __init__(self) -> None:
        self._shape: torch.Size | None = None

    def remember(self, weights: Tensor) -> None:
        """Take what a softmax gave. Of two axes it is no attention, but classes or experts."""
        self._shape = weights.shape if weights.dim() > 2 else None

    def is_attention(self, factors: tuple[Any, ...]) -> bool:
        """Return whether one of the factors has the weights' numbers: with dropout, or with axes moved or merged."""
        if self._shape is None:
            return False
        tensors = [x for x in factors if isinstance(x, Tensor)]
        lists = (x for x in factors if isinstance(x, list | tuple))
        tensors += [x for several in lists for x in several if isinstance(x, Tensor)]
        found = any(x.numel() == self._shape.numel() and self._shape[-1] in x.shape for x in tensors)
        if found:
            self._shape = None
        return found
