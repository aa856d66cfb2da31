"""Facts about attention weights, gathered block by block, and their gradients.

All of these are linear in the weights w (B, H, L, S): `add` adds a block's part of w to the fact, `add_gradient` adds
the fact's part of the gradient to dw. B batch, H heads, L query length, S key length, G heads of a block's entries.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention.kernels.blocks import Block, where_in
from glassformer.attention.kernels.topk import topk_keys
from glassformer.attention.want import Want, tile_size

Facts = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """The sizes of all the weights, and the dtypes of facts that are numbers and of facts that are maps of weights."""

    batch: int
    heads: int
    q_len: int
    k_len: int
    dtype: torch.dtype
    map_dtype: torch.dtype
    device: torch.device

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


class Statistic(ABC):
    """One fact, under its name in `facts`."""

    name: ClassVar[str]

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    @abstractmethod
    def prepare(self, facts: Facts) -> None:
        """Put a tensor of the fact's shape in `facts`."""

    @abstractmethod
    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        """Add a block of weights (G, rows, keys) to the fact."""

    @abstractmethod
    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        """Add the part of the weights' gradient that comes through the fact to the block's dw (G, rows, keys)."""


class OfQueries(Statistic):
    """A fact with a number for each query: (B, H, L)."""

    def prepare(self, facts: Facts) -> None:
        sizes = self.sizes
        facts[self.name] = sizes.zeros(sizes.batch, sizes.heads, sizes.q_len)


class Received(Statistic):
    """The attention that each key receives, Σ_i w_ij: (B, H, S)."""

    name = "received"

    def prepare(self, facts: Facts) -> None:
        sizes = self.sizes
        facts[self.name] = sizes.zeros(sizes.batch, sizes.heads, sizes.k_len)

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        ones = w.new_ones(w.shape[0], 1, w.shape[1])  # a product is a third faster than a sum over rows
        facts[self.name][block.entries, block.heads, block.keys] += block.by_head(ones @ w)[..., 0, :]

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        dw += grad[block.entries, block.heads, block.keys].flatten(0, 1)[:, None]


class Distance(OfQueries):
    """The mean distance from each query to the keys it looks at, Σ_j w_ij |i - j|: (B, H, L).

    To the left of a block's own positions |i - j| is i - j, to the right j - i: two products with vectors.
    """

    name = "distance"

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        side, signed, rows, inside, near = self._parts(block, w)
        flat = w.view(-1, w.shape[-1])
        far, weight = (torch.mv(flat, x).view(w.shape[:2]) for x in (signed, side))
        total = far - rows * weight + (w[..., inside] * near).sum(-1)
        facts[self.name][block.entries, block.heads, block.rows] = block.by_head(total)

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        side, signed, rows, inside, near = self._parts(block, dw)
        grad = grad[block.entries, block.heads, block.rows].flatten(0, 1).to(dw.dtype)
        by_query = torch.stack([grad.flatten(), (-rows * grad).flatten()], 1)
        dw.view(-1, dw.shape[-1]).addmm_(by_query, torch.stack([signed, side]))
        dw[..., inside] += grad[..., None] * near

    @staticmethod
    def _parts(block: Block, like: Tensor) -> tuple[Tensor, Tensor, Tensor, slice, Tensor]:
        """Return the side on which each key lies (-1, 0 inside, 1), that times its position, the queries' positions,
        which keys are inside, and |i - j| there.

        Positions count from the middle of the block, so that they stay small numbers.
        """
        first, last = block.rows.start + block.offset, block.rows.stop + block.offset
        middle = (first + last) // 2
        keys = torch.arange(block.keys.start - middle, block.keys.stop - middle, device=like.device).to(like.dtype)
        rows = torch.arange(first - middle, last - middle, device=like.device).to(like.dtype)
        start, stop = (min(max(0, n - block.keys.start), len(keys)) for n in (first, last))
        side = torch.ones_like(keys)
        side[:start] = -1
        side[start:stop] = 0
        return side, side * keys, rows, slice(start, stop), (rows[:, None] - keys[start:stop]).abs()


class Sink(OfQueries):
    """The weight of each query on the first n keys: (B, H, L)."""

    name = "sink"

    def __init__(self, sizes: Sizes, keys: int) -> None:
        super().__init__(sizes)
        self._keys = keys

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        first = w[..., : max(0, self._keys - block.keys.start)]
        facts[self.name][block.entries, block.heads, block.rows] = block.by_head(first.sum(-1))

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        by_query = grad[block.entries, block.heads, block.rows].flatten(0, 1)[..., None]
        dw[..., : max(0, self._keys - block.keys.start)] += by_query


class Mass(OfQueries):
    """The weight of each query inside a mask, Σ_j w_ij m_ij: (B, H, L)."""

    name = "mass"

    def __init__(self, sizes: Sizes, mask: Tensor) -> None:
        super().__init__(sizes)
        self._mask = mask

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        inside = block.by_head(w) * self._mask[where_in(self._mask, block)]
        facts[self.name][block.entries, block.heads, block.rows] = inside.sum(-1)

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        by_query = grad[block.entries, block.heads, block.rows, None].to(dw.dtype)
        block.by_head(dw).addcmul_(by_query, self._mask[where_in(self._mask, block)].to(dw.dtype))


class Agreement(Statistic):
    """The weight on the aligned keys, the mean over the queries that have any, Σ_ij w_ij a_ij / n: (B, H)."""

    name = "agreement"

    def __init__(self, sizes: Sizes, alignment: Tensor) -> None:
        super().__init__(sizes)
        self._alignment = alignment[:, None]
        self._share = 1 / aligned_queries(alignment).to(sizes.dtype)[:, None].expand(sizes.batch, 1)

    def prepare(self, facts: Facts) -> None:
        facts[self.name] = self.sizes.zeros(self.sizes.batch, self.sizes.heads)

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        aligned = block.by_head(w) * self._alignment[where_in(self._alignment, block)]
        facts[self.name][block.entries, block.heads] += aligned.sum((2, 3)) * self._share[block.entries]

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        by_head = (grad[block.entries, block.heads] * self._share[block.entries])[..., None, None].to(dw.dtype)
        block.by_head(dw).addcmul_(by_head, self._alignment[where_in(self._alignment, block)].to(dw.dtype))


class Top(Statistic):
    """The k largest of each w_i, largest first, and their keys (-1 where the weight is zero): twice (B, H, L, k)."""

    name = "top"

    def __init__(self, sizes: Sizes, k: int) -> None:
        super().__init__(sizes)
        self._k = k

    def prepare(self, facts: Facts) -> None:
        sizes = self.sizes
        facts["top"] = sizes.zeros(sizes.batch, sizes.heads, sizes.q_len, self._k)
        facts["top_keys"] = torch.full(facts["top"].shape, -1, device=sizes.device)

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        largest, keys = topk_keys(w, min(self._k, w.shape[-1]))
        keys = (keys + block.keys.start).masked_fill_(largest == 0, -1)
        place = (block.entries, block.heads, block.rows, slice(0, largest.shape[-1]))
        facts["top"][place] = block.by_head(largest).to(facts["top"].dtype)
        facts["top_keys"][place] = block.by_head(keys)

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        place = (block.entries, block.heads, block.rows)
        keys = facts["top_keys"][place].flatten(0, 1)
        grad = grad[place].flatten(0, 1).to(dw.dtype).masked_fill(keys < 0, 0.0)
        dw.scatter_add_(-1, (keys - block.keys.start).clamp_(min=0), grad)


class Rows(Statistic):
    """The weights of chosen queries and heads: (B, chosen heads, chosen queries, S)."""

    name = "rows"

    def __init__(self, sizes: Sizes, queries: Sequence[int], heads: Sequence[int] | None) -> None:
        super().__init__(sizes)
        self._heads = [h % sizes.heads for h in (range(sizes.heads) if heads is None else heads)]
        self._queries = [q % sizes.q_len for q in queries]

    def prepare(self, facts: Facts) -> None:
        sizes = self.sizes
        facts[self.name] = sizes.zeros(sizes.batch, len(self._heads), len(self._queries), sizes.k_len)

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        for slot, head, slots, queries in self._inside(block):
            part = block.by_head(w)[:, head, queries].to(facts[self.name].dtype)
            facts[self.name][block.entries, slot, :, block.keys][:, slots] = part

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        for slot, head, slots, queries in self._inside(block):
            part = grad[block.entries, slot, :, block.keys][:, slots].to(dw.dtype)
            block.by_head(dw)[:, head].index_add_(1, torch.tensor(queries, device=dw.device), part)

    def _inside(self, block: Block) -> list[tuple[int, int, list[int], list[int]]]:
        """Return each chosen head's place in the result and in the block, and those of the chosen queries."""
        slots = [n for n, q in enumerate(self._queries) if block.rows.start <= q < block.rows.stop]
        if not slots:
            return []
        inside = [self._queries[n] - block.rows.start for n in slots]
        return [
            (slot, head - block.heads.start, slots, inside)
            for slot, head in enumerate(self._heads)
            if block.heads.start <= head < block.heads.stop
        ]


class HeadMean(Statistic):
    """The mean of the weights over the heads: (B, L, S)."""

    name = "head_mean"

    def prepare(self, facts: Facts) -> None:
        sizes = self.sizes
        facts[self.name] = torch.empty(
            sizes.batch, sizes.q_len, sizes.k_len, dtype=sizes.map_dtype, device=sizes.device
        )

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        rows = facts[self.name][block.entries, block.rows]
        part = rows[..., block.keys]
        mean = block.by_head(w).sum(1)  # a mean in bfloat16 takes eight times as long
        if block.heads.start:
            part.add_(mean, alpha=1 / self.sizes.heads)
            return
        if part.shape[-1] < rows.shape[-1]:
            rows.zero_()
        torch.mul(mean, 1 / self.sizes.heads, out=part) if mean.dtype == part.dtype else part.copy_(
            mean / self.sizes.heads
        )

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        block.by_head(dw).add_(grad[block.entries, None, block.rows, block.keys], alpha=1 / self.sizes.heads)


class Weights(Statistic):
    """All weights: (B, H, L, S)."""

    name = "weights"

    def prepare(self, facts: Facts) -> None:
        sizes = self.sizes
        shape = (sizes.batch, sizes.heads, sizes.q_len, sizes.k_len)
        facts[self.name] = torch.empty(shape, dtype=sizes.map_dtype, device=sizes.device)

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        rows = facts[self.name][block.entries, block.heads, block.rows]
        if w.shape[-1] < rows.shape[-1]:
            rows.zero_()
        rows[..., block.keys] = block.by_head(w)

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        block.by_head(dw).add_(grad[block.entries, block.heads, block.rows, block.keys])


class PooledHeads(Statistic):
    """The sum of the weights over tiles of queries and keys: (B, H, tiles, tiles)."""

    name = "pooled_heads"

    def __init__(self, sizes: Sizes, tiles: int) -> None:
        super().__init__(sizes)
        self._tile = tile_size(sizes.q_len, tiles), tile_size(sizes.k_len, tiles)

    def prepare(self, facts: Facts) -> None:
        facts[self.name] = self.sizes.zeros(self.sizes.batch, self.sizes.heads, *self._tiles_in_all())

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        rows, keys = self._tiles(block)
        facts[self.name][block.entries, block.heads, rows, keys] += self._sum(block, block.by_head(w))

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        block.by_head(dw).add_(self._spread(block, grad[block.entries, block.heads]))

    def _tiles_in_all(self) -> tuple[int, ...]:
        return tuple(-(-n // size) for n, size in zip((self.sizes.q_len, self.sizes.k_len), self._tile, strict=True))

    def _tiles(self, block: Block) -> tuple[slice, slice]:
        rows, keys = (
            slice(part.start // size, (part.stop - 1) // size + 1)
            for part, size in zip((block.rows, block.keys), self._tile, strict=True)
        )
        return rows, keys

    def _sum(self, block: Block, w: Tensor) -> Tensor:
        """Sum (..., rows, keys) into (..., tiles, tiles)."""
        tile = self._tile[0]
        if tile > 1:
            of_row = torch.arange(block.rows.start, block.rows.stop, device=w.device) // tile
            tiles = torch.arange(block.rows.start // tile, (block.rows.stop - 1) // tile + 1, device=w.device)
            w = (tiles[:, None] == of_row).to(w.dtype) @ w
        tile = self._tile[1]
        if tile > 1:
            w = F.pad(w, (block.keys.start % tile, -block.keys.stop % tile)).unflatten(-1, (-1, tile)).sum(-1)
        return w

    def _spread(self, block: Block, grad: Tensor) -> Tensor:
        """Spread (..., all tiles, all tiles) over (..., rows, keys)."""
        rows, keys = (
            torch.arange(part.start, part.stop, device=grad.device) // size
            for part, size in zip((block.rows, block.keys), self._tile, strict=True)
        )
        return grad[..., rows, :][..., keys]


class Pooled(PooledHeads):
    """The mean over the heads of PooledHeads: (B, tiles, tiles)."""

    name = "pooled"

    def prepare(self, facts: Facts) -> None:
        facts[self.name] = self.sizes.zeros(self.sizes.batch, *self._tiles_in_all())

    def add(self, block: Block, w: Tensor, facts: Facts) -> None:
        rows, keys = self._tiles(block)
        facts[self.name][block.entries, rows, keys] += self._sum(block, block.by_head(w).sum(1)) / self.sizes.heads

    def add_gradient(self, block: Block, grad: Tensor, dw: Tensor, facts: Facts) -> None:
        block.by_head(dw).add_(self._spread(block, grad[block.entries])[:, None], alpha=1 / self.sizes.heads)


def statistics(want: Want, sizes: Sizes) -> list[Statistic]:
    """Return the facts that `want` asks about the weights themselves."""
    wished: dict[str, Callable[[], Statistic]] = {
        "received": lambda: Received(sizes),
        "distance": lambda: Distance(sizes),
        "sink": lambda: Sink(sizes, want.sink),
        "mass": lambda: Mass(sizes, _mask(want.mass)),
        "agreement": lambda: Agreement(sizes, _mask(want.agreement)),
        "top": lambda: Top(sizes, want.top),
        "rows": lambda: Rows(sizes, want.rows, want.row_heads),
        "pooled": lambda: Pooled(sizes, want.pooled),
        "pooled_heads": lambda: PooledHeads(sizes, want.pooled_heads),
        "head_mean": lambda: HeadMean(sizes),
        "weights": lambda: Weights(sizes),
    }
    return [new() for name, new in wished.items() if want.asks(name)]


def aligned_queries(alignment: Tensor) -> Tensor:
    """Return how many queries of each entry have an aligned key, from (batch, q_len, k_len); at least 1."""
    return alignment.any(-1).sum(-1).clamp(min=1)


def _mask(x: Tensor | None) -> Tensor:
    assert x is not None
    return x
