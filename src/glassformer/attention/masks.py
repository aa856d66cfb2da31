"""Masks. One meaning inside glassformer: `keep`, boolean, True = may look. Only this file converts or flips.

torch's `nn.MultiheadAttention` means the opposite (True = ignore); `keep_from_torch` is the way in.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def keep_from_ids(ids: Int[Tensor, "batch k_len"], pad: int) -> Bool[Tensor, "batch 1 1 k_len"]:
    """Every query may look at every key that is not padding."""
    return (ids != pad)[:, None, None, :]


def keep_from_lengths(lengths: Int[Tensor, " batch"], k_len: int) -> Bool[Tensor, "batch 1 1 k_len"]:
    """Every query may look at the first `lengths[b]` keys of its sequence."""
    return (torch.arange(k_len, device=lengths.device) < lengths[:, None])[:, None, None, :]


def causal(q_len: int, k_len: int, device: torch.device | str | None = None) -> Bool[Tensor, "1 1 {q_len} {k_len}"]:
    """A query may look at its own position and what came before it.

    The queries are the last `q_len` of the `k_len` positions, as when earlier ones are in a cache: query i looks
    at keys 0 .. i + k_len - q_len. With q_len = k_len this is the usual lower triangle.
    """
    if q_len > k_len:
        raise ValueError(
            f"causal needs q_len <= k_len (queries are the last positions), got q_len {q_len} and k_len {k_len}"
        )
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)[None, None]


def keep_from_torch(
    key_padding_mask: Bool[Tensor, "batch k_len"] | None,
    attn_mask: Tensor | None,
    *,
    batch: int,
    heads: int,
    q_len: int,
    k_len: int,
) -> Bool[Tensor, "#batch #heads #q_len k_len"] | None:
    """The boolean masks of `torch.nn.MultiheadAttention` (True = may not look), merged into one keep mask.

    Shapes: `key_padding_mask` (batch, k_len); `attn_mask` (q_len, k_len), or (batch * heads, q_len, k_len) with
    the heads of one sentence next to each other.
    """
    keep = None
    if key_padding_mask is not None:
        _check_mask("key_padding_mask", key_padding_mask, {"(batch, key_len)": (batch, k_len)})
        keep = ~key_padding_mask[:, None, None, :]
    if attn_mask is not None:
        per_head = (batch * heads, q_len, k_len)
        _check_mask(
            "attn_mask",
            attn_mask,
            {"(query_len, key_len)": (q_len, k_len), "(batch * heads, query_len, key_len)": per_head},
        )
        open_ = ~(attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.view(batch, heads, q_len, k_len))
        keep = open_ if keep is None else keep & open_
    return keep


def _check_mask(name: str, mask: Tensor, allowed: dict[str, tuple[int, ...]]) -> None:
    if mask.dtype != torch.bool:
        raise ValueError(f"{name} must be boolean (True = may not look), got {mask.dtype}: pass {name}.bool()")
    shape = tuple(mask.shape)
    if shape in allowed.values():
        return
    expected = " or ".join(f"{words} = {sizes}" for words, sizes in allowed.items())
    transposed = shape[:-2] + shape[:-3:-1] in allowed.values()
    hint = ": it looks transposed, pass mask.mT" if transposed else ""
    raise ValueError(f"{name} must be {expected}, got {shape}{hint}")
