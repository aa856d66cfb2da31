"""`torch.nn.MultiheadAttention`, argument for argument and weight for weight (Vaswani et al. 2017, section 3.2.2)."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import has_torch_function

from glassformer.attention.attend import attend, check_dropout, small_self_attention
from glassformer.attention.functional import (
    AttentionFunction,
    compute_attention,
    multi_head_attention_forward,
    on_each,
    pose,
    unbatched,
)
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.products import linear
from glassformer.attention.packing import Packing
from glassformer.attention.projections import Projections
from glassformer.attention.small import attend_small
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
        packed = getattr(module, "in_proj_weight", None) if self._name in module._parameters else None
        if packed is None:
            raise AttributeError(f"{owner.__name__} has no {self._name} yet")
        return packed.chunk(3)[self._third]

    def __set__(self, module: Any, value: Any) -> None:
        module.__dict__[self._name] = value

    def __delete__(self, module: Any) -> None:
        del module.__dict__[self._name]


class MultiheadAttention(nn.MultiheadAttention):
    """Concat(head_1 .. head_h) W_o, head_i = softmax(q_i k_iᵀ / sqrt(d_head) + mask) v_i.

    A `torch.nn.MultiheadAttention` with its arguments, parameters, initial values and results. Parameters:
    `in_proj_weight` (3E, E), or `q_proj_weight` (E, E), `k_proj_weight` (E, kdim) and `v_proj_weight` (E, vdim) where
    kdim or vdim differ from embed_dim; `in_proj_bias` (3E); `out_proj`; with `add_bias_kv`, `bias_k` and `bias_v` (1,
    1, E). `dropout` acts on the weights, in training only. `add_zero_attn` adds a key and value of zeros.

    Differs from torch: a query that may look nowhere gets weights and attention output of exactly zero, not NaN; uint8
    masks count as boolean, with a DeprecationWarning; added keys stay visible under `is_causal`; a float32 mask beside
    float64 inputs is added as it is, which torch's fused kernel for CPUs misreads.

    The Transformer's layers call its parts (`project`, `project_query`, `project_memory`, `attend`), so that keys and
    values can be cached.

    >>> attention = MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)
    >>> x = torch.randn(3, 5, 8)
    >>> padding = torch.tensor([[False] * 5, [False] * 5, [True] * 5])  # the third sequence is all padding
    >>> output, weights = attention(x, x, x, key_padding_mask=padding)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 5, 5]))
    >>> weights[2].sum().item()
    0.0
    """

    _attention: AttentionFunction | None = None
    """The function that computes attention in place of the fastest form (`computed_by`)."""
    _measure: Callable[[Problem], None] | None = None
    """The function that is shown what attention is computed from (`measured_by`)."""

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
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            hint = ": were they swapped?" if embed_dim > 0 and num_heads > embed_dim else ""
            raise ArgumentError(
                "embed_dim must be a positive multiple of num_heads, "
                f"got embed_dim {embed_dim}, num_heads {num_heads}{hint}"
            )
        added = (add_bias_kv, add_zero_attn)
        super().__init__(embed_dim, num_heads, dropout, bias, *added, kdim, vdim, batch_first, device, dtype)

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # Layers of torch.nn that find True here compute attention themselves, from our weights, without calling us.
        self._qkv_same_embed_dim = False

    # Code that finds _qkv_same_embed_dim False reads these: where the weights are packed they are its thirds.
    q_proj_weight = _Projection(0)
    k_proj_weight = _Projection(1)
    v_proj_weight = _Projection(2)

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which calls this of every part of a model."""
        raise ArgumentError(
            "glassformer's MultiheadAttention can't be scripted: use torch.jit.trace, torch.export or torch.compile"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle of ours or of torch's module, of any age."""
        super().__setstate__({"batch_first": False, **state, "_qkv_same_embed_dim": False})

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
        """Return the output and the weights of attention from the query to the key and value.

        Shapes: `query` (L, N, E), `key` (S, N, kdim), `value` (S, N, vdim); with `batch_first` (N, L, E) and so
        on; or without N. Masks: `key_padding_mask` (N, S), `attn_mask` (L, S) or (N * num_heads, L, S); boolean, True
        = may not look, or floating-point, added to the scores.

        The output is shaped as `query`; with `need_weights` the weights are those after dropout: (N, L, S) averaged
        over the heads, or (N, num_heads, L, S). `is_causal` says that `attn_mask` is the causal mask.
        """
        if (query.is_nested or key.is_nested or value.is_nested) and query.dim() == 3:
            return self._forward_nested(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        if self.num_heads * self.head_dim != self.embed_dim:
            raise ArgumentError(
                "this attention has lost heads, so it can't be called as a whole: call its methods project and attend"
            )
        weights = (self.in_proj_weight, self.in_proj_bias, self.out_proj.weight, self.out_proj.bias)
        further = (self.bias_k, self.bias_v)
        masks, wanted = (key_padding_mask, attn_mask, is_causal), (need_weights, average_attn_weights)
        if query.dtype != torch.float16 or not self._in_float32(query, key, value, *weights, *further, *masks[:2]):
            return self._attend_to(query, key, value, weights, further, masks, wanted)
        query, key, value = on_each(Tensor.float, query, key, value)
        masks = (_float(key_padding_mask), _float(attn_mask), is_causal)
        weights = (_float(weights[0]), _float(weights[1]), weights[2].float(), _float(weights[3]))
        further = (_float(further[0]), _float(further[1]))
        output, seen = self._attend_to(query, key, value, weights, further, masks, wanted)
        return output.to(torch.float16), None if seen is None else seen.to(torch.float16)

    def _in_float32(self, query: Tensor, *tensors: Tensor | None) -> bool:
        """Return whether to compute in float32 what is given in float16; other types are explained elsewhere."""
        return (
            self._attention is None
            and self._measure is None
            and choose.float32_is_faster(query, *tensors)
            and all(x is None or x.dtype in (torch.float16, torch.bool) for x in tensors)
            and self.in_proj_weight is not None
        )

    def _attend_to(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        weights: tuple[Tensor | None, Tensor | None, Tensor, Tensor | None],
        further: tuple[Tensor | None, Tensor | None],
        masks: tuple[Tensor | None, Tensor | None, bool],
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and the weights of attention with these weights of the projections and further keys."""
        (packed, bias, output, output_bias), (bias_k, bias_v) = weights, further
        key_padding_mask, attn_mask, _ = masks
        swap = self.batch_first and query.dim() == 3
        dropout = self.dropout if self.training else 0.0
        untouched = self._attention is None and self._measure is None
        if untouched and key is value and bias_k is None and not self.add_zero_attn and packed is not None:
            small = None
            parts = (packed, bias, output, output_bias)
            flags = dict(is_causal=masks[2], need_weights=wanted[0], average=wanted[1])
            if swap and query is key and not (self.training or torch.is_grad_enabled()):
                small = small_self_attention(query, self.num_heads, parts, *masks[:2], **flags)
            if small is None:
                settings = (query, key, self.num_heads, parts, *masks[:2])
                small = attend_small(*settings, **flags, dropout=dropout, batch_first=self.batch_first)
            if small is not None:
                return small
        if swap and query is key and key is value:
            query = key = value = query.transpose(0, 1)
        elif swap:
            query, key, value = on_each(_swap_first_two, query, key, value)
        tensors = (query, key, value, packed, bias, output, output_bias)
        if untouched and has_torch_function(tensors):  # a tensor subclass may override the whole function
            separate = packed is None
            seen, facts = multi_head_attention_forward(
                *(query, key, value, self.embed_dim, self.num_heads, packed, bias, bias_k, bias_v),
                *(self.add_zero_attn, self.dropout, output, output_bias, self.training),
                *(key_padding_mask, wanted[0], attn_mask, separate),
                *((self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if separate else (None, None, None)),
                average_attn_weights=wanted[1],
                is_causal=masks[2],
            )
            return seen.transpose(0, 1) if swap else seen, facts
        projections = Projections(
            self.embed_dim,
            self.num_heads,
            packed,
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if packed is None else None,
            bias,
            output,
            output_bias,
            bias_k,
            bias_v,
            self.add_zero_attn,
        )
        problem, want = pose(query, key, value, projections, *masks, *wanted)
        if dropout:
            check_dropout(dropout)
        if self._measure is not None:
            self._measure(problem)
        heads, seen = (self._attention or compute_attention)(problem, dropout, want)
        merged = projections.merge(heads, query)
        return merged.transpose(0, 1) if swap else merged.contiguous(), unbatched(seen, query)

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
        """Compute self-attention over a nested tensor, which `nn.TransformerEncoder` makes of padding in inference."""
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
        sequences = query.unbind()
        lengths = [len(sequence) for sequence in sequences]
        x = query.to_padded_tensor(0.0) if any(lengths) else torch.stack(sequences)
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

    def project(
        self, x: Float[Tensor, "rows tokens d_model"], packing: Packing | None = None
    ) -> tuple[Heads, Heads, Heads]:
        """Return queries, keys and values of a sequence that looks at itself, or of a row of them, in one product."""
        q, k, v = self._split(_spread(linear(x, self._packed(), self.in_proj_bias), packing), 3)
        return q, k, v

    def project_query(self, x: Float[Tensor, "rows tokens d_model"], packing: Packing | None = None) -> Heads:
        """Return queries alone, for a sequence that looks at another one."""
        width = self.num_heads * self.head_dim
        bias = None if self.in_proj_bias is None else self.in_proj_bias[:width]
        (q,) = self._split(_spread(linear(x, self._packed()[:width], bias), packing), 1)
        return q

    def project_memory(
        self, memory: Float[Tensor, "rows tokens d_model"], packing: Packing | None = None
    ) -> tuple[Heads, Heads]:
        """Return keys and values of the sequence that is looked at."""
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
        """Return the output projection of attention over projected heads; as a row again if the queries are packed."""
        dropout = self.dropout if self.training else 0.0
        if self._measure is not None and self.num_heads:
            self._measure(self._pose(q, k, v, keep, causal, packing))
        if not self.num_heads:
            heads = q
        elif self._attention is None:
            heads = attend(q, k, v, keep=keep, causal=causal, dropout=dropout)
        else:
            heads, _ = self._attention(self._pose(q, k, v, keep, causal, packing), dropout, None)
        x = heads.transpose(1, 2).flatten(2)
        return linear(x if packing is None else packing.gather(x), self.out_proj.weight, self.out_proj.bias)

    def _pose(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool, packing: Packing | None
    ) -> Problem:
        queries = None if packing is None else packing.keep.mT
        return Problem(q, k, v, keep, None, causal, 1 / math.sqrt(self.head_dim), q.dtype, queries=queries)

    @contextmanager
    def computed_by(self, attention: AttentionFunction) -> Iterator[None]:
        """Let this function compute the attention between the module's projections inside the context."""
        if self._attention is not None:
            raise ArgumentError("this attention is captured, gated or guided already: leave that context first")
        self.__dict__["_attention"] = attention
        try:
            yield
        finally:
            del self.__dict__["_attention"]

    @contextmanager
    def measured_by(self, measure: Callable[[Problem], None]) -> Iterator[None]:
        """Show this function what attention is computed from inside the context, and compute it as without."""
        if self._measure is not None:
            raise ArgumentError("this attention is measured already: one at a time")
        self.__dict__["_measure"] = measure
        try:
            yield
        finally:
            del self.__dict__["_measure"]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: not the functions that a context has set."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_attention", "_measure")}

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
            self.in_proj_weight = nn.Parameter(rows.clone(), weight.requires_grad)
            if bias is not None:
                own = bias.view(3, heads, width)[:, chosen].flatten().clone()
                self.in_proj_bias = nn.Parameter(own, bias.requires_grad)
            columns = output.view(wide, heads, width)[:, chosen].reshape(wide, len(kept) * width)
            self.out_proj.weight = nn.Parameter(columns.clone(), output.requires_grad)
        self.out_proj.in_features = len(kept) * width
        self.num_heads = len(kept)

    def _split(self, x: Tensor, parts: int) -> tuple[Heads, ...]:
        """Return queries, keys or values that lie side by side."""
        batch, length, _ = x.shape
        return x.view(batch, length, parts, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)


def _spread(x: Tensor, packing: Packing | None) -> Tensor:
    return x if packing is None else packing.spread(x)


def _float(x: Tensor | None) -> Tensor | None:
    """Return a tensor of numbers in float32; a boolean mask stays what it is."""
    return x if x is None or x.dtype == torch.bool else x.float()


def _swap_first_two(x: Tensor) -> Tensor:
    return x.transpose(0, 1) if x.dim() == 3 else x  # another number is an error, which the called function explains
