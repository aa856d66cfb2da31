"""Calls that continue one another, such as the steps of generation with a cache, and what they are together."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention.observation import BY_QUERY, Observation
from glassformer.attention.want import Want, tile_size

Sizes = tuple[int, int, int, int]
"""Batch, heads, queries and keys of a call."""

TILES = ("pooled", "pooled_heads")
SUMS = ("received", *TILES)
"""Facts that are sums over queries. Those of all steps are one tensor, since each step's own is as long as the keys."""
MOST_TILES = 2
"""Bound the tiles, in times of those that were wanted. Beyond it two by two become one."""
STEP_BYTES = 16 << 20
"""Most bytes of a step's weights from which tiles are made: a chunk of a prompt has more."""


class Chain:
    """Calls of an attention that continue one another. The sums of all are facts of the first call."""

    def __init__(self, want: Want) -> None:
        """Begin with a call that asks for `want`."""
        self.want = want
        self.numbers: list[int] = []
        """The numbers of its calls among those of the attention."""
        self.queries = 0
        self.first: Sizes = (0, 0, 0, 0)
        self.last: Sizes = (0, 0, 0, 0)
        """The sizes of the first and of the last call."""
        self._received = False
        """Tell that the first call has the sums of what keys receive."""
        self._tile: dict[str, tuple[int, int]] = {}
        """Count the queries and keys that share a tile, by the name of the fact."""

    def fitted(self, q_len: int, k_len: int) -> Want:
        """Return what is wanted of the next call.

        Its queries come after those of the calls before, and `rows` counts through all; from the end it counts in each.
        """
        return self.want.fitted(q_len, k_len, self.queries)

    def take(self, smaller: Want, want: Want) -> None:
        """Want less from now on: what replaced the `want` of a call."""
        rows = () if want.rows and not smaller.rows else self.want.rows
        self.want = replace(smaller, rows=rows, row_heads=self.want.row_heads if rows else None)

    def ask(self, want: Want, sizes: Sizes) -> Want:
        """Return what to observe in a call that is recorded as `want`: in a step all weights in place of tiles."""
        if not self.numbers or not (want.pooled or want.pooled_heads):
            return want
        want = replace(want, pooled=0, pooled_heads=0)
        return replace(want, rows=range(sizes[2]), row_heads=None) if self._tile and _fit(sizes) else want

    def _asks_all(self, want: Want, sizes: Sizes) -> bool:
        """Return whether a step was observed as `ask` says for tiles: with the weights of all queries and heads."""
        return _fit(sizes) and want.rows == tuple(range(sizes[2])) and want.row_heads is None

    def loses_tiles(self, sizes: Sizes) -> bool:
        """Return whether the next call has too many weights for its tiles to be made, and those before lose theirs."""
        return bool(self._tile) and not _fit(sizes)

    def position(self, sizes: Sizes) -> int:
        """Return the position of the next call's first query: among the keys that grow, or after the queries before."""
        if not self.numbers:
            return 0
        has_grown = sizes[3] > self.first[3]  # else the keys are those of a source, or there is room for all
        return sizes[3] - sizes[2] if has_grown else self.queries

    def bytes_of_sums(self, want: Want, sizes: Sizes) -> int:
        """Return by how many bytes a step makes the sums larger."""
        (batch, heads, _, before), (*_, keys) = self.last, sizes
        return 4 * batch * heads * (max(0, keys - before) if self._received else keys) * want.received

    def add(self, number: int, sizes: Sizes, step: Observation, first: Observation) -> tuple[Observation, Observation]:
        """Take a call; return its Observation without the sums, and that of the first with them."""
        batch, _, q_len, k_len = sizes
        if not self.numbers:
            self.first = sizes
            self._received = step.want.received
            self._tile = {
                name: (tile_size(q_len, getattr(step.want, name)), tile_size(k_len, getattr(step.want, name)))
                for name in TILES
                if getattr(step.want, name)
            }
        else:
            facts, sums = step.tensors(), first.tensors()
            if "received" in facts and "received" in sums:
                sums["received"] = _add_to_step(sums["received"], facts["received"])
                step = without(step, ["received"])
            tiled = self._tile.keys() & sums.keys()
            if tiled and "rows" in facts and self._asks_all(step.want, sizes):
                for name in tiled:
                    rows = facts["rows"] if name == "pooled_heads" else facts["rows"].mean(1)
                    most = MOST_TILES * getattr(self.want, name)
                    sums[name], self._tile[name] = add_to_tiles(sums[name], self._tile[name], rows, self.queries, most)
                step = _with_rows(step, self.fitted(q_len, k_len))
            else:
                for name in tiled:
                    del self._tile[name], sums[name]
            first = Observation(sums, _with(first.want, sums), batch, tiles=dict(self._tile))
        self.numbers.append(number)
        self.queries, self.last = self.queries + q_len, sizes
        return step, first


def add_to_tiles(
    tiles: Tensor, size: tuple[int, int], rows: Tensor, first: int, most: int
) -> tuple[Tensor, tuple[int, int]]:
    """Return tiles (..., tiles, tiles) with the weights (..., queries, keys) of queries from position `first` on added.

    `size` is how many queries and keys share a tile, which is returned, too: where there would be more than `most`
    tiles a side, two become one.
    """
    height, width = size
    while -(-(first + rows.shape[-2]) // height) > most:
        tiles, height = _halve(tiles, -2), 2 * height
    while -(-rows.shape[-1] // width) > most:
        tiles, width = _halve(tiles, -1), 2 * width
    down, across = -(-(first + rows.shape[-2]) // height), max(tiles.shape[-1], -(-rows.shape[-1] // width))
    tiles = F.pad(tiles, (0, across - tiles.shape[-1], 0, max(0, down - tiles.shape[-2])))
    summed = F.pad(rows, (0, across * width - rows.shape[-1])).unflatten(-1, (across, width)).sum(-1)
    of_row = torch.arange(first, first + rows.shape[-2], device=tiles.device) // height
    return tiles.index_add(-2, of_row, summed.to(tiles.dtype)), (height, width)


def _fit(sizes: Sizes) -> bool:
    """Return whether all weights of a step are few enough for tiles to be made of them."""
    batch, heads, q_len, k_len = sizes
    return 4 * batch * heads * q_len * k_len <= STEP_BYTES


def _with_rows(step: Observation, wanted: Want) -> Observation:
    """Return a step that has the weights of all queries with those of the wanted queries and heads alone."""
    facts = step.tensors()
    rows = facts.pop("rows")
    if wanted.rows:
        of_heads = rows if wanted.row_heads is None else rows[:, list(wanted.row_heads)]
        facts["rows"] = of_heads[:, :, list(wanted.rows)]
    return Observation(facts, replace(step.want, rows=wanted.rows, row_heads=wanted.row_heads), step.batch)


def _halve(x: Tensor, axis: int) -> Tensor:
    """Add neighbours along an axis two by two."""
    short = x.shape[axis] % 2
    x = F.pad(x, (0, short) if axis == -1 else (0, 0, 0, short))
    return x.unflatten(axis, (-1, 2)).sum(axis)


def _add_longer(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum of two tensors, the shorter filled up with zeros along the last axis."""
    longest = max(one.shape[-1], other.shape[-1])
    one, other = (F.pad(x, (0, longest - x.shape[-1])) if x.shape[-1] < longest else x for x in (one, other))
    return one + other


def _add_to_step(before: Tensor, step: Tensor) -> Tensor:
    """Return the sum of what keys received before and in a step, in the memory of the step's if there are no gradients.

    Fresh memory as long as all keys would take as long as the step.
    """
    if before.requires_grad or step.requires_grad or before.shape[-1] > step.shape[-1]:
        return _add_longer(before, step)
    step[..., : before.shape[-1]] += before
    return step


def without(observation: Observation, names: Collection[str]) -> Observation:
    """Return an Observation without some of its facts."""
    facts = {name: x for name, x in observation.tensors().items() if name not in names}
    return Observation(facts, _with(observation.want, facts), observation.batch, observation.tiles)


def _with(want: Want, facts: dict[str, Tensor]) -> Want:
    """Return a Want without what isn't among the facts."""
    left_out: dict[str, Any] = {name: getattr(Want, name) for name in want.asked if name not in facts}
    if "rows" in left_out:
        left_out["row_heads"] = None
    return replace(want, **left_out) if left_out else want


def continues(before: Sizes, after: Sizes, first: Sizes) -> bool:
    """Return whether a call of the sizes `after` is the step of generation that follows a call of the sizes `before`.

    `first` are the sizes of the first call of that generation.

    In self-attention the new queries' keys are added to the cached ones. In attention to a source, and over a cache of
    fixed size, one more query meets the same keys.
    """
    (*batch_heads, _, keys), (*others, queries, all_keys) = before, after
    same = batch_heads == others and all_keys == keys and queries == 1 and all_keys > 1
    return same or grows(before, after, first)


def grows(before: Sizes, after: Sizes, first: Sizes) -> bool:
    """Return whether the new queries' keys were added to those of the call before, in calls that began with `first`.

    Where that had not as many keys as queries, it had a cache already, which then grows by a query at a time. More new
    queries may be those of another source that happens to be as long.
    """
    (*batch_heads, _, keys), (*others, queries, all_keys) = before, after
    return batch_heads == others and all_keys == keys + queries and (first[2] == first[3] or queries == 1)


def join_steps(calls: Sequence[Observation], sizes: Sequence[Sizes], firsts: Sequence[Observation]) -> Observation:
    """Join the steps of generation, calls of these sizes, into one Observation, without agreement.

    `firsts` are the first calls of their chains, which have the sums. Tiles of several chains don't fit one another.
    """
    steps = [call.tensors() for call in calls]
    sums = [first.tensors() for first in firsts]
    joined: dict[str, Tensor] = {}
    if all("received" in facts for facts in sums):
        joined["received"] = sums[0]["received"]
        for facts in sums[1:]:
            joined["received"] = _add_longer(joined["received"], facts["received"])
    if len(sums) == 1:
        joined |= {name: sums[0][name] for name in TILES if name in sums[0]}
    common = set.intersection(*(set(facts) for facts in steps)) - {*SUMS, "agreement"}
    rows = [call.want.rows for call in calls]
    for name in common | ({"rows"} if any(rows) else set()):
        parts = [facts[name] for facts in steps if name in facts]
        axis = 1 if name == "head_mean" else 2
        if name in BY_QUERY:
            joined[name] = torch.cat(parts, axis)
            continue
        width = sizes[-1][3] if name == "rows" else max(part.shape[-1] for part in parts)
        empty = -1 if name == "top_keys" else 0
        joined[name] = torch.cat([F.pad(part, (0, width - part.shape[-1]), value=empty) for part in parts], axis)
    want = calls[-1].want
    for first in firsts:  # they alone have the sums
        want = replace(
            want, received=first.want.received, pooled=first.want.pooled, pooled_heads=first.want.pooled_heads
        )
    lengths = [length for _, _, length, _ in sizes]
    starts = accumulate(lengths, initial=0)
    positions = [
        start + n % length for start, length, of_call in zip(starts, lengths, rows, strict=False) for n in of_call
    ]
    heads = next((call.want.row_heads for call in calls if call.want.rows), None)
    want = _with(replace(want, rows=positions, row_heads=heads), joined)
    if "top" in joined:
        want = replace(want, top=joined["top"].shape[-1])
    return Observation(joined, want, calls[0].batch, tiles=firsts[0].tiles if len(firsts) == 1 else None)
