"""Attention divided into blocks of queries. Each sees all of its keys, so that its softmax is the ordinary one.

B batch, H heads, L query length, S key length, D width of one head, G heads of the batch entries in a block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.products import RightFactor
from glassformer.attention.kernels.scratch import Place, Scratch
from glassformer.attention.variant import Variant

BLOCKS_IN_BUDGET = 8  # how many times a block's size the backward pass holds, at most


@dataclass(eq=False, slots=True)  # not frozen: at 1 x 8 setting nine frozen fields is a tenth of the time
class Problem:
    """The inputs of attention and how to compute it. k and v may have fewer heads than q: each then serves several."""

    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float
    dtype: torch.dtype
    """The dtype to compute in."""
    budget: int | None = None
    """The bytes that all blocks together may take."""
    from_start: bool = False
    """True says that `keep` is `masks.causal_from_start`, which some forms needn't read."""
    variant: Variant | None = None
    """Change how scores become weights. Only the plain form and blocks know it."""
    queries: Tensor | None = None
    """True for the queries that are no padding (B, 1, L, 1). Only `capture` reads it: padding looks at nothing."""
    first_query: int = 0
    """The position of the first query. Under `causal` it isn't read: the queries are the last positions."""

    @property
    def masked(self) -> bool:
        return self.causal or self.keep is not None or self.bias is not None or self.windowed

    @property
    def offset(self) -> int:
        """Return the position of the first query."""
        return self.k.shape[2] - self.q.shape[2] if self.causal else self.first_query

    @property
    def windowed(self) -> bool:
        return self.variant is not None and self.variant.windowed

    @property
    def key_heads(self) -> Tensor:
        """Return which head of k and v each head of q looks at."""
        heads, kept = self.q.shape[1], self.k.shape[1]
        return torch.arange(heads, device=self.q.device) // max(1, heads // max(1, kept))


@dataclass(frozen=True)
class Block:
    """The part of (B, H, L, S) that a block of weights (G, rows, keys) is. `offset` is the position of query 0."""

    entries: slice
    heads: slice
    rows: slice
    keys: slice
    offset: int

    def by_head(self, x: Tensor) -> Tensor:
        """Return (G, ...) as (entries, heads, ...), a view."""
        return x.unflatten(0, (-1, self.heads.stop - self.heads.start))


class Group:
    """Some heads of some entries of the batch, side by side: q (scaled) is (G, length, width).

    k and v are that, too, but those of a head that serves several are there once: `fold` puts the rows of these in one.
    Its keys reach from the first to the last that any of the entries may look at; with `all_keys` they are all.
    """

    def __init__(self, problem: Problem, entries: slice, heads: slice, rows: int, *, all_keys: bool = False) -> None:
        self.problem = problem
        self.entries, self.heads = entries, heads
        k_len = problem.k.shape[2]
        self.keys = slice(0, k_len) if all_keys else open_keys(problem.keep, entries, k_len)
        of_all, kept = problem.q.shape[1], problem.k.shape[1]
        each = of_all // max(1, kept)
        self.key_heads = heads if of_all == kept else slice(heads.start // each, (heads.stop - 1) // each + 1)
        self._served = max(1, heads.stop - heads.start) // max(1, self.key_heads.stop - self.key_heads.start)
        self.q = _scaled(problem.q[entries, heads], problem).flatten(0, 1)
        k, v = (x[entries, self.key_heads, self.keys].to(problem.dtype).flatten(0, 1) for x in (problem.k, problem.v))
        self.k, self.v = (k.contiguous(), v.contiguous()) if k.shape[1] >= choose.COPY_KEYS_FROM else (k, v)
        self._keys_transposed = RightFactor(self.k.mT)
        self._rows = rows

    def fold(self, x: Tensor) -> Tensor:
        """Return (G, rows, n) with the rows of all heads that one key head serves after one another."""
        return x if self._served == 1 else x.reshape(-1, self._served * x.shape[1], x.shape[2])

    def spread(self, grad: Tensor, onto: Tensor) -> None:
        """Add the gradient of self.k or self.v to that of all keys or values."""
        part = onto[self.entries, self.key_heads, self.keys]
        part += grad.unflatten(0, part.shape[:2]).to(onto.dtype)  # a key head may serve several groups

    def blocks(self) -> Iterator[Block]:
        q_len, offset = self.q.shape[1], self.problem.offset
        for start in reversed(range(0, q_len, self._rows)):  # the widest first, so that scratch needn't grow
            rows = slice(start, min(start + self._rows, q_len))
            stop = self.keys.stop
            if self.problem.causal:  # at least one key, though it may be blocked
                stop = max(self.keys.start + 1, min(stop, rows.stop + offset))
            keys = slice(self.keys.start, stop)
            if self.problem.windowed:
                keys = self._in_window(rows, keys, offset)
            yield Block(self.entries, self.heads, rows, keys, offset)

    def _in_window(self, rows: slice, keys: slice, offset: int) -> slice:
        """Return those of some keys that the window of a block's queries reaches, but at least one."""
        variant, start, stop = self.problem.variant, keys.start, keys.stop
        if variant is not None and variant.left is not None:
            start = max(start, min(rows.start + offset - variant.left, stop - 1))
        if variant is not None and variant.right is not None:
            stop = max(start + 1, min(stop, rows.stop + offset + variant.right))
        return slice(start, stop)

    def inside(self, block: Block) -> slice:
        """Return where the keys of a block are among those of the group."""
        return slice(block.keys.start - self.keys.start, block.keys.stop - self.keys.start)

    def score(self, block: Block, scratch: Scratch | Place, capped: Scratch | None = None) -> Tensor:
        """Return the scores of a block (G, rows, keys), -inf where a query may not look.

        `capped` gets tanh(q kᵀ scale / softcap), if there is a soft cap.
        """
        q = self.q[:, block.rows]
        seen = block.keys.stop - block.keys.start
        s = scratch.shaped((*q.shape[:2], seen))
        self._keys_transposed.columns(seen, self.inside(block).start).multiply(self.fold(q), out=self.fold(s))
        by_head = block.by_head(s)
        if self.problem.variant is not None:
            self._vary(block, s, capped)
        bias, keep = _part(self.problem.bias, block), _part(self.problem.keep, block)
        if bias is not None:
            by_head.add_(bias)
        if keep is not None:
            by_head.masked_fill_(~keep, -math.inf)
        if self.problem.causal:
            first = block.rows.start + block.offset + 1  # the first key that some query may not look at
            later = slice(max(0, first - block.keys.start), seen)
            if later.start < seen:
                s[..., later].masked_fill_(~_triangle(block, later, s.device), -math.inf)
        if self.problem.windowed:
            s.masked_fill_(~self._window(block, s), -math.inf)
        return s

    def _vary(self, block: Block, s: Tensor, capped: Scratch | None) -> None:
        """Cap scores, and lower them with the distance, in place."""
        assert self.problem.variant is not None
        softcap, slopes = self.problem.variant.softcap, self.problem.variant.slopes
        if softcap is not None:
            s.div_(softcap).tanh_()
            if capped is not None:
                capped.shaped(s.shape).copy_(s)
            s.mul_(softcap)
        if slopes is not None:
            by_head = block.by_head(s)
            of_heads = slopes.detach()[self.heads, None, None].to(s.dtype)
            torch.addcmul(by_head, of_heads, distances(block, s), value=-1, out=by_head)

    def _window(self, block: Block, like: Tensor) -> Tensor:
        """Return which keys the window of each query of a block reaches (rows, keys)."""
        assert self.problem.variant is not None
        rows, keys = _positions(block, like.device)
        return in_window(rows, keys, self.problem.variant)

    def softmax(self, block: Block, s: Tensor, out: Tensor) -> Tensor:
        """Return the weights of a block from its scores; zero where a query may look nowhere."""
        p = torch.softmax(s, -1, out=out)
        # Rows with every key blocked come out as NaN. Only they become zeros: a NaN of the input's stays.
        if self.problem.masked and (p.device.type != "cpu" or p[..., 0].isnan().any()):
            p.masked_fill_(self.nowhere(block, p), 0.0)
        return p

    def nowhere(self, block: Block, like: Tensor) -> Tensor:
        """Return which queries of a block may look nowhere: (G, rows, 1)."""
        blocked = like.new_zeros((1, 1, 1, like.shape[-1]), dtype=torch.bool)
        bias, keep = _part(self.problem.bias, block), _part(self.problem.keep, block)
        if bias is not None:
            blocked = blocked | (bias == -math.inf)
        if keep is not None:
            blocked = blocked | ~keep
        if self.problem.causal:
            blocked = blocked | ~_triangle(block, slice(0, like.shape[-1]), like.device)
        if self.problem.windowed:
            blocked = blocked | ~self._window(block, like)
        return blocked.all(-1, keepdim=True).expand(*block.by_head(like).shape[:3], 1).flatten(0, 1)


def groups(problem: Problem, *, in_place: bool = False) -> Iterator[Group]:
    """Divide the problem: short sequences share a block, a long one is cut by rows, the longest also by heads.

    With `in_place` a block holds all rows of its heads, or rows of a single one, and all keys: its weights lie side by
    side among those of all.
    """
    batch, heads, q_len, _ = problem.q.shape
    size = choose.BLOCK_BYTES[problem.q.device.type]
    if problem.budget is not None:
        size = min(size, problem.budget // BLOCKS_IN_BUDGET)
    k_len, width = problem.k.shape[2], problem.k.shape[2]
    if problem.windowed and problem.variant is not None:  # the keys that the rows of a block look at
        left, right = (k_len if side is None else side for side in (problem.variant.left, problem.variant.right))
        width = min(k_len, left + (0 if problem.causal else right) + choose.BLOCK_ROWS)
    fit = max(1, size // (width * problem.dtype.itemsize))  # rows of one head
    together = min(heads, max(1, fit // min(choose.BLOCK_ROWS, q_len)))
    if in_place:
        together = max(1, min(heads, fit // q_len))
    together = _with_their_keys(together, heads // max(1, problem.k.shape[1]))
    rows = max(1, fit // together)
    entries = min(batch, max(1, rows // q_len)) if together == heads else 1
    if width < k_len:  # more rows would look at more keys
        rows = min(rows, choose.BLOCK_ROWS)
    for first in range(0, batch, entries):
        for head in range(0, heads, together):
            of_entries, of_heads = slice(first, min(first + entries, batch)), slice(head, min(head + together, heads))
            yield Group(problem, of_entries, of_heads, rows, all_keys=in_place)


@torch.no_grad()
def largest_scores(problem: Problem) -> Tensor:
    """Return the largest score of each head, of all queries and keys that may look at each other: (H,).

    -inf for a head that looks nowhere. Holds the scores of one block at a time.
    """
    of = replace(problem, v=problem.v[..., :0])  # values have no part in it
    found = of.q.new_full((of.q.shape[1],), -math.inf, dtype=of.dtype)
    if not of.q.numel() or not of.k.numel():
        return found
    scratch = Scratch(of.dtype, of.q.device)
    with torch.autocast(of.q.device.type, enabled=False):
        for group in groups(of):
            for block in group.blocks():
                largest = block.by_head(group.score(block, scratch)).amax((0, 2, 3))
                found[block.heads] = torch.maximum(found[block.heads], largest)
    return found


def _with_their_keys(together: int, served: int) -> int:
    """Return at most so many heads: all that some key heads serve, or a part of those of one."""
    if together >= served:
        return together - together % max(1, served)
    return next(n for n in range(together, 0, -1) if not served % n)


def _scaled(q: Tensor, problem: Problem) -> Tensor:
    """Return a copy of queries times the scale, laid out one after the other."""
    if q.dtype != problem.dtype:
        return q.to(problem.dtype) * problem.scale
    return torch.mul(q, problem.scale, out=torch.empty(q.shape, dtype=q.dtype, device=q.device))


def own(bias: Tensor) -> Tensor:
    """Return a copy, since the owner may change a mask before the backward pass; expanded axes aren't copied."""
    for axis, stride in enumerate(bias.stride()):
        bias = bias if stride else bias[(slice(None),) * axis + (slice(0, 1),)]
    return bias.clone()


def where_in(mask: Tensor, block: Block) -> tuple[slice, slice, slice, slice]:
    """Return where a block lies in a mask that broadcasts to (B, H, L, S)."""
    whole = slice(None)
    parts = (block.entries, block.heads, block.rows, block.keys)
    entries, heads, rows, keys = (part if size > 1 else whole for part, size in zip(parts, mask.shape, strict=True))
    return entries, heads, rows, keys


def _part(mask: Tensor | None, block: Block) -> Tensor | None:
    return None if mask is None else mask[where_in(mask, block)]


def _triangle(block: Block, keys: slice, device: torch.device) -> Tensor:
    """Return the causal mask of a block for `keys` of its own."""
    first = block.keys.start + keys.start
    positions = torch.arange(block.rows.start, block.rows.stop, device=device) + block.offset
    return torch.arange(first, block.keys.start + keys.stop, device=device) <= positions[:, None]


def _positions(block: Block, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the positions of the queries (rows, 1) and of the keys of a block."""
    rows = torch.arange(block.rows.start + block.offset, block.rows.stop + block.offset, device=device)
    return rows[:, None], torch.arange(block.keys.start, block.keys.stop, device=device)


def distances(block: Block, like: Tensor) -> Tensor:
    """Return how far the queries of a block are from its keys (rows, keys)."""
    rows, keys = _positions(block, like.device)
    return (rows - keys).abs().to(like.dtype)


def in_window(rows: Tensor, keys: Tensor, variant: Variant) -> Tensor:
    """Return which keys are within the window of which queries, from their positions (rows, 1) and (keys,)."""
    not_after = None if variant.right is None else keys <= rows + variant.right
    if variant.left is None:
        assert not_after is not None
        return not_after
    not_before = keys >= rows - variant.left
    return not_before if not_after is None else not_before & not_after


def open_keys(keep: Tensor | None, entries: slice, k_len: int) -> slice:
    """Return the keys without the padding before and after all that these entries may look at; at least one."""
    if keep is None or not k_len or keep.shape[1] > 1 or keep.shape[2] > 1 or keep.device.type != "cpu":
        return slice(0, k_len)
    part = keep[entries] if keep.shape[0] > 1 else keep
    open_ = part.reshape(-1, k_len).any(0).nonzero().flatten().tolist()
    return slice(open_[0], open_[-1] + 1) if open_ else slice(0, 1)
