"""Encoder and decoder layers: LayerNorm(x + Dropout(sublayer(x))) (Vaswani et al. 2017, section 3.1).

With `norm_first` x + Dropout(sublayer(LayerNorm(x))), so that nothing stands between a layer's input and output (Xiong
et al. 2020).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.attention.multihead import MultiheadAttention
from glassformer.transformer.cache import LayerCache
from glassformer.transformer.dropout import Dropout

Hidden = Float[Tensor, "batch length d_model"]


def _relu(x: Tensor) -> Tensor:
    return x.relu_()


_ACTIVATIONS = {"relu": _relu, "swish": F.silu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (section 3.3), or with another activation in place of the maximum."""

    def __init__(self, d_model: int, d_ff: int, activation: str = "relu") -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x: Hidden) -> Hidden:
        return self.outer(_ACTIVATIONS[self.activation](self.inner(x)))


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

    def forward(self, x: Hidden, keep: Bool[Tensor, "batch 1 1 length"] | None) -> Hidden:
        norm, first = self.self_attention_norm, self.norm_first
        q, k, v = self.self_attention.project(_before(norm, x, first))
        x = _after(norm, x + self.dropout(self.self_attention.look(q, k, v, keep=keep)), first)

        norm = self.feed_forward_norm
        return _after(norm, x + self.dropout(self.feed_forward(_before(norm, x, first))), first)


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

    def start(self, memory: Float[Tensor, "sources source_len d_model"]) -> LayerCache:
        """A cache with the source's keys and values and nothing written yet."""
        return LayerCache(*self.source_attention.project_memory(memory))

    def forward(
        self, x: Hidden, cache: LayerCache, memory_keep: Bool[Tensor, "sources 1 1 source_len"] | None
    ) -> tuple[Hidden, LayerCache]:
        """The next positions, given the cache of the earlier ones; returns the cache with these added."""
        norm, first = self.self_attention_norm, self.norm_first
        q, k, v = self.self_attention.project(_before(norm, x, first))
        if cache.keys is not None and cache.values is not None:
            k, v = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, v], dim=2)
        x = _after(norm, x + self.dropout(self.self_attention.look(q, k, v, causal=True)), first)

        # Hypotheses of one source are further queries over its one copy of keys and values.
        norm, sources = self.source_attention_norm, cache.memory_keys.shape[0]
        q = self.source_attention.project_query(_before(norm, x, first).reshape(sources, -1, x.shape[2]))
        seen = self.source_attention.look(q, cache.memory_keys, cache.memory_values, keep=memory_keep)
        x = _after(norm, x + self.dropout(seen.view(x.shape)), first)

        norm = self.feed_forward_norm
        x = _after(norm, x + self.dropout(self.feed_forward(_before(norm, x, first))), first)
        return x, LayerCache(cache.memory_keys, cache.memory_values, k, v)
