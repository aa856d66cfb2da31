"""Multi-head attention step by step, sequence first. Each step is a method, which a subclass can replace."""

import math

import torch
from torch import Tensor, nn

from glassformer.reference.errors import InputError


class PrepareForMultiHeadAttention(nn.Module):
    """One linear map, x W + b, whose result is split into heads: (..., d_model) -> (..., heads, d_k).

    It takes any number of leading axes.

    >>> PrepareForMultiHeadAttention(512, 8, 64, bias=True)(torch.zeros(10, 32, 512)).shape
    torch.Size([10, 32, 8, 64])
    """

    def __init__(self, d_model: int, heads: int, d_k: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, heads * d_k, bias=bias)
        self.heads = heads
        self.d_k = d_k

    def forward(self, x: Tensor) -> Tensor:
        """Project x (..., d_model) and split the result into heads (..., heads, d_k)."""
        return self.linear(x).unflatten(-1, (self.heads, self.d_k))


class MultiHeadAttention(nn.Module):
    """Attention with several heads: Concat(head_1 .. head_h) W_o, head_i = softmax(Q_i K_iᵀ / sqrt(d_k)) V_i.

    The number of heads comes first: MultiHeadAttention(8, 512). A head is d_k = d_model / heads wide. `bias` is for the
    projections of queries and keys; that of values always has one. `attn` keeps the weights of the last call
    (seq_q, seq_k, batch, heads), detached and after dropout, for pictures; it is None before the first.

    Raises InputError if d_model is no positive multiple of heads. Source: Vaswani et al. 2017, section 3.2.2.

    >>> attention = MultiHeadAttention(heads=2, d_model=8)
    >>> x = torch.zeros(5, 3, 8)  # length, batch, width
    >>> causal = torch.ones(5, 5, 1).tril()  # queries, keys, batch: 0 = blocked
    >>> attention(query=x, key=x, value=x, mask=causal).shape, attention.attn.shape
    (torch.Size([5, 3, 8]), torch.Size([5, 5, 3, 2]))
    """

    def __init__(self, heads: int, d_model: int, dropout_prob: float = 0.1, bias: bool = True) -> None:
        super().__init__()
        if heads < 1 or d_model < 1 or d_model % heads:
            fits = heads > d_model > 0 and heads % d_model == 0
            hint = (
                f": heads come first, was MultiHeadAttention({d_model}, {heads}) meant? "
                "The class with d_model first is glassformer.reference.transformer.MultiHeadAttention"
            )
            hint = hint if fits else ""
            raise InputError(
                f"d_model must be a positive multiple of heads, got heads {heads}, d_model {d_model}{hint}"
            )
        self.heads = heads
        self.d_k = d_model // heads
        self.query = PrepareForMultiHeadAttention(d_model, heads, self.d_k, bias=bias)
        self.key = PrepareForMultiHeadAttention(d_model, heads, self.d_k, bias=bias)
        self.value = PrepareForMultiHeadAttention(d_model, heads, self.d_k, bias=True)
        self.softmax = nn.Softmax(dim=1)  # over the keys
        self.output = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout_prob)
        self.scale = 1 / math.sqrt(self.d_k)
        self.attn: Tensor | None = None

    def get_score(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the dot product of every query with every key: (i, b, h, d), (j, b, h, d) -> (i, j, b, h)."""
        return torch.einsum("ibhd,jbhd->ijbh", query, key)

    def prepare_mask(self, mask: Tensor, query_shape: torch.Size, key_shape: torch.Size) -> Tensor:
        """Check a mask (seq_q or 1, seq_k, batch or 1), exactly 0 = blocked, and give it an axis for heads.

        A padding mask is (1, seq_k, batch), a causal one (seq, seq, 1). Raises InputError that names the wrong axis.
        Where batch = seq, a mask laid out as (batch, seq_k, seq_q) or (1, seq, seq) passes every check and blocks wrong
        positions: its sizes are right, and its meaning cannot be checked.
        """
        if mask.dim() != 3:
            hint = ": for all of the batch pass mask[:, :, None]" if mask.dim() == 2 else ""
            raise InputError(
                f"mask must have 3 axes (seq_q or 1, seq_k, batch or 1), got {mask.dim()}: {tuple(mask.shape)}{hint}"
            )
        seq_q, seq_k, batch = query_shape[0], key_shape[0], max(query_shape[1], key_shape[1])
        axes = (
            ("0 (query)", {1, seq_q}, f"1 or seq_q = {seq_q}"),
            ("1 (key)", {seq_k}, f"seq_k = {seq_k}"),
            ("2 (batch)", {1, batch}, f"1 or batch = {batch}"),
        )
        for (axis, allowed, words), size in zip(axes, mask.shape, strict=True):
            if size not in allowed:
                raise InputError(
                    f"mask axis {axis} must be {words}, got {size} in {tuple(mask.shape)}: "
                    f"padding is (1, {seq_k}, {batch}), causal is ({seq_q}, {seq_k}, 1)"
                )
        return mask.unsqueeze(-1)

    def block(self, scores: Tensor, blocked: Tensor) -> Tensor:
        """Return the scores (i, j, b, h) with the lowest number of their type where they are blocked.

        That is not -inf: `softmax.masked_softmax` says why.
        """
        return scores.masked_fill(blocked, torch.finfo(scores.dtype).min)

    def get_weights(self, scores: Tensor) -> Tensor:
        """Return the softmax of the scores over the keys, (i, j, b, h)."""
        return self.softmax(scores)

    def get_sum(self, weights: Tensor, value: Tensor) -> Tensor:
        """Return the values summed with these weights: (i, j, b, h), (j, b, h, d) -> (i, b, h, d)."""
        return torch.einsum("ijbh,jbhd->ibhd", weights, value)

    def concatenate(self, heads: Tensor) -> Tensor:
        """Return the heads side by side: (i, b, h, d) -> (i, b, h d)."""
        return heads.flatten(-2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend: query (seq_q, batch, d_model), key and value (seq_k, batch, d_model) -> (seq_q, batch, d_model).

        A batch of 1 stands for every entry of the others' batch. `mask` is described at `prepare_mask`. A query with
        every key blocked gets weights of 0, and the output's bias as its result. Raises InputError for other widths
        and for batch sizes or lengths that differ.
        """
        d_model = self.heads * self.d_k
        if any(x.dim() != 3 or x.shape[2] != d_model for x in (query, key, value)):
            raise InputError(
                f"query, key and value must be (seq, batch, d_model) with d_model = {d_model}, got "
                f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
                f"{': for one sequence pass x[:, None]' if query.dim() == 2 else ''}"
            )
        if len({x.shape[1] for x in (query, key, value)} - {1}) > 1 or len(key) != len(value):
            raise InputError(
                "query, key and value must have one batch size (or 1), and key and value one length, got "
                f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
            )
        query_shape, key_shape = query.shape, key.shape
        query, key, value = self.query(query), self.key(key), self.value(value)
        scores = self.get_score(query, key) * self.scale
        if mask is None:
            weights = self.get_weights(scores)
        else:
            blocked = self.prepare_mask(mask, query_shape, key_shape) == 0
            weights = self.get_weights(self.block(scores, blocked)).masked_fill(blocked, 0.0)
        weights = self.dropout(weights)
        self.attn = weights.detach()
        return self.output(self.concatenate(self.get_sum(weights, value)))
