"""What `capture` has seen of a model: observations by the path of the module, within a budget of memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention.observation import Observation
from glassformer.attention.want import Want, tile_size
from glassformer.errors import ArgumentError

TILES, TOP = 64, 8
"""What stands in for full maps that the budget has no room for: maps of so many tiles a side, and so many keys of each
query."""


class Captured(Mapping[str, Observation]):
    """Observations of each attention of a model, by its path: `captured["encoder.layers.0.self_attn"]`.

    Calls that go on from one another, as the steps of generation with a cache do, are one Observation: its queries are
    those of all steps. Calls on different inputs are kept apart, and `calls` gives them.
    """

    def __init__(self, wants: Mapping[str, Want], budget: int | None) -> None:
        """What is wanted of each attention, in the order of the model."""
        self._wants = dict(wants)
        self._share = None if budget is None else budget // max(1, len(wants))
        self._spent = dict.fromkeys(wants, 0)
        self._calls: dict[str, list[Observation]] = {name: [] for name in wants}
        self._sizes: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in wants}
        self.dropped: dict[str, str] = {}
        """What the budget had no room for, and what is there in its place, by the path of the attention."""

    def want(self, name: str, batch: int, heads: int, q_len: int, k_len: int) -> Want:
        """What the next call of this attention is asked, given the sizes and what is left of the budget."""
        want = self._wants[name].fitted(q_len, k_len)
        sizes = batch, heads, q_len, k_len
        self._sizes[name].append(sizes)
        if self._share is None:
            return want
        left = self._share - self._spent[name]
        lesser = want
        for lesser, instead in _lesser(want, k_len):
            if bytes_of(lesser, *sizes) <= left:
                if lesser is not want:
                    missing = ", ".join(fact for fact in want.asked if not getattr(lesser, fact))
                    taken = _size(bytes_of(want, *sizes))
                    self.dropped[name] = f"{missing} would take {taken}, {_size(left)} are left: {instead} are there"
                self._spent[name] += bytes_of(lesser, *sizes)
                return lesser
        count, least = len(self._wants), self._spent[name] + bytes_of(lesser, *sizes)
        raise ArgumentError(
            f"budget must leave {_size(least)} for the statistics of {name}, got {_size(self._share)} for each of "
            f"{count} attentions: raise it to {_size(count * least)}, want less, or choose layers"
        )

    def add(self, name: str, seen: Observation) -> None:
        """What a call has shown."""
        self._calls[name].append(seen)

    def calls(self, name: str) -> list[Observation]:
        """The Observation of each call, in their order."""
        if name not in self._calls:
            raise KeyError(f"nothing was captured of {name!r}; there is {', '.join(self) or 'nothing'}")
        return list(self._calls[name])

    def lengths(self, name: str) -> tuple[int, int]:
        """How many queries and keys the Observation of this name has."""
        sizes = self._sizes[name]
        return sum(q_len for _, _, q_len, _ in sizes), max(k_len for *_, k_len in sizes)

    def __getitem__(self, name: str) -> Observation:
        calls = self.calls(name)
        if not calls:
            raise KeyError(f"{name} was not called")
        if len(calls) == 1:
            return calls[0]
        sizes = self._sizes[name]
        for before, after in pairwise(sizes):
            if not _goes_on(before, after):
                raise ArgumentError(
                    f"{name} was called {len(calls)} times on different inputs: captured.calls({name!r}) has them all"
                )
        return _joined(calls, [k_len for *_, k_len in sizes])

    def __iter__(self) -> Iterator[str]:
        return (name for name, calls in self._calls.items() if calls)

    def __len__(self) -> int:
        return sum(map(bool, self._calls.values()))

    def __repr__(self) -> str:
        lines = [f"Captured {len(self)} attentions"]
        width = max((len(name) for name in self), default=0)
        for name in self:
            heads = self._sizes[name][-1][1]
            queries, k_len = self.lengths(name)
            calls = f", {len(self._calls[name])} calls" if len(self._calls[name]) > 1 else ""
            lines.append(f"  {name:{width}}  {heads} heads, {queries} queries x {k_len} keys{calls}")
            if name in self.dropped:
                lines.append(f"  {'':{width}}  {self.dropped[name]}")
        return "\n".join(lines)


def bytes_of(want: Want, batch: int, heads: int, q_len: int, k_len: int) -> int:
    """The memory that its facts take, each number counted as 4 bytes and each position as 8."""
    queries, tiles = batch * heads * q_len, _tiles(q_len, k_len, want.pooled)
    numbers = queries * (want.entropy + want.distance + want.lse)
    numbers += batch * heads * k_len * want.received
    numbers += queries * want.top * 3
    numbers += batch * len(want.row_heads or range(heads)) * len(want.rows) * k_len
    numbers += batch * tiles * bool(want.pooled)
    numbers += batch * heads * _tiles(q_len, k_len, want.pooled_heads) * bool(want.pooled_heads)
    numbers += batch * q_len * k_len * want.head_mean + queries * k_len * want.weights
    return 4 * numbers


def _tiles(q_len: int, k_len: int, most: int) -> int:
    return -(-q_len // tile_size(q_len, most)) * -(-k_len // tile_size(k_len, most))


def _lesser(want: Want, k_len: int) -> Iterator[tuple[Want, str]]:
    """`want`, and what to ask in its place where there is less and less room, with what is said of it."""
    yield want, ""
    statistics = dict(entropy=True, received=True, distance=True, lse=True)
    if want.weights or want.head_mean:
        most, tiles = max(want.top, min(TOP, k_len)), "pooled_heads" if want.weights else "pooled"
        want = replace(want, weights=False, head_mean=False, **statistics)
        yield replace(want, top=most, **{tiles: TILES}), f"tiles, the {most} largest and exact statistics"
        yield replace(want, top=most), f"the {most} largest of each query and exact statistics"
        yield want, "exact statistics"
    if want.rows or want.pooled or want.pooled_heads:
        want = replace(want, rows=(), row_heads=None, pooled=0, pooled_heads=0, **statistics)
        yield want, "exact statistics"
    if want.top:
        yield replace(want, top=0, **statistics), "exact statistics"


def _goes_on(before: tuple[int, int, int, int], after: tuple[int, int, int, int]) -> bool:
    """Whether a call of these sizes (batch, heads, queries, keys) is the next step of generation after the other.

    Attention to itself has the new queries' keys added to the cached ones; that to a source, or over a cache of fixed
    size, sees the same keys with one query more.
    """
    (*batch_heads, _, keys), (*others, queries, all_keys) = before, after
    grown = all_keys == keys + queries
    same = all_keys == keys and queries == 1 and all_keys > 1
    return batch_heads == others and (grown or same)


def _joined(calls: Sequence[Observation], k_lens: Sequence[int]) -> Observation:
    """One Observation of the steps of generation. Tiles of different steps don't fit together and are left out."""
    facts = [call.tensors() for call in calls]
    common = set.intersection(*(set(found) for found in facts))
    joined: dict[str, Tensor] = {}
    longest = max(k_lens)
    for name in common - {"pooled", "pooled_heads"}:
        parts = [found[name] for found in facts]
        if name == "received":
            joined[name] = torch.stack([F.pad(part, (0, longest - part.shape[2])) for part in parts]).sum(0)
            continue
        axis = 1 if name == "head_mean" else 2
        if name in ("entropy", "distance", "lse"):
            joined[name] = torch.cat(parts, axis)
            continue
        width = max(part.shape[-1] for part in parts)
        empty = -1 if name == "top_keys" else 0
        joined[name] = torch.cat([F.pad(part, (0, width - part.shape[-1]), value=empty) for part in parts], axis)
    want = calls[-1].want
    gone: dict[str, Any] = {name: getattr(Want, name) for name in want.asked if name not in joined}
    if "rows" in gone:
        gone["row_heads"] = None
    want = replace(want, **gone, **({"top": joined["top"].shape[-1]} if "top" in joined else {}))
    return Observation(joined, want, calls[0].batch)


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
