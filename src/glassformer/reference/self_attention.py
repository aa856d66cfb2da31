"""Attention of a sequence to itself, with one head."""

import math

from torch import Tensor, nn

from glassformer.reference.errors import InputError
from glassformer.reference.softmax import masked_softmax


class SelfAttention(nn.Module):
    """Self-attention with one head: softmax(Q Kᵀ / sqrt(dim_k)) V with Q = x W_q, K = x W_k, V = x W_v.

    The three linear maps have no bias. The input may be any sequence: tokens of a text, patches of an image. Raises
    InputError if a width is below 1. Source: Vaswani et al. 2017, section 3.2.1.

    >>> import torch
    >>> attention = SelfAttention(dim_q=512, dim_k=64, dim_v=32)
    >>> attended, weights = attention(torch.zeros(2, 16, 512))  # batch, length, width
    >>> attended.shape, weights.shape
    (torch.Size([2, 16, 32]), torch.Size([2, 16, 16]))
    """

    def __init__(self, dim_q: int, dim_k: int, dim_v: int) -> None:
        super().__init__()
        for name, width in (("dim_q", dim_q), ("dim_k", dim_k), ("dim_v", dim_v)):
            if width < 1:
                raise InputError(f"{name} must be at least 1, got {width}")
        self.dim_q, self.dim_k, self.dim_v = dim_q, dim_k, dim_v
        self.linear_q = nn.Linear(dim_q, dim_k, bias=False)
        self.linear_k = nn.Linear(dim_q, dim_k, bias=False)
        self.linear_v = nn.Linear(dim_q, dim_v, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what each position attends to and its weights: (batch, seq, dim_v), (batch, query, key).

        `x` is (batch, seq, dim_q). `mask` has any dtype and broadcasts to (batch, query, key): exactly 0 = blocked, all
        else is open. A query with every key blocked gets zeros. Raises InputError for other widths and shapes.
        """
        if x.dim() != 3 or x.shape[2] != self.dim_q:
            hint = ": for one sequence pass x[None]" if x.dim() == 2 else ""
            raise InputError(f"x must be (batch, seq, dim_q) with dim_q = {self.dim_q}, got {tuple(x.shape)}{hint}")
        if mask is not None:
            self._check_mask(mask, (x.shape[0], x.shape[1], x.shape[1]))
        q, k, v = self.linear_q(x), self.linear_k(x), self.linear_v(x)
        scores = q @ k.transpose(1, 2) / math.sqrt(self.dim_k)
        weights = masked_softmax(scores, None if mask is None else mask == 0, dim=-1)
        return weights @ v, weights

    @staticmethod
    def _check_mask(mask: Tensor, scores: tuple[int, int, int]) -> None:
        sizes = (1,) * (3 - mask.dim()) + tuple(mask.shape)
        if len(sizes) > 3 or any(size not in (1, full) for size, full in zip(sizes, scores, strict=True)):
            raise InputError(f"mask must broadcast to (batch, query, key) = {scores}, got {tuple(mask.shape)}")
