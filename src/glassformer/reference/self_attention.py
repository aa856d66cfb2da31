"""Attention of a sequence to itself, with one head."""

import math

from torch import Tensor, nn

from glassformer.reference.softmax import masked_softmax


class SelfAttention(nn.Module):
    """softmax(Q Kᵀ / sqrt(dim_k)) V with Q = x W_q, K = x W_k, V = x W_v (Vaswani et al. 2017, section 3.2.1).

    Three linear maps without bias, one input: the tokens of a text, the patches of an image, any sequence.

        attention = SelfAttention(dim_q=512, dim_k=64, dim_v=64)
        attended, weights = attention(x, mask)   # x (batch, seq, 512): (batch, seq, 64), (batch, seq, seq)
    """

    def __init__(self, dim_q: int, dim_k: int, dim_v: int) -> None:
        super().__init__()
        for name, width in (("dim_q", dim_q), ("dim_k", dim_k), ("dim_v", dim_v)):
            if width < 1:
                raise ValueError(f"{name} must be at least 1, got {width}")
        self.dim_q, self.dim_k, self.dim_v = dim_q, dim_k, dim_v
        self.linear_q = nn.Linear(dim_q, dim_k, bias=False)
        self.linear_k = nn.Linear(dim_q, dim_k, bias=False)
        self.linear_v = nn.Linear(dim_q, dim_v, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (batch, seq, dim_q) -> attended (batch, seq, dim_v), weights (batch, query, key).

        `mask` broadcasts to (batch, query, key), any dtype: exactly 0 = blocked, all else may be looked at. A query
        that may look nowhere gets zeros.
        """
        if x.dim() != 3 or x.shape[2] != self.dim_q:
            raise ValueError(f"x must be (batch, seq, dim_q) with dim_q = {self.dim_q}, got {tuple(x.shape)}")
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
            raise ValueError(f"mask must broadcast to (batch, query, key) = {scores}, got {tuple(mask.shape)}")
