"""Encoder and decoder layers: LayerNorm(x + Dropout(sublayer(x))) (Vaswani et al. 2017, section 3.1).

With `norm_first` x + Dropout(sublayer(LayerNorm(x))), so that nothing stands between a layer's input and output (Xiong
et al. 2020).
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
    """max(0, x W_1 + b_1) W_2 + b_2 (section 3.3), or with another activation in place of the maximum."""

    def __init__(self, d_model: int, d_ff: int, activation: str = "relu") -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x: Hidden) -> Hidden:
        return self.outer(ACTIVATIONS[self.activation](self.inner(x)))


def _before(norm: nn.LayerNorm, x: Hidden, norm_first: bool) -> Hidden:
    """What a sub-layer is given of x."""
    return norm(x) if norm_first else x


def _after(norm: nn.LayerNorm, x: Hidden, norm_first: bool) -> Hidden:
    """What the layer goes on with; x has the sub-layer's output added."""
    return x if norm_first else norm(x)


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
        norm, first = self.self_attention_norm, self.norm_first
        q, k, v = self.self_attention.project(_before(norm, x, first), packing)
        x = _after(norm, self.dropout.added(self.self_attention.attend(q, k, v, keep=keep, packing=packing), x), first)

        norm = self.feed_forward_norm
        return _after(norm, self.dropout.added(self.feed_forward(_before(norm, x, first)), x), first)


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
        """A cache with the source's keys and values and nothing written yet."""
        return LayerCache(*self.source_attention.project_memory(memory, packing))

    def forward(
        self,
        x: Hidden,
        cache: LayerCache,
        memory_keep: Bool[Tensor, "sources 1 1 source_len"] | None,
        packing: Packing | None = None,
    ) -> tuple[Hidden, LayerCache]:
        """The next positions, given the cache of the earlier ones; returns the cache with these added."""
        norm, first = self.self_attention_norm, self.norm_first
        q, k, v = self.self_attention.project(_before(norm, x, first), packing)
        if cache.keys is not None and cache.values is not None:
            k, v = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, v], dim=2)
        x = _after(
            norm, self.dropout.added(self.self_attention.attend(q, k, v, causal=True, packing=packing), x), first
        )

        # Hypotheses of one source are further queries over its one copy of keys and values.
        norm, sources = self.source_attention_norm, cache.memory_keys.shape[0]
        looking = _before(norm, x, first)
        if packing is None:
            looking = looking.reshape(sources, -1, x.shape[2])
        q = self.source_attention.project_query(looking, packing)
        keys, values = cache.memory_keys, cache.memory_values
        seen = self.source_attention.attend(q, keys, values, keep=memory_keep, packing=packing)
        x = _after(norm, self.dropout.added(seen.view(x.shape), x), first)

        norm = self.feed_forward_norm
        x = _after(norm, self.dropout.added(self.feed_forward(_before(norm, x, first)), x), first)
        return x, LayerCache(cache.memory_keys, cache.memory_values, k, v)
