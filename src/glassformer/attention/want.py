"""A request for facts about attention weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import index
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.masks import check_broadcast
from glassformer.errors import ArgumentError, shown
from glassformer.settings.docstrings import with_fields

MOST_ROWS = 1 << 20
"""Most queries whose weights can be wanted one by one."""


@with_fields
@dataclass(frozen=True, kw_only=True)
class Want:
    """The facts that `observe` returns. p are the weights of a query over the keys, s its scores.

    Raises ArgumentError for what can't be wanted.

    >>> import torch
    >>> from glassformer import observe
    >>> queries = keys = values = torch.zeros(1, 2, 4, 8)  # batch, heads, length, d_head
    >>> _, seen = observe(queries, keys, values, want=Want(entropy=True, rows=(0, 3)))
    >>> seen.entropy.shape, seen.rows.shape
    (torch.Size([1, 2, 4]), torch.Size([1, 2, 2, 4]))
    """

    entropy: bool = False
    """The entropy of each query's weights, -Σ p log p, in nats: (batch, heads, q_len)."""

    received: bool = False
    """The attention that each key receives, summed over the queries: (batch, heads, k_len)."""

    distance: bool = False
    """The mean distance from a query to the keys it looks at, Σ p |i - j|, in positions: (batch, heads, q_len)."""

    lse: bool = False
    """The normaliser, log Σ exp(s): p = exp(s - lse). (batch, heads, q_len); -inf where a query looks nowhere."""

    max_score: bool = False
    """The largest score of each query, max s: (batch, heads, q_len); -inf where a query looks nowhere."""

    sink: int = 0
    """The weight of each query on the first `sink` keys together: (batch, heads, q_len)."""

    mass: Tensor | None = None
    """The weight of each query inside this boolean mask: (batch, heads, q_len). The mask broadcasts to (batch, heads,
    q_len, k_len)."""

    agreement: Tensor | None = None
    """The weight on the keys that this boolean alignment gives to a query, as the mean over the queries that have such
    keys: (batch, heads); 0 if none has. The alignment is (batch, q_len, k_len), or (1, q_len, k_len) for all entries.
    """

    top: int = 0
    """The `top` largest weights of each query, and their keys: two tensors (batch, heads, q_len, top)."""

    rows: Sequence[int] = ()
    """All weights of these queries: (batch, heads, len(rows), k_len)."""

    row_heads: Sequence[int] | None = None
    """The heads whose `rows` are wanted, in place of all."""

    pooled: int = 0
    """The mean over the heads, summed into at most pooled x pooled tiles: (batch, tiles, tiles). See `tile_size`."""

    pooled_heads: int = 0
    """The same for each head: (batch, heads, tiles, tiles)."""

    head_mean: bool = False
    """The mean over the heads of all weights: (batch, q_len, k_len)."""

    weights: bool = False
    """All weights of each head: (batch, heads, q_len, k_len). The only fact that takes that much memory."""

    def __post_init__(self) -> None:
        for name in ("rows", "row_heads"):
            given = getattr(self, name)
            if given is None:
                continue
            try:
                if isinstance(given, bool):
                    raise TypeError
                several = islice(given, MOST_ROWS + 1) if isinstance(given, Iterable) else [given]
                object.__setattr__(self, name, tuple(index(n) for n in several))
            except TypeError:
                raise ArgumentError(f"{name} must be positions, such as (0, 5), got {shown(given)}") from None
            if len(getattr(self, name)) > MOST_ROWS:
                raise ArgumentError(f"{name} must be at most {MOST_ROWS:,} positions, got more")
        for name in ("entropy", "received", "distance", "lse", "max_score", "head_mean", "weights"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} must be True or False, got {getattr(self, name)!r}: is it wanted or not?")
        for name in ("sink", "top", "pooled", "pooled_heads"):
            number = getattr(self, name)
            try:
                if isinstance(number, bool) or index(number) < 0:
                    raise TypeError
                object.__setattr__(self, name, index(number))
            except TypeError:
                raise ArgumentError(f"{name} must be a number, 0 or more, got {number!r}: {name}=8, say") from None
        for name, axes in (("mass", "(batch, heads, q_len, k_len)"), ("agreement", "(batch, q_len, k_len)")):
            given = getattr(self, name)
            if given is None or (isinstance(given, Tensor) and given.dtype == torch.bool):
                continue
            what = f"{given.dtype}: pass {name} > 0" if isinstance(given, Tensor) else shown(given)
            raise ArgumentError(f"{name} must be a boolean tensor {axes}, got {what}")
        if self.row_heads is not None and not self.rows:
            raise ArgumentError("row_heads says whose rows, but rows is empty: name the queries, rows=(0, 5)")

    def check(self, heads: int, q_len: int, k_len: int) -> None:
        """Raise ArgumentError unless this fits attention of this size."""
        for name, number in (("top", self.top), ("sink", self.sink)):
            if number > k_len:
                raise ArgumentError(f"{name} must be at most the number of keys, {k_len}, got {number}")
        for name, chosen, most in (("rows", self.rows, q_len), ("row_heads", self.row_heads or (), heads)):
            for n in chosen:
                if not -most <= n < most:
                    them = "queries" if name == "rows" else "heads"
                    raise ArgumentError(f"{name} must be among the {most} {them}, 0 to {most - 1}, got {n}")

    def check_masks(self, batch: int, heads: int, q_len: int, k_len: int, device: torch.device) -> None:
        """Raise ArgumentError unless `mass` and `agreement` fit attention of this size, and are where it is."""
        for name, x in (("mass", self.mass), ("agreement", self.agreement)):
            if x is not None and x.device != device:
                raise ArgumentError(f"{name} must be where the weights are, on {device}, got {x.device}")
        if self.mass is not None:
            check_broadcast("mass", self.mass, (batch, heads, q_len, k_len))
        if self.agreement is not None:
            shape = tuple(self.agreement.shape)
            if shape not in ((batch, q_len, k_len), (1, q_len, k_len)):
                hint = (
                    ": it looks transposed, pass agreement.mT" if q_len != k_len and shape[1:] == (k_len, q_len) else ""
                )
                raise ArgumentError(
                    f"agreement must be (batch, q_len, k_len) = {(batch, q_len, k_len)}, or 1 in place of the batch, "
                    f"got {shape}{hint}"
                )

    def fitted(self, q_len: int, k_len: int, before: int = 0) -> "Want":
        """Return what fits attention of this size: at most all keys for `top` and `sink`, and `rows` that exist.

        `before` queries came earlier, which `rows` counts, too, unless it counts from the end. `mass` and `agreement`
        are left out if they are for other lengths.
        """
        rows = tuple(n if n < 0 else n - before for n in self.rows if -q_len <= n < 0 or before <= n < before + q_len)
        top, sink = min(self.top, k_len), min(self.sink, k_len)
        fitting = replace(self, top=top, sink=sink, rows=rows, row_heads=self.row_heads if rows else None)
        lengths = ((q_len, k_len), (1, k_len))
        if self.mass is not None and tuple(self.mass.shape[-2:]) not in lengths:
            fitting = replace(fitting, mass=None)
        if self.agreement is not None and tuple(self.agreement.shape[-2:]) != lengths[0]:
            fitting = replace(fitting, agreement=None)
        return fitting

    def asks(self, name: str) -> bool:
        """Return whether the fact of this name is wanted."""
        value = getattr(self, name)
        return value is not None and (isinstance(value, Tensor) or bool(value))

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names of what is wanted."""
        return tuple(name for name in _NAMES if name != "row_heads" and self.asks(name))

    def __eq__(self, other: object) -> bool:
        """Return whether the same is wanted, with equal masks."""
        if not isinstance(other, Want):
            return NotImplemented
        return all(_are_equal(getattr(self, name), getattr(other, name)) for name in _NAMES)

    def __hash__(self) -> int:
        values = (getattr(self, name) for name in _NAMES)
        return hash(tuple(x.shape if isinstance(x, Tensor) else x for x in values))

    def __repr__(self) -> str:
        said = (f"{name}={_said(getattr(self, name))}" for name in _NAMES)
        return f"Want({', '.join(said)})"


def _are_equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return one is other or (not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other)
    return one is other or (one.device == other.device and torch.equal(one, other))


def _said(value: object) -> str:
    """Return a value as text, a tensor as its size."""
    return f"<{' x '.join(map(str, value.shape))}>" if isinstance(value, Tensor) else repr(value)


_NAMES = tuple(field.name for field in fields(Want))


SUMMARY = Want(entropy=True, received=True, distance=True, lse=True)
NOTHING = Want()


def tile_size(length: int, tiles: int) -> int:
    """Return how many neighbours share a tile, so that there are at most `tiles` tiles."""
    return max(1, -(-length // max(1, tiles)))


def tile_count(length: int, tiles: int) -> int:
    """Return how many tiles a side of this length has: at most `tiles`."""
    return -(-length // tile_size(length, tiles))
