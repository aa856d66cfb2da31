"""The weights around attention in one object: what makes queries, keys and values, and the output of the heads."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from glassformer.attention.kernels.products import linear
from glassformer.errors import ArgumentError


class Projections(NamedTuple):
    """The projections of multi-head attention, its further keys, and its output projection."""

    embed_dim: int
    heads: int
    packed: Tensor | None
    """The weights of queries, keys and values, one below the other: (3 embed_dim, embed_dim)."""
    separate: tuple[Tensor | None, Tensor | None, Tensor | None] | None
    """The three weights in place of `packed`: (embed_dim, width of the query, key or value)."""
    bias: Tensor | None
    """(3 embed_dim)."""
    output: Tensor
    """(embed_dim, embed_dim)."""
    output_bias: Tensor | None
    bias_k: Tensor | None = None
    """A further key of every sequence, (1, 1, embed_dim); `bias_v` is its value."""
    bias_v: Tensor | None = None
    add_zero: bool = False
    """True gives every sequence a further key and value of zeros."""
    static_k: Tensor | None = None
    """Keys (batch * heads, k_len, d_head) in place of projected ones; `static_v` are values."""
    static_v: Tensor | None = None

    @property
    def further(self) -> int:
        """Return the number of further keys."""
        return (self.bias_k is not None) + self.add_zero

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of each head, (batch, heads, length, d_head), further keys at the end.

        The inputs are (length, batch, width). Inputs that are one tensor are multiplied in one product. Raises
        ArgumentError for widths that don't fit.
        """
        self._check_widths(query, key, value)
        self._check_further(query)
        q, k, v = self._project(query, key, value)
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, _one_key(self.bias_k, k)], dim=2)
            v = torch.cat([v, _one_key(self.bias_v, v)], dim=2)
        if self.add_zero:
            k, v = torch.nn.functional.pad(k, (0, 0, 0, 1)), torch.nn.functional.pad(v, (0, 0, 0, 1))
        return q, k, v

    def merge(self, heads: Tensor, query: Tensor) -> Tensor:
        """Return the output of the heads (batch, heads, q_len, d_head), shaped and laid out in memory as the query."""
        if query.dim() == 3 and _is_batch_major(query):
            return linear(heads.transpose(1, 2).flatten(2), self.output, self.output_bias).transpose(0, 1)
        output = linear(heads.permute(2, 0, 1, 3).flatten(2), self.output, self.output_bias)
        return output if query.dim() == 3 else output.squeeze(1)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        packed, bias, heads = self.packed, self.bias, self.heads
        static = self.static_k is not None or self.static_v is not None
        if packed is not None and self.separate is None and key is value and not static:
            if query is key:
                q, k, v = _linear_heads(query, packed, bias, heads, 3)
            else:
                width = query.shape[-1]
                # Not slices: each would have a gradient as large as the whole.
                to_q, to_kv = packed.split((width, len(packed) - width))
                b_q, b_kv = (None, None) if bias is None else bias.split((width, len(bias) - width))
                (q,) = _linear_heads(query, to_q, b_q, heads, 1)
                k, v = _linear_heads(key, to_kv, b_kv, heads, 2)
            return q, k, v
        separate = self.separate if packed is None or self.separate else packed.chunk(3)
        weights = cast(tuple[Tensor, Tensor, Tensor], separate)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        given = (None, self.static_k, self.static_v)
        q, k, v = (
            _linear_heads(x, weight, b, heads, 1)[0] if own is None else own.unflatten(0, (query.shape[1], heads))
            for x, weight, b, own in zip((query, key, value), weights, biases, given, strict=True)
        )
        return q, k, v

    def _check_widths(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        embed_dim, heads = self.embed_dim, self.heads
        if query.shape[2] != embed_dim:
            raise ArgumentError(f"query must be embed_dim = {embed_dim} wide, got shape {tuple(query.shape)}")
        if embed_dim % heads:
            raise ArgumentError(
                f"embed_dim must be divisible by num_heads, got embed_dim {embed_dim}, num_heads {heads}"
            )
        if key is not value and key.shape[:2] != value.shape[:2]:
            raise ArgumentError(
                f"key and value must have one length and batch, got {tuple(key.shape[:2])} and {tuple(value.shape[:2])}"
            )
        if key is not query and key.shape[1] != query.shape[1]:
            raise ArgumentError(
                f"query and key must have one batch size, got {query.shape[1]} and {key.shape[1]}: was batch_first "
                "meant?"
            )
        if self.separate is not None:
            for name, x, weight in zip(("query", "key", "value"), (query, key, value), self.separate, strict=True):
                if weight is None:
                    raise ArgumentError(f"{name[0]}_proj_weight must be given with use_separate_proj_weight, got None")
                _check_width(name, x, weight)
        elif self.packed is None:
            raise ArgumentError("in_proj_weight must be given unless use_separate_proj_weight is set, got None")
        else:
            _check_width("query", query, self.packed)
            if key is not query or value is not query:
                _check_width("key", key, self.packed)
                _check_width("value", value, self.packed)

    def _check_further(self, query: Tensor) -> None:
        bias_k, bias_v = self.bias_k, self.bias_v
        if (bias_k is None) != (bias_v is None):
            given, missing = ("bias_v", "bias_k") if bias_k is None else ("bias_k", "bias_v")
            raise ArgumentError(f"{given} is set but {missing} is None: pass both or neither")
        for name, bias in (("bias_k", bias_k), ("bias_v", bias_v)):
            if bias is not None and bias.shape != (1,) * (bias.dim() - 1) + query.shape[2:]:
                expected = (1, 1, query.shape[2])
                raise ArgumentError(f"{name} must be (1, 1, embed_dim) = {expected}, got {tuple(bias.shape)}")
        for name, static in (("key", self.static_k), ("value", self.static_v)):
            if static is None:
                continue
            if bias_k is not None:
                raise ArgumentError(
                    f"bias cannot be added to static {name}: pass bias_k and bias_v, or static ones, not both"
                )
            rows, width = query.shape[1] * self.heads, query.shape[2] // self.heads
            if static.dim() != 3 or static.shape[0] != rows or static.shape[2] != width:
                raise ArgumentError(
                    f"static_{name[0]} must be (batch * num_heads, {name}_len, d_head) = ({rows}, any, {width}), got "
                    f"{tuple(static.shape)}"
                )


def _linear_heads(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int, parts: int) -> tuple[Tensor, ...]:
    """Multiply x (length, batch, width) by `parts` stacked weights; return (batch, heads, length, d_head) views."""
    batch_major = _is_batch_major(x)
    y = linear(x.transpose(0, 1) if batch_major else x, weight, bias)
    first, second, width = y.shape
    y = y.view(first, second, parts, heads, width // (parts * heads))
    return (y.permute(2, 0, 3, 1, 4) if batch_major else y.permute(2, 1, 3, 0, 4)).unbind(0)


def _is_batch_major(x: Tensor) -> bool:
    """Return whether (length, batch, width) is a view of (batch, length, width), which products read without a copy."""
    return not x.is_contiguous() and x.transpose(0, 1).is_contiguous()


def _one_key(bias: Tensor, like: Tensor) -> Tensor:
    """Return bias_k or bias_v (1, 1, embed_dim) as one more key of each head: (batch, heads, 1, d_head)."""
    batch, heads, _, width = like.shape
    return bias.view(1, heads, 1, width).expand(batch, -1, -1, -1).to(like.dtype)


def _check_width(name: str, x: Tensor, weight: Tensor) -> None:
    if x.shape[2] != weight.shape[1]:
        raise ArgumentError(
            f"{name} must be {weight.shape[1]} wide, as its projection weight {tuple(weight.shape)} says, got shape "
            f"{tuple(x.shape)}: another width needs kdim or vdim"
        )
