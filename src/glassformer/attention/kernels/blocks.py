"""Attention divided into blocks of queries. Each sees all of its keys, so that its softmax is the ordinary one.

B batch, H heads, L query length, S key length, D width of one head, G heads of the batch entries in a block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.products import RightFactor
from glassformer.attention.kernels.scratch import Scratch

BLOCKS_IN_BUDGET = 8  # how many times a block's size the backward pass holds, at most


@dataclass(eq=False, slots=True)  # not frozen: at 1 x 8 setting nine frozen fields is a tenth of the time
class Problem:
    """Attention's inputs, and how they are computed with. k and v may have fewer heads than q: each serves several."""

    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float
    dtype: torch.dtype
    """What is computed in."""
    budget: int | None = None
    """Bytes that all blocks together may take."""

    @property
    def masked(self) -> bool:
        return self.causal or self.keep is not None or self.bias is not None

    @property
    def key_heads(self) -> Tensor:
        """Which head of k and v each head of q looks at."""
        heads, kept = self.q.shape[1], self.k.shape[1]
        return torch.arange(heads, device=self.q.device) // max(1, heads // max(1, kept))


@dataclass(frozen=True)
class Block:
    """Which part of (B, H, L, S) a block of weights (G, rows, keys) is. `offset` is where query 0 stands."""

    entries: slice
    heads: slice
    rows: slice
    keys: slice
    offset: int

    def by_head(self, x: Tensor) -> Tensor:
        """(G, ...) -> (entries, heads, ...), a view."""
        return x.unflatten(0, (-1, self.heads.stop - self.heads.start))


class Group:
    """Some heads of some entries of the batch, side by side: q (scaled), k, v: (G, length, width); of the keys, those
    from the first to the last that any of the entries may look at."""

    def __init__(self, of: Problem, entries: slice, heads: slice, rows: int) -> None:
        self.of = of
        self.entries, self.heads = entries, heads
        self.keys = _open_keys(of.keep, entries, of.k.shape[2])
        self.q = (of.q[entries, heads].to(of.dtype) * of.scale).flatten(0, 1)
        k, v = (self._of_head(x).to(of.dtype).flatten(0, 1) for x in (of.k, of.v))
        self.k, self.v = (k.contiguous(), v.contiguous()) if k.shape[1] >= choose.COPY_KEYS_FROM else (k, v)
        self._keys_transposed = RightFactor(self.k.mT)
        self._rows = rows

    def _of_head(self, x: Tensor) -> Tensor:
        """The keys or values, open to these entries, that each head of the group looks at."""
        x = x[self.entries, :, self.keys]
        return x[:, self.heads] if x.shape[1] == self.of.q.shape[1] else x[:, self.of.key_heads[self.heads]]

    def spread(self, grad: Tensor, onto: Tensor) -> None:
        """Adds the gradient of self.k or self.v to that of all keys or values."""
        part = onto[self.entries, :, self.keys]
        grad = grad.unflatten(0, (-1, self.heads.stop - self.heads.start)).to(onto.dtype)
        if onto.shape[1] == self.of.q.shape[1]:
            part[:, self.heads] = grad  # each head belongs to one group
        else:
            part.index_add_(1, self.of.key_heads[self.heads], grad)

    def blocks(self) -> Iterator[Block]:
        q_len, k_len = self.q.shape[1], self.of.k.shape[2]
        offset = k_len - q_len if self.of.causal else 0
        for start in reversed(range(0, q_len, self._rows)):  # the widest first, so that scratch needn't grow
            rows = slice(start, min(start + self._rows, q_len))
            stop = self.keys.stop
            if self.of.causal:  # at least one key, though it may be blocked
                stop = max(self.keys.start + 1, min(stop, rows.stop + offset))
            yield Block(self.entries, self.heads, rows, slice(self.keys.start, stop), offset)

    def score(self, block: Block, scratch: Scratch) -> Tensor:
        """The scores of a block (G, rows, keys), -inf where a query may not look."""
        q = self.q[:, block.rows]
        seen = block.keys.stop - block.keys.start
        s = scratch.shaped((*q.shape[:2], seen))
        self._keys_transposed.columns(seen).multiply(q, out=s)
        by_head = block.by_head(s)
        bias, keep = _part(self.of.bias, block), _part(self.of.keep, block)
        if bias is not None:
            by_head.add_(bias)
        if keep is not None:
            by_head.masked_fill_(~keep, -math.inf)
        if self.of.causal:
            first = block.rows.start + block.offset + 1  # the first key that some query may not look at
            later = slice(max(0, first - block.keys.start), seen)
            if later.start < seen:
                s[..., later].masked_fill_(~_triangle(block, later, s.device), -math.inf)
        return s

    def softmax(self, block: Block, s: Tensor, out: Tensor) -> Tensor:
        """The weights of a block, from its scores; zero where a query may look nowhere."""
        p = torch.softmax(s, -1, out=out)
        # Rows with every key blocked come out as NaN. Only they become zeros: a NaN of the input's stays.
        if self.of.masked and (p.device.type != "cpu" or p[..., 0].isnan().any()):
            p.masked_fill_(self.nowhere(block, p), 0.0)
        return p

    def nowhere(self, block: Block, like: Tensor) -> Tensor:
        """Which queries of a block may look nowhere: (G, rows, 1)."""
        blocked = like.new_zeros((1, 1, 1, like.shape[-1]), dtype=torch.bool)
        bias, keep = _part(self.of.bias, block), _part(self.of.keep, block)
        if bias is not None:
            blocked = blocked | (bias == -math.inf)
        if keep is not None:
            blocked = blocked | ~keep
        if self.of.causal:
            blocked = blocked | ~_triangle(block, slice(0, like.shape[-1]), like.device)
        return blocked.all(-1, keepdim=True).expand(*block.by_head(like).shape[:3], 1).flatten(0, 1)


def groups(of: Problem) -> Iterator[Group]:
    """Short sequences share a block; of long ones a block is some rows, of the longest some rows of some heads."""
    batch, heads, q_len, _ = of.q.shape
    size = choose.BLOCK_BYTES[of.q.device.type]
    if of.budget is not None:
        size = min(size, of.budget // BLOCKS_IN_BUDGET)
    fit = max(1, size // (of.k.shape[2] * of.dtype.itemsize))  # rows of one head
    together = min(heads, max(1, fit // min(choose.BLOCK_ROWS, q_len)))
    rows = max(1, fit // together)
    entries = min(batch, max(1, rows // q_len)) if together == heads else 1
    for first in range(0, batch, entries):
        for head in range(0, heads, together):
            yield Group(of, slice(first, min(first + entries, batch)), slice(head, min(head + together, heads)), rows)


def where_in(mask: Tensor, block: Block) -> tuple[slice, slice, slice, slice]:
    """Where a block lies in a mask that broadcasts to (B, H, L, S)."""
    whole = slice(None)
    parts = (block.entries, block.heads, block.rows)
    entries, heads, rows = (part if size > 1 else whole for part, size in zip(parts, mask.shape[:3], strict=True))
    return entries, heads, rows, block.keys


def _part(mask: Tensor | None, block: Block) -> Tensor | None:
    return None if mask is None else mask[where_in(mask, block)]


def _triangle(block: Block, keys: slice, device: torch.device) -> Tensor:
    """The causal mask of a block, for `keys` of its own."""
    first = block.keys.start + keys.start
    positions = torch.arange(block.rows.start, block.rows.stop, device=device) + block.offset
    return torch.arange(first, block.keys.start + keys.stop, device=device) <= positions[:, None]


def _open_keys(keep: Tensor | None, entries: slice, k_len: int) -> slice:
    """Without the padding before and after all that these entries may look at; at least one key."""
    if keep is None or keep.shape[1] > 1 or keep.shape[2] > 1 or keep.device.type != "cpu":
        return slice(0, k_len)
    part = keep[entries] if keep.shape[0] > 1 else keep
    found = part.reshape(-1, k_len).any(0).nonzero().flatten().tolist()
    return slice(found[0], found[-1] + 1) if found else slice(0, 1)
