"""The record that `capture` fills: observations by the path of the module, within a budget of memory."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention.observation import BY_QUERY, Observation
from glassformer.attention.want import Want, tile_size
from glassformer.errors import ArgumentError

FALLBACK_TILES, FALLBACK_TOP = 64, 8
"""Tiles a side of the maps, and keys of each query, that replace full maps where these don't fit the budget."""

Sizes = tuple[int, int, int, int]
"""Batch, heads, queries and keys of a call."""


class UnknownAttentionError(ArgumentError, KeyError):
    """A path under which nothing was captured. It is a KeyError too, which mappings raise for a missing key.

    Raised by what `capture` gives when it is asked for a path that it doesn't have. The message names the paths that it
    has, or the one that is most like it.

    >>> import torch
    >>> from torch import nn
    >>> from glassformer import capture
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1).eval()
    >>> with torch.no_grad(), capture(model) as seen:
    ...     output = model(torch.zeros(1, 3, 8))
    >>> try:
    ...     seen["layers.3.self_attn"]
    ... except KeyError as error:
    ...     print(error)
    nothing was captured of 'layers.3.self_attn': choose one of layers.0.self_attn
    """

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class Captured(Mapping[str, Observation]):
    """The Observation of each attention of a model, by its path: `captured["encoder.layers.0.self_attn"]`.

    Calls that continue one another, such as the steps of generation with a cache, are joined into one Observation, with
    the queries of all steps. Calls on different inputs stay apart: `calls` returns them.

    Example: docs/inside.md.
    """

    def __init__(self, wants: Mapping[str, Want], budget: int | None) -> None:
        """Take the facts that are wanted from each attention, by path in the order of the model, and the budget."""
        self._wants = dict(wants)
        self._thread = threading.get_ident()
        self._share = None if budget is None else budget // max(1, len(wants))
        self._spent = dict.fromkeys(wants, 0)
        self._calls: dict[str, list[Observation]] = {name: [] for name in wants}
        self._sizes: dict[str, list[Sizes]] = {name: [] for name in wants}
        self.dropped: dict[str, str] = {}
        """The facts that the budget left out, and their replacements, in words, by the path of the attention."""

    def reserve(self, name: str, batch: int, heads: int, q_len: int, k_len: int) -> Want:
        """Return the facts that the next call of this attention can afford, and count their memory as spent.

        Raises ArgumentError if what is left of the budget is too small even for statistics.
        """
        want = self._wants[name].fitted(q_len, k_len)
        sizes = batch, heads, q_len, k_len
        self._sizes[name].append(sizes)
        if self._share is None:
            return want
        left = self._share - self._spent[name]
        smaller = want
        for smaller, words in _smaller_wants(want, k_len):
            if bytes_needed(smaller, *sizes) <= left:
                if smaller is not want:
                    missing = ", ".join(fact for fact in want.asked if not getattr(smaller, fact))
                    needed = _format_bytes(bytes_needed(want, *sizes))
                    self.dropped[name] = (
                        f"{missing} would take {needed}, {_format_bytes(left)} are left: recorded instead are {words}"
                    )
                self._spent[name] += bytes_needed(smaller, *sizes)
                return smaller
        count, least = len(self._wants), self._spent[name] + bytes_needed(smaller, *sizes)
        raise ArgumentError(
            f"budget must leave {_format_bytes(least)} for the statistics of {name}, got {_format_bytes(self._share)} "
            f"for each of {count} attentions: raise it to {_format_bytes(count * least)}, want less, or choose layers"
        )

    def is_elsewhere(self) -> bool:
        """Return whether another thread is at work than the one that captures: its calls are not recorded."""
        return threading.get_ident() != self._thread

    def add(self, name: str, observation: Observation) -> None:
        """Append the Observation of a call."""
        self._calls[name].append(observation)

    def calls(self, name: str) -> list[Observation]:
        """Return the Observation of each call, in their order."""
        if name not in self._calls:
            raise UnknownAttentionError(
                f"nothing was captured of {name!r}: choose one of {', '.join(self) or 'none, for none was called'}"
            )
        return self._calls[name]

    def lengths(self, name: str) -> tuple[int, int]:
        """Return how many queries and keys the Observation of this name has."""
        sizes = self._sizes[name]
        return sum(q_len for _, _, q_len, _ in sizes), max(k_len for *_, k_len in sizes)

    def __getitem__(self, name: str) -> Observation:
        calls = self.calls(name)
        if not calls:
            raise UnknownAttentionError(f"{name} was not called: call the model inside the context")
        if len(calls) == 1:
            return calls[0]
        sizes = self._sizes[name]
        for before, after in pairwise(sizes):
            if not _continues(before, after):
                raise ArgumentError(
                    f"{name} was called {len(calls)} times on different inputs: captured.calls({name!r}) has them all"
                )
        return _join_steps(calls, [k_len for *_, k_len in sizes])

    if not TYPE_CHECKING:  # else no misspelt name would be found

        def __getattr__(self, name: str) -> Any:
            if name in Want.__dataclass_fields__ or name in ("plot", "to_pandas"):
                path = next(iter(self), "PATH")
                raise AttributeError(f"a capture has an Observation for each attention: captured[{path!r}].{name}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Iterator[str]:
        return (name for name, calls in self._calls.items() if calls)

    def __len__(self) -> int:
        return sum(map(bool, self._calls.values()))

    def __repr__(self) -> str:
        lines = [f"Captured {len(self)} attention{'s' if len(self) != 1 else ''}"]
        width = max((len(name) for name in self), default=0)
        for name in self:
            heads = self._sizes[name][-1][1]
            queries, k_len = self.lengths(name)
            calls = f", {len(self._calls[name])} calls" if len(self._calls[name]) > 1 else ""
            lines.append(f"  {name:{width}}  {heads} heads, {queries} queries x {k_len} keys{calls}")
            if name in self.dropped:
                lines.append(f"  {'':{width}}  {self.dropped[name]}")
        return "\n".join(lines)


def bytes_needed(want: Want, batch: int, heads: int, q_len: int, k_len: int) -> int:
    """Return the memory that the wanted facts take, each number counted as 4 bytes and each position as 8."""
    queries, tiles = batch * heads * q_len, _count_tiles(q_len, k_len, want.pooled)
    numbers = queries * (want.entropy + want.distance + want.lse + want.max_score + bool(want.sink))
    numbers += batch * heads * k_len * want.received
    numbers += queries * want.top * 3
    numbers += batch * len(want.row_heads or range(heads)) * len(want.rows) * k_len
    numbers += batch * tiles * bool(want.pooled)
    numbers += batch * heads * _count_tiles(q_len, k_len, want.pooled_heads) * bool(want.pooled_heads)
    numbers += batch * q_len * k_len * want.head_mean + queries * k_len * want.weights
    return 4 * numbers


def _count_tiles(q_len: int, k_len: int, most: int) -> int:
    return -(-q_len // tile_size(q_len, most)) * -(-k_len // tile_size(k_len, most))


def _smaller_wants(want: Want, k_len: int) -> Iterator[tuple[Want, str]]:
    """Yield `want`, then what to record in its place for less and less memory, each with words that describe it."""
    yield want, ""
    statistics = dict(entropy=True, received=True, distance=True, lse=True)
    if want.weights or want.head_mean:
        most, tiles = max(want.top, min(FALLBACK_TOP, k_len)), "pooled_heads" if want.weights else "pooled"
        want = replace(want, weights=False, head_mean=False, **statistics)
        yield replace(want, top=most, **{tiles: FALLBACK_TILES}), f"tiles, the {most} largest and exact statistics"
        yield replace(want, top=most), f"the {most} largest of each query and exact statistics"
        yield want, "exact statistics"
    if want.rows or want.pooled or want.pooled_heads:
        want = replace(want, rows=(), row_heads=None, pooled=0, pooled_heads=0, **statistics)
        yield want, "exact statistics"
    if want.top:
        yield replace(want, top=0, **statistics), "exact statistics"


def _continues(before: Sizes, after: Sizes) -> bool:
    """Return whether a call of the sizes `after` is the step of generation that follows a call of the sizes `before`.

    In self-attention the new queries' keys are added to the cached ones. In attention to a source, and over a cache of
    fixed size, one more query meets the same keys.
    """
    (*batch_heads, _, keys), (*others, queries, all_keys) = before, after
    grown = all_keys == keys + queries
    same = all_keys == keys and queries == 1 and all_keys > 1
    return batch_heads == others and (grown or same)


def _join_steps(calls: Sequence[Observation], k_lens: Sequence[int]) -> Observation:
    """Join the steps of generation into one Observation, without their tiles: those of different steps don't fit."""
    steps = [call.tensors() for call in calls]
    common = set.intersection(*(set(facts) for facts in steps))
    joined: dict[str, Tensor] = {}
    longest = max(k_lens)
    for name in common - {"pooled", "pooled_heads"}:
        parts = [facts[name] for facts in steps]
        if name == "received":
            joined[name] = torch.stack([F.pad(part, (0, longest - part.shape[2])) for part in parts]).sum(0)
            continue
        axis = 1 if name == "head_mean" else 2
        if name in BY_QUERY:
            joined[name] = torch.cat(parts, axis)
            continue
        width = max(part.shape[-1] for part in parts)
        empty = -1 if name == "top_keys" else 0
        joined[name] = torch.cat([F.pad(part, (0, width - part.shape[-1]), value=empty) for part in parts], axis)
    want = calls[-1].want
    left_out: dict[str, Any] = {name: getattr(Want, name) for name in want.asked if name not in joined}
    if "rows" in left_out:
        left_out["row_heads"] = None
    want = replace(want, **left_out, **({"top": joined["top"].shape[-1]} if "top" in joined else {}))
    return Observation(joined, want, calls[0].batch)


def _format_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
