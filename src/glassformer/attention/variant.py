"""The kinds of attention that differ in how scores become weights: soft caps, sinks, windows and slopes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from glassformer.attention.masks import check_tensors
from glassformer.errors import ArgumentError, shown

_FARTHEST = 1 << 62
"""Most positions that a window reaches: more than any text has, few enough for arithmetic with 64 bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """Change the scores s of attention, or their softmax. `make_variant` checks the numbers."""

    softcap: float | None = None
    """s becomes softcap tanh(s / softcap), before slopes, bias and masks (Gemma 2)."""
    slopes: Tensor | None = None
    """One number for each head: s becomes s - slope |i - j| (ALiBi)."""
    left: int | None = None
    """How many keys before its own position a query may look at; None: all."""
    right: int | None = None
    """How many after it; None: all."""
    sinks: Tensor | None = None
    """One logit for each head, which takes its share in the softmax and has no value (gpt-oss)."""

    @property
    def windowed(self) -> bool:
        return self.left is not None or self.right is not None


def make_variant(
    heads: Tensor,
    softcap: float | None,
    sinks: Tensor | None,
    window: int | tuple[int | None, int | None] | None,
    slopes: Tensor | None,
) -> Variant:
    """Return the kind of attention of `heads` (batch, heads, length, width).

    Raises ArgumentError for numbers, shapes, dtypes and devices that don't fit.
    """
    if softcap is not None and not (_is_number(softcap) and 0 < softcap < math.inf):
        raise ArgumentError(f"softcap must be a number above 0, got {shown(softcap)}: Gemma 2 has 50.0")
    for name, x in (("sinks", sinks), ("slopes", slopes)):
        if x is not None:
            _check_by_head(name, x, heads)
    left, right = _sides(window)
    return Variant(softcap=softcap, slopes=slopes, left=left, right=right, sinks=sinks)


def _sides(window: int | tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """Return how far a window reaches to the left and to the right."""
    sides = window if isinstance(window, Sequence) else (window, window)
    if len(sides) == 2 and all(map(_is_side, sides)):
        left, right = (None if side is None else min(side, _FARTHEST) for side in sides)
        return left, right
    raise ArgumentError(
        "window must be a whole number of positions, 0 or more, or (left, right), where None has no end, got "
        f"{shown(window)}: window=(128, 0) lets a query look at its own position and 128 before it"
    )


def _is_side(x: object) -> bool:
    return x is None or (isinstance(x, int) and not isinstance(x, bool) and x >= 0)


def _check_by_head(name: str, x: Tensor, heads: Tensor) -> None:
    check_tensors(**{name: x})
    if not x.is_floating_point() or tuple(x.shape) != (heads.shape[1],):
        raise ArgumentError(
            f"{name} must be floating-point, one for each head, ({heads.shape[1]},), got {x.dtype} {tuple(x.shape)}"
        )
    if x.device != heads.device:
        raise ArgumentError(f"{name} must be where q is, on {heads.device}, got {x.device}: pass {name}.to(q.device)")


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
