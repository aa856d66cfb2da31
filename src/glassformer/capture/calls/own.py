"""Notice attention that is computed without one of torch's functions: a softmax, then a product with what it gave."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)
PRODUCTS = (
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__),
    *(torch.bmm, Tensor.bmm, torch.baddbmm, torch.einsum),
)


class OwnAttention:
    """Remembers the shape of what the last softmax gave, to tell the product with values."""

    def __init__(self) -> None:
        self._shape: torch.Size | None = None
        self._path = ""

    def remember(self, weights: Tensor, path: str) -> None:
        """Take what a softmax gave in the module of a path. Of two axes it is no attention, but classes or experts."""
        self._shape, self._path = weights.shape if weights.dim() > 2 else None, path

    def is_attention(self, factors: tuple[Any, ...], path: str) -> bool:
        """Return whether a product in the module of a path, or beside it, has the weights among its factors.

        They have as many numbers and keys as before, with dropout, and with axes moved or merged.
        """
        if self._shape is None or not _are_near(path, self._path):
            return False
        tensors = [x for x in factors if isinstance(x, Tensor)]
        lists = (x for x in factors if isinstance(x, list | tuple))
        tensors += [x for several in lists for x in several if isinstance(x, Tensor)]
        found = any(x.numel() == self._shape.numel() and self._shape[-1] in x.shape for x in tensors)
        if found:
            self._shape = None
        return found


def _are_near(path: str, other: str) -> bool:
    """Return whether two modules are the same, one is in the other, or both are parts of one."""
    parent, parent_of_other = (name.rpartition(".")[0] for name in (path, other))
    return path in (other, parent_of_other) or parent in (other, parent_of_other)
