"""Encoder and decoder layers: LayerNorm(x + Dropout(sublayer(x))) (Vaswani et al. 2017, section 3.1).

With `norm_first` they are x + Dropout(sublayer(LayerNorm(x))), so that nothing stands between a layer's input and its
output (Xiong et al. 2020).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.attention.kernels.products import ACTIVATIONS
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.packing import Packing
from glassformer.transformer.cache import LayerCache
from glassformer.transformer.dropout import Dropout

Hidden = Float[Tensor, "batch length d_model"]


class FeedForward(nn.Module):
    """activation(x W_1 + b_1) W_2 + b_2 (section 3.3, where the activation is max(0, x))."""

    def __init__(self, d_model: int, d_ff: int, activation: str = "relu") -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x: Hidden) -> Hidden:
        return self.outer(ACTIVATIONS[self.activation](self.inner(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_ff: int,
        dropout: float,
        attention_dropout: float,
        activation: str = "relu",
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.self_attention = MultiheadAttention(d_model, heads, attention_dropout, batch_first=True)
        self.self_attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first

    def forward(
        self, x: Hidden, keep: Bool[Tensor, "sources 1 1 source_len"] | None, packing: Packing | None = None
    ) -> Hidden:
        if self.norm_first:
            x = self.dropout.added(self._attend(self.self_attention_norm(x), keep, packing), to=x)
            return self.dropout.added(self.feed_forward(self.feed_forward_norm(x)), to=x)
        x = self.self_attention_norm(self.dropout.added(self._attend(x, keep, packing), to=x))
        return self.feed_forward_norm(self.dropout.added(self.feed_forward(x), to=x))

    def _attend(
        self, x: Hidden, keep: Bool[Tensor, "sources 1 1 source_len"] | None, packing: Packing | None
    ) -> Hidden:
        q, k, v = self.self_attention.project(x, packing)
        return self.self_attention.attend(q, k, v, keep=keep, packing=packing)


class DecoderLayer(nn.Module):
    """Self-attention over what is written so far, attention over the source, then feed-forward."""

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_ff: int,
        dropout: float,
        attention_dropout: float,
        activation: str = "relu",
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.self_attention = MultiheadAttention(d_model, heads, attention_dropout, batch_first=True)
        self.self_attention_norm = nn.LayerNorm(d_model)
        self.source_attention = MultiheadAttention(d_model, heads, attention_dropout, batch_first=True)
        self.source_attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first

    def start(self, memory: Hidden, packing: Packing | None = None) -> LayerCache:
        """Return a cache with the source's keys and values and no target written yet."""
        return LayerCache(*self.source_attention.project_memory(memory, packing))

    def forward(
        self,
        x: Hidden,
        cache: LayerCache,
        memory_keep: Bool[Tensor, "sources 1 1 source_len"] | None,
        packing: Packing | None = None,
    ) -> tuple[Hidden, LayerCache]:
        """Return the states of the next positions, and the cache of the earlier ones with these added."""
        if self.norm_first:
            attended, cache = self._attend_target(self.self_attention_norm(x), cache, packing)
            x = self.dropout.added(attended, to=x)
            attended = self._attend_source(self.source_attention_norm(x), cache, memory_keep, packing)
            x = self.dropout.added(attended, to=x)
            return self.dropout.added(self.feed_forward(self.feed_forward_norm(x)), to=x), cache
        attended, cache = self._attend_target(x, cache, packing)
        x = self.self_attention_norm(self.dropout.added(attended, to=x))
        attended = self._attend_source(x, cache, memory_keep, packing)
        x = self.source_attention_norm(self.dropout.added(attended, to=x))
        return self.feed_forward_norm(self.dropout.added(self.feed_forward(x), to=x)), cache

    def _attend_target(self, x: Hidden, cache: LayerCache, packing: Packing | None) -> tuple[Hidden, LayerCache]:
        q, k, v = self.self_attention.project(x, packing)
        if cache.keys is not None and cache.values is not None:
            k, v = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, v], dim=2)
        attended = self.self_attention.attend(q, k, v, causal=True, packing=packing)
        return attended, LayerCache(cache.memory_keys, cache.memory_values, k, v)

    def _attend_source(
        self,
        x: Hidden,
        cache: LayerCache,
        memory_keep: Bool[Tensor, "sources 1 1 source_len"] | None,
        packing: Packing | None,
    ) -> Hidden:
        keys, values = cache.memory_keys, cache.memory_values
        # Hypotheses of one source are further queries over its one copy of keys and values.
        sources = keys.shape[0]
        each = x.shape[0] // sources if sources else 0
        queries = x if packing is not None else x.reshape(sources, each * x.shape[1], x.shape[2])
        q = self.source_attention.project_query(queries, packing)
        return self.source_attention.attend(q, keys, values, keep=memory_keep, packing=packing).view(x.shape)
