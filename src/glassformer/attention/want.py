"""A request for facts about attention weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import index

from glassformer.docstrings import with_fields
from glassformer.errors import ArgumentError, shown

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
    """Number of the first keys, on which the weight of each query is wanted: (batch, heads, q_len)."""

    top: int = 0
    """Number of the largest weights of each query, with their keys, to return: twice (batch, heads, q_len, top)."""

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

    def fitted(self, q_len: int, k_len: int) -> "Want":
        """Return what fits attention of this size: at most all keys for `top` and `sink`, and `rows` that exist."""
        rows = tuple(n for n in self.rows if -q_len <= n < q_len)
        top, sink = min(self.top, k_len), min(self.sink, k_len)
        return replace(self, top=top, sink=sink, rows=rows, row_heads=self.row_heads if rows else None)

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names of what is wanted."""
        names = (field.name for field in fields(self) if field.name != "row_heads")
        return tuple(name for name in names if getattr(self, name))


SUMMARY = Want(entropy=True, received=True, distance=True, lse=True)
NOTHING = Want()


def tile_size(length: int, tiles: int) -> int:
    """Return how many neighbours share a tile, so that there are at most `tiles` tiles."""
    return max(1, -(-length // max(1, tiles)))
