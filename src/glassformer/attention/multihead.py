"""`torch.nn.MultiheadAttention`, argument for argument and weight for weight (Vaswani et al. 2017, section 3.2.2)."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.overrides import has_torch_function

from glassformer.attention.attend import attend, small_self_attention
from glassformer.attention.functional import (
    AttentionFunction,
    forward_in_memory_order,
    multi_head_attention_forward,
    on_each,
)
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.products import linear
from glassformer.attention.packing import Packing
from glassformer.errors import ArgumentError

Heads = Float[Tensor, "batch heads length d_head"]


class _Projection:
    """A projection weight: the parameter of its name, what stands in for it (pruned, replicated), or a packed third."""

    def __init__(self, third: int) -> None:
        self._third = third

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        for place in (module.__dict__, module._parameters):
            if place.get(self._name) is not None:
                return place[self._name]
        packed = getattr(module, "in_proj_weight", None)
        if packed is None:
            raise AttributeError(f"{owner.__name__} has no {self._name} yet")
        return packed.chunk(3)[self._third]

    def __set__(self, module: Any, value: Any) -> None:
        module.__dict__[self._name] = value

    def __delete__(self, module: Any) -> None:
        del module.__dict__[self._name]


class MultiheadAttention(nn.Module):
    """Concat(head_1 .. head_h) W_o, head_i = softmax(q_i k_iᵀ / sqrt(d_head) + mask) v_i.

    A drop-in for `torch.nn.MultiheadAttention`: the same arguments, parameters, initial values and results.
    Parameters: `in_proj_weight` (3E, E), or `q_proj_weight` (E, E), `k_proj_weight` (E, kdim) and `v_proj_weight` (E,
    vdim) where kdim or vdim differ from embed_dim; `in_proj_bias` (3E); `out_proj`; with `add_bias_kv`, `bias_k` and
    `bias_v` (1, 1, E). `dropout` acts on the weights, in training only. `add_zero_attn` adds a key and value of
    zeros.

    Differs from torch: a query that may look nowhere gets weights and attention output of exactly zero, not NaN; uint8
    masks count as boolean, with a DeprecationWarning; added keys stay visible under `is_causal`.

    The Transformer's layers call its parts (`project`, `project_query`, `project_memory`, `attend`), so that keys and
    values can be cached.
    """

    _attention: AttentionFunction | None = None
    """What computes attention in place of the fastest form (`computed_by`)."""

    # Layers of torch.nn that find True here compute attention themselves, from our weights, without calling us.
    _qkv_same_embed_dim = False

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            hint = ": were they swapped?" if embed_dim > 0 and num_heads > embed_dim else ""
            raise ArgumentError(
                "embed_dim must be a positive multiple of num_heads, "
                f"got embed_dim {embed_dim}, num_heads {num_heads}{hint}"
            )
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        packed = self.kdim == self.vdim == embed_dim
        self.register_parameter("q_proj_weight", None if packed else parameter(embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", None if packed else parameter(embed_dim, self.kdim))
        self.register_parameter("v_proj_weight", None if packed else parameter(embed_dim, self.vdim))
        self.register_parameter("in_proj_weight", parameter(3 * embed_dim, embed_dim) if packed else None)
        self.register_parameter("in_proj_bias", parameter(3 * embed_dim) if bias else None)
        self.register_parameter("bias_k", parameter(1, 1, embed_dim) if add_bias_kv else None)
        self.register_parameter("bias_v", parameter(1, 1, embed_dim) if add_bias_kv else None)
        # As torch's: quantization of all nn.Linear must leave it alone, since its weight is read, not its call used.
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        for weight in separate if self.in_proj_weight is None else (self.in_proj_weight,):
            nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for key in (self.bias_k, self.bias_v):
            if key is not None:
                nn.init.xavier_normal_(key)

    # Code that finds _qkv_same_embed_dim False reads these: where the weights are packed they are its thirds.
    q_proj_weight = _Projection(0)
    k_proj_weight = _Projection(1)
    v_proj_weight = _Projection(2)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also of pickles of torch's module, of any age."""
        state = {"batch_first": False, **state}
        state.pop("_qkv_same_embed_dim", None)
        super().__setstate__(state)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Shapes: `query` (L, N, E), `key` (S, N, kdim), `value` (S, N, vdim); with `batch_first` (N, L, E) and so
        on; or without N. Masks: `key_padding_mask` (N, S), `attn_mask` (L, S) or (N * num_heads, L, S); boolean, True
        = may not look, or floating-point, added to the scores.

        Returns the output, shaped as `query`, and with `need_weights` the weights after dropout: (N, L, S) averaged
        over the heads, or (N, num_heads, L, S). `is_causal` says that `attn_mask` is the causal mask.
        """
        if (query.is_nested or key.is_nested or value.is_nested) and query.dim() == 3:
            return self._forward_nested(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        if self.num_heads * self.head_dim != self.embed_dim:
            raise ArgumentError("an attention that has lost heads is called by its parts: project and attend")
        in_proj_weight, out_proj = self.in_proj_weight, self.out_proj
        separate = in_proj_weight is None
        swap = self.batch_first and query.dim() == 3
        if swap and query is key and key is value:
            in_proj_bias = self.in_proj_bias
            inferring = not (torch.is_grad_enabled() or self.training or self.add_zero_attn or self.bias_k is not None)
            plain = attn_mask is None and not is_causal
            if (
                inferring
                and plain
                and self._attention is None
                and in_proj_weight is not None
                and in_proj_bias is not None
            ):
                projections = (in_proj_weight, in_proj_bias, out_proj.weight, out_proj.bias)
                seen = small_self_attention(
                    query,
                    self.num_heads,
                    projections,
                    key_padding_mask,
                    need_weights=need_weights,
                    average=average_attn_weights,
                )
                if seen is not None:
                    return seen
            query = key = value = query.transpose(0, 1)
        elif swap:
            query, key, value = on_each(_swap_first_two, query, key, value)
        tensors = (query, key, value, in_proj_weight, self.in_proj_bias, out_proj.weight, out_proj.bias)
        function: Callable[..., tuple[Tensor, Tensor | None]] = forward_in_memory_order
        if self._attention is not None:
            function = partial(forward_in_memory_order, attention=self._attention)
        elif has_torch_function(tensors):
            function = multi_head_attention_forward
        output, weights = function(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            out_proj.weight,
            out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=separate,
            q_proj_weight=self.q_proj_weight if separate else None,
            k_proj_weight=self.k_proj_weight if separate else None,
            v_proj_weight=self.v_proj_weight if separate else None,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return output.transpose(0, 1) if swap else output.contiguous(), weights

    def _forward_nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        average_attn_weights: bool,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """What `nn.TransformerEncoder` passes in inference in place of padding: sequences of a nested tensor."""
        reasons = {
            "query, key and value are not the same tensor": not (query is key and key is value),
            "batch_first is not set": not self.batch_first,
            "masks were passed as well": key_padding_mask is not None or attn_mask is not None or is_causal,
            "training is enabled": self.training,
            "its layout is not strided": query.layout != torch.strided,
            "grad is enabled and at least one of query or the projection weights or biases requires_grad": (
                torch.is_grad_enabled() and any(x.requires_grad for x in (query, *self.parameters()))
            ),
        }
        if any(reasons.values()):
            reason = next(words for words, true in reasons.items() if true)
            raise ArgumentError(
                "MultiheadAttention does not support NestedTensor outside of its fast path, which is self-attention in "
                f"inference, but {reason}: pass a padded tensor and key_padding_mask"
            )
        lengths = [len(x) for x in query.unbind()]
        x = query.to_padded_tensor(0.0)
        inside = torch.arange(x.shape[1], device=x.device) < torch.tensor(lengths, device=x.device)[:, None]
        # Padded queries, too, look nowhere, so that their weights are zero.
        blocked = ~(inside[:, :, None] & inside[:, None, :])
        output, weights = self.forward(
            x,
            x,
            x,
            attn_mask=blocked.repeat_interleave(self.num_heads, dim=0),
            need_weights=need_weights,
            average_attn_weights=average_attn_weights,
        )
        return torch.nested.as_nested_tensor([row[:n] for row, n in zip(output, lengths, strict=True)]), weights

    def merge_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, query: Tensor
    ) -> tuple[Tensor | None, int | None]:
        """Both masks, floating-point, as one, and torch's number for its kind: 1 padding alone (N, S), 2 any other
        (N or 1, num_heads, L, S). For code that calls this method of torch's module."""
        if attn_mask is None:
            return key_padding_mask, None if key_padding_mask is None else 1
        batch, length, _ = query.shape
        merged = (
            attn_mask.view(batch, -1, length, length) if attn_mask.dim() == 3 else attn_mask.view(1, 1, length, length)
        )
        merged = merged.expand(batch, self.num_heads, -1, -1)
        if key_padding_mask is not None:
            merged = merged + key_padding_mask.view(batch, 1, 1, length)
        return merged, 2

    def project(
        self, x: Float[Tensor, "rows tokens d_model"], packing: Packing | None = None
    ) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values of a sequence that looks at itself, or of a row of them, in one product."""
        q, k, v = self._split(_spread(linear(x, self._packed(), self.in_proj_bias), packing), 3)
        return q, k, v

    def project_query(self, x: Float[Tensor, "rows tokens d_model"], packing: Packing | None = None) -> Heads:
        """Queries alone, for a sequence that looks at another one."""
        width = self.num_heads * self.head_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[:width]
        (q,) = self._split(_spread(linear(x, self._packed()[:width], bias), packing), 1)
        return q

    def project_memory(
        self, memory: Float[Tensor, "rows tokens d_model"], packing: Packing | None = None
    ) -> tuple[Heads, Heads]:
        """Keys and values of the sequence that is looked at."""
        width = self.num_heads * self.head_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[width:]
        k, v = self._split(_spread(linear(memory, self._packed()[width:], bias), packing), 2)
        return k, v

    def attend(
        self,
        q: Heads,
        k: Float[Tensor, "batch heads k_len d_head"],
        v: Float[Tensor, "batch heads k_len d_head"],
        *,
        keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
        causal: bool = False,
        packing: Packing | None = None,
    ) -> Float[Tensor, "rows tokens d_model"]:
        """Attention over projected heads, then the output projection; with the queries' packing of a row again."""
        dropout = self.dropout if self.training else 0.0
        if not self.num_heads:
            heads = q
        elif self._attention is None:
            heads = attend(q, k, v, keep=keep, causal=causal, dropout=dropout)
        else:
            of = Problem(q, k, v, keep, None, causal, 1 / math.sqrt(self.head_dim), q.dtype)
            heads, _ = self._attention(of, dropout, None)
        x = heads.transpose(1, 2).flatten(2)
        return linear(x if packing is None else packing.gather(x), self.out_proj.weight, self.out_proj.bias)

    @contextmanager
    def computed_by(self, attention: AttentionFunction) -> Iterator[None]:
        """Let this function compute the attention between the module's projections inside the context."""
        if self._attention is not None:
            raise ArgumentError("this attention is captured, gated or guided already: one at a time")
        self.__dict__["_attention"] = attention
        try:
            yield
        finally:
            del self.__dict__["_attention"]

    def _packed(self) -> Tensor:
        if self.in_proj_weight is None:
            raise ArgumentError(f"the parts need one width, got kdim {self.kdim} and vdim {self.vdim}: call the module")
        return self.in_proj_weight

    def keep_heads(self, kept: Sequence[int]) -> None:
        """Remove all other heads: their rows of the projections, and their columns of the output's.

        What they added to the output is gone, all else is as before. The parameters are new ones. Afterwards only the
        parts can be called: the module as a whole has as many heads as torch's would.
        """
        weight, bias, output = self._packed(), self.in_proj_bias, self.out_proj.weight
        chosen = torch.tensor(kept, dtype=torch.long, device=weight.device)
        heads, width, wide = self.num_heads, self.head_dim, self.embed_dim
        with torch.no_grad():
            rows = weight.view(3, heads, width, wide)[:, chosen].reshape(3 * len(kept) * width, wide)
            self.in_proj_weight = nn.Parameter(rows.clone())
            if bias is not None:
                self.in_proj_bias = nn.Parameter(bias.view(3, heads, width)[:, chosen].flatten().clone())
            columns = output.view(wide, heads, width)[:, chosen].reshape(wide, len(kept) * width)
            self.out_proj.weight = nn.Parameter(columns.clone())
        self.out_proj.in_features = len(kept) * width
        self.num_heads = len(kept)

    def _split(self, x: Tensor, parts: int) -> tuple[Heads, ...]:
        """Queries, keys or values that lie side by side."""
        batch, length, _ = x.shape
        return x.view(batch, length, parts, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)


def _spread(x: Tensor, packing: Packing | None) -> Tensor:
    return x if packing is None else packing.spread(x)


def _swap_first_two(x: Tensor) -> Tensor:
    return x.transpose(0, 1) if x.dim() == 3 else x  # another number is an error, which the called function explains
