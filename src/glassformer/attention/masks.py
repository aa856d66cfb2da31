"""Masks. One meaning inside glassformer: `keep`, boolean, True = may look. Only this file converts or flips.

torch's `nn.MultiheadAttention` means the opposite (True = ignore); `keep_from_torch` is the way in.
"""

import sys
import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import ArgumentError, shown

_NOT_THE_CALLER = ("glassformer", "torch", "jaxtyping", "beartype")  # the last two where annotations are checked


def keep_from_ids(ids: Int[Tensor, "batch k_len"], pad: int) -> Bool[Tensor, "batch 1 1 k_len"]:
    """Return a mask that lets every query look at every key that is not padding.

    >>> keep_from_ids(torch.tensor([[5, 2, 0]]), pad=0).tolist()
    [[[[True, True, False]]]]
    """
    return (ids != pad)[:, None, None, :]


def keep_from_lengths(lengths: Int[Tensor, " batch"], k_len: int) -> Bool[Tensor, "batch 1 1 k_len"]:
    """Return a mask that lets every query look at the first `lengths[b]` keys of its sequence.

    >>> keep_from_lengths(torch.tensor([3, 1]), k_len=3)[:, 0, 0].tolist()
    [[True, True, True], [True, False, False]]
    """
    return (torch.arange(k_len, device=lengths.device) < lengths[:, None])[:, None, None, :]


def causal(q_len: int, k_len: int, device: torch.device | str | None = None) -> Bool[Tensor, "1 1 {q_len} {k_len}"]:
    """Return a mask that lets a query look at its own position and what came before it.

    The queries are the last `q_len` of the `k_len` positions, as when earlier ones are in a cache: query i looks
    at keys 0 .. i + k_len - q_len. With q_len = k_len this is the usual lower triangle. Raises ArgumentError for
    more queries than keys.

    >>> causal(2, 3)[0, 0].tolist()
    [[True, True, False], [True, True, True]]
    """
    check_causal(q_len, k_len)
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)[None, None]


def check_causal(q_len: int, k_len: int) -> None:
    """Raise ArgumentError unless the queries can be the last of the keys' positions."""
    if q_len > k_len:
        raise ArgumentError(
            f"causal needs q_len <= k_len (queries are the last positions), got q_len {q_len} and k_len {k_len}"
        )


def causal_from_start(
    q_len: int, k_len: int, device: torch.device | str | None = None
) -> Bool[Tensor, "1 1 {q_len} {k_len}"]:
    """Return the causal mask for queries and keys that both start at position 0: query i looks at keys 0 .. i.

    >>> causal_from_start(2, 3)[0, 0].tolist()
    [[True, False, False], [True, True, False]]
    """
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril()[None, None]


def keep_from_scores(mask: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return the keep mask that an additive mask of 0 and -inf stands for.

    Any other number is an ArgumentError: it changes weights without blocking, which only an additive `bias` can say.

    >>> keep_from_scores(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])).tolist()
    [[True, False], [True, True]]
    """
    keep = mask == 0
    other = mask[~keep & (mask != -torch.inf)]
    if other.numel():
        raise ArgumentError(
            f"mask must hold only 0 (may look) and -inf (blocked), got {other[0].item():g} among its numbers: pass it "
            "as bias=, or, if a large negative number is meant to block, pass keep = mask > -1e4"
        )
    return keep


def keep_from_torch(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    *,
    batch: int,
    heads: int,
    q_len: int,
    k_len: int,
) -> Bool[Tensor, "#batch #heads #q_len k_len"] | None:
    """Merge the boolean masks of `torch.nn.MultiheadAttention` (True = may not look) into one keep mask.

    Shapes: `key_padding_mask` (batch, k_len); `attn_mask` (q_len, k_len), or (batch * heads, q_len, k_len) with
    the heads of one sentence next to each other. Raises ArgumentError for other shapes and types.

    >>> padding = torch.tensor([[False, False, True]])  # True = may not look
    >>> keep_from_torch(padding, None, batch=1, heads=2, q_len=3, k_len=3).tolist()
    [[[[True, True, False]]]]
    """
    for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
        if mask is not None and mask.dtype not in (torch.bool, torch.uint8):
            raise ArgumentError(
                f"{name} must be boolean (True = may not look), got {mask.dtype}: for an additive mask of 0 and -inf, "
                f"pass ~keep_from_scores({name})"
            )
    return masks_from_torch(key_padding_mask, attn_mask, batch=batch, heads=heads, q_len=q_len, k_len=k_len)[0]


def masks_from_torch(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    *,
    batch: int,
    heads: int,
    q_len: int,
    k_len: int,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the masks of `torch.nn.MultiheadAttention` as `keep` and `bias` for (batch, heads, q_len, k_len).

    Boolean masks (True = may not look) become keep, floating-point ones are added up as bias; both broadcast.

    A uint8 mask counts as boolean, with a DeprecationWarning.
    """
    keep = bias = None
    if key_padding_mask is not None:
        shape = {"(batch, key_len)": (batch, k_len)}
        mask = check_type("key_padding_mask", key_padding_mask)
        _check_shape("key_padding_mask", mask, shape)
        mask = mask[:, None, None, :]
        keep, bias = (~mask, None) if mask.dtype == torch.bool else (None, mask)
    if attn_mask is not None:
        shapes = {
            "(query_len, key_len)": (q_len, k_len),
            "(batch * heads, query_len, key_len)": (batch * heads, q_len, k_len),
        }
        mask = check_type("attn_mask", attn_mask)
        _check_shape("attn_mask", mask, shapes)
        mask = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (batch, heads))
        if mask.dtype == torch.bool:
            keep = ~mask if keep is None else keep & ~mask
        else:
            bias = mask if bias is None else bias + mask
    return keep, bias


def add_open_columns(keep: Tensor | None, bias: Tensor | None, columns: int) -> tuple[Tensor | None, Tensor | None]:
    """Add keys at the end that every query may look at (torch's add_bias_kv and add_zero_attn)."""
    if not columns:
        return keep, bias
    return (
        None if keep is None else F.pad(keep, (0, columns), value=True),
        None if bias is None else F.pad(bias, (0, columns)),
    )


def fit_bias(bias: Tensor, given: torch.dtype, computed: torch.dtype, *, float32_too: bool) -> Tensor:
    """Return an additive mask in the dtype of the scores, without a finite number becoming -inf; or in float32.

    `given` is the query's dtype, which the mask must have, or, with `float32_too`, float32, in which it stays; under
    autocast any.
    """
    allowed = (given, torch.float32) if float32_too else (given,)
    is_cast = torch.is_autocast_enabled(bias.device.type)
    if bias.dtype not in allowed and not is_cast:
        raise ArgumentError(
            f"a floating-point mask must have the query's dtype {given}, got {bias.dtype}: pass mask.to(query)"
        )
    if bias.dtype != given and not is_cast:
        return bias
    if computed != torch.float16:
        return bias.to(computed)
    # Half of float16's lowest number, so that adding a score doesn't reach -inf either.
    lowest = torch.finfo(torch.float16).min / 2
    return bias.clamp(min=lowest).masked_fill(bias == -torch.inf, -torch.inf).to(computed)


def check_tensors(**given: object) -> None:
    """Raise ArgumentError for the first of these that is no tensor, nor of a class that torch's functions take.

    >>> check_tensors(q=[1.0, 2.0])
    Traceback (most recent call last):
        ...
    glassformer.errors.ArgumentError: q must be a tensor, got [1.0, 2.0]: pass torch.as_tensor(q)
    """
    for name, x in given.items():
        if not isinstance(x, Tensor) and not hasattr(x, "__torch_function__"):
            raise ArgumentError(f"{name} must be a tensor, got {shown(x)}: pass torch.as_tensor({name})")


def check_masks(keep: Tensor | None, bias: Tensor | None, q: Tensor, k: Tensor) -> None:
    """Raise ArgumentError unless `keep` is boolean, `bias` floating-point, and both broadcast to the scores."""
    if keep is not None:
        check_tensors(keep=keep)
        if keep.dtype != torch.bool:
            raise ArgumentError(
                f"keep must be boolean (True = may look), got {keep.dtype}: pass keep.bool(), or what is added to the "
                "scores as bias="
            )
        check_broadcast("keep", keep, (*q.shape[:3], k.shape[2]))
    if bias is not None:
        check_tensors(bias=bias)
        if not bias.is_floating_point():
            raise ArgumentError(
                f"bias must be floating-point (added to the scores), got {bias.dtype}: pass a boolean mask as keep="
            )
        check_broadcast("bias", bias, (*q.shape[:3], k.shape[2]))


def check_broadcast(name: str, mask: Tensor, scores: tuple[int, ...]) -> None:
    """Raise ArgumentError unless a mask broadcasts to the scores (batch, heads, query_len, key_len)."""

    def fits(shape: tuple[int, ...]) -> bool:
        return (
            len(shape) == 4 and shape[3] == scores[3] and all(a in (1, b) for a, b in zip(shape, scores, strict=True))
        )

    shape = tuple(mask.shape)
    if fits(shape):
        return
    hint = ""
    if fits((*shape[:-2], *shape[:-3:-1])):
        hint = f": it looks transposed, pass {name}.mT"
    elif len(shape) == 2 and fits((1, 1, *shape)):
        hint = f": pass {name}[None, None]"
    elif len(shape) == 2 and fits((shape[0], 1, 1, shape[1])):
        hint = f": pass {name}[:, None, None, :]"
    raise ArgumentError(f"{name} must broadcast to (batch, heads, query_len, key_len) = {scores}, got {shape}{hint}")


def open_blocked_rows(mask: Tensor) -> tuple[Tensor, Bool[Tensor, "..."]]:
    """Return a keep mask or bias in which rows with every key blocked look everywhere, and which rows these are."""
    if mask.dtype == torch.bool:
        blocked = ~mask.any(-1, keepdim=True)
        return mask | blocked, blocked
    blocked = (mask == -torch.inf).all(-1, keepdim=True)
    return mask.masked_fill(blocked, 0.0), blocked


def check_type(name: str, mask: Tensor) -> Tensor:
    """Return a mask of torch's, boolean or floating-point; uint8 becomes boolean, with a DeprecationWarning."""
    if mask.dtype == torch.uint8:
        if not torch.compiler.is_compiling():
            # The warning names the line that called glassformer: users are shown only warnings about their own code.
            frame, level = sys._getframe(), 1
            while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_THE_CALLER:
                frame, level = frame.f_back, level + 1
            warnings.warn(f"uint8 for {name} is deprecated: pass {name}.bool()", DeprecationWarning, stacklevel=level)
        mask = mask.bool()
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentError(
            f"only bool and floating types of {name} are supported (bool: True = may not look; floating: added to the "
            f"scores), got {mask.dtype}: pass {name}.bool()"
        )
    return mask


def _check_shape(name: str, mask: Tensor, allowed: dict[str, tuple[int, ...]]) -> None:
    shape = tuple(mask.shape)
    if shape in allowed.values():
        return
    expected = " or ".join(f"{words} = {sizes}" for words, sizes in allowed.items())
    transposed = shape[:-2] + shape[:-3:-1] in allowed.values()
    hint = f": it looks transposed, pass {name}.mT" if transposed else ""
    raise ArgumentError(f"{name} must be {expected}, got {shape}{hint}")
