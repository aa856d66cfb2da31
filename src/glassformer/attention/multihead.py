"""Multi-head attention with torch's parameter names (Vaswani et al. 2017, section 3.2.2)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.attention.attend import attend, weigh
from glassformer.attention.masks import causal, keep_from_torch

Heads = Float[Tensor, "batch heads length d_head"]


class MultiheadAttention(nn.Module):
    """Concat(head_1 .. head_h) W_o, head_i = attend(x_q W_q, x_k W_k, x_v W_v).

    Parameters are named, shaped and initialised as in `torch.nn.MultiheadAttention`: `in_proj_weight` (3E, E),
    `in_proj_bias` (3E), `out_proj`. `forward` takes torch's arguments; the Transformer's layers call the parts
    (`project`, `project_query`, `project_memory`, `look`), so that keys and values can be cached.

    Differs from torch: a query that may look nowhere gets weights and attention output of exactly zero, not NaN.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(
                f"embed_dim must be a positive multiple of num_heads, got embed_dim {embed_dim}, num_heads {num_heads}"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, device=device, dtype=dtype))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim, device=device, dtype=dtype)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Float[Tensor, "..."],
        key: Float[Tensor, "..."],
        value: Float[Tensor, "..."],
        key_padding_mask: Bool[Tensor, "batch k_len"] | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """torch's call: (batch, length, embed_dim) with `batch_first`, else (length, batch, embed_dim).

        Masks are torch's, boolean, True = may not look. Returns the output and, with `need_weights`, the weights:
        (batch, q_len, k_len) averaged over the heads, or (batch, heads, q_len, k_len).
        """
        if not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        w_q, w_k, w_v = self.in_proj_weight.chunk(3)
        b_q, b_k, b_v = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q = self._split(F.linear(query, w_q, b_q))
        k = self._split(F.linear(key, w_k, b_k))
        v = self._split(F.linear(value, w_v, b_v))
        sizes = {"batch": q.shape[0], "heads": self.num_heads, "q_len": q.shape[2], "k_len": k.shape[2]}
        keep = keep_from_torch(key_padding_mask, attn_mask, **sizes)
        weights = None
        if need_weights:
            if is_causal:
                triangle = causal(q.shape[2], k.shape[2], q.device)
                keep = triangle if keep is None else keep & triangle
            weights = weigh(q, k, keep=keep, dropout=self.dropout if self.training else 0.0)
            output = self._merge(weights @ v)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            output = self.look(q, k, v, keep=keep, causal=is_causal)
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def project(self, x: Float[Tensor, "batch length d_model"]) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values of a sequence that looks at itself, in one product."""
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        return self._split(q), self._split(k), self._split(v)

    def project_query(self, x: Float[Tensor, "batch q_len d_model"]) -> Heads:
        """Queries alone, for a sequence that looks at another one."""
        width = self.embed_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[:width]
        return self._split(F.linear(x, self.in_proj_weight[:width], bias))

    def project_memory(self, memory: Float[Tensor, "batch k_len d_model"]) -> tuple[Heads, Heads]:
        """Keys and values of the sequence that is looked at."""
        width = self.embed_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[width:]
        k, v = F.linear(memory, self.in_proj_weight[width:], bias).chunk(2, dim=-1)
        return self._split(k), self._split(v)

    def look(
        self,
        q: Heads,
        k: Float[Tensor, "batch heads k_len d_head"],
        v: Float[Tensor, "batch heads k_len d_head"],
        *,
        keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "batch length d_model"]:
        """Attention over projected heads, then the output projection."""
        dropout = self.dropout if self.training else 0.0
        return self._merge(attend(q, k, v, keep=keep, causal=causal, dropout=dropout))

    def _split(self, x: Tensor) -> Heads:
        batch, length, _ = x.shape
        return x.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)

    def _merge(self, heads: Heads) -> Tensor:
        batch, _, length, _ = heads.shape
        return self.out_proj(heads.transpose(1, 2).reshape(batch, length, self.embed_dim))
