"""The record that `capture` fills: observations by the path of the module, within a budget of memory."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe_weights
from glassformer.attention.want import Want, tile_count
from glassformer.capture.running import Running, in_backward
from glassformer.capture.steps import Chain, Sizes, continues, grows, join_steps, without
from glassformer.errors import ArgumentError, shown

FALLBACK_TILES, FALLBACK_TOP = 64, 8
"""Tiles a side of the maps, and keys of each query, that replace full maps where these don't fit the budget."""

NOTHING_SEEN = "the model ran, but called none of torch's attention functions"
UNSEEN_FIX = "call observe(q, k, v) there, or observe_weights(weights)"
"""Explain an empty record of a model in which no attention was known in advance."""

MOST_NAMED = 5
"""Most modules that a warning names."""


class Asked(NamedTuple):
    """Say what to observe in a call of an attention, and where its queries stand."""

    want: Want
    first_query: int = 0
    """The position of the call's first query; 0 unless the call continues others."""

    def first_under(self, *, causal: bool) -> int:
        """Return the `first_query` to observe with: under `causal` it is left out, as the queries are the last."""
        return 0 if causal else self.first_query


@dataclass(frozen=True, kw_only=True)
class Place:
    """An attention's place in a record, for what computes its calls."""

    name: str
    is_elsewhere: Callable[[], bool]
    """Tell whether another thread is at work than the one that captures: its calls are not recorded."""
    reserve: Callable[[int, int, int, int], Asked]
    """Return what to observe in the next call, given its batch, heads, queries and keys: what the budget has room for.
    """
    add: Callable[[Observation], None]
    """Take what was observed in that call."""
    at_work: Callable[[], AbstractContextManager[None]]
    """Return a context in which the module counts as running, so that what it calls is known to be its attention."""


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
    """Hold the Observation of each attention of a model, by its path: `captured["encoder.layers.0.self_attn"]`.

    Calls that continue one another, such as the steps of generation with a cache, are joined into one Observation, with
    the queries of all steps. An attention that is called several times in one forward pass, such as a shared layer, has
    a name for each call: `captured["layer.attention@0"]`, `captured["layer.attention@1"]`. Calls on different inputs
    are not joined: `calls` returns them. If a single attention is recorded, and each of its calls has one query and the
    same number of keys, as in a pooling head, the calls are taken for steps of generation; `calls` returns each, but
    distances and chosen queries are counted through all. `rows` of a Want counts so: rows=(7,) is the eighth query,
    whichever step it is in. From the end it counts in each call: rows=(-1,) is the last query of every step.

    Example: docs/inside.md.
    """

    def __init__(self, wants: Mapping[str, Want], budget: int | None, running: Running) -> None:
        """Take the facts that are wanted from each attention, by path in the order of the model, and the budget."""
        self._wants = dict(wants)
        self._running = running
        self._budget = budget
        self._sharers = dict.fromkeys(wants, max(1, len(wants)))
        self._shares = dict.fromkeys(wants, 0 if budget is None else budget // max(1, len(wants)))
        self._spent = dict.fromkeys(wants, 0)
        self._calls: dict[str, list[Observation]] = {name: [] for name in wants}
        self._sizes: dict[str, list[Sizes]] = {name: [] for name in wants}
        self._passes: dict[str, list[int]] = {name: [] for name in wants}
        self._asked: dict[str, list[Asked]] = {name: [] for name in wants}
        self._firsts: dict[str, list[int]] = {name: [] for name in wants}
        """The first call of the chain that each call belongs to."""
        self._chains: dict[str, list[Chain]] = {name: [] for name in wants}
        """The chains that the calls of the last forward pass belong to, in the order in which it came to them."""
        self._turns: dict[str, int] = dict.fromkeys(wants, 0)
        """The place of the last call's chain among these."""
        self.dropped: dict[str, str] = {}
        """The facts that the budget or a long step left out, and what replaces them, in words, by the attention's path.
        """
        self.unseen: dict[str, str] = {}
        """Tell by what a module computed attention that could not be recorded: words, by its path."""

    def place(self, name: str) -> Place:
        """Return the place of an attention."""
        reserve, add = partial(self.reserve, name), partial(self.add, name)
        at_work = partial(self._running.at_work, name)
        return Place(name=name or "model", is_elsewhere=self.is_elsewhere, reserve=reserve, add=add, at_work=at_work)

    def has(self, name: str) -> bool:
        """Return whether there is a place for the calls of an attention."""
        return name in self._wants

    def add_name(self, name: str, want: Want, sharers: int) -> None:
        """Take an attention that wasn't known before its first call, whose share of the budget is one of `sharers`."""
        self._wants[name], self._spent[name], self._sharers[name] = want, 0, sharers
        if self._budget is not None:
            self._shares[name] = min(self._budget // sharers, self._budget - sum(self._shares.values()))
        self._calls[name], self._sizes[name], self._passes[name] = [], [], []
        self._asked[name], self._firsts[name], self._chains[name], self._turns[name] = [], [], [], 0

    def reserve(self, name: str, batch: int, heads: int, q_len: int, k_len: int) -> Asked:
        """Return what to observe in the next call of this attention, and count its memory as spent.

        Raises ArgumentError if what is left of the budget is too small even for statistics.
        """
        sizes = batch, heads, q_len, k_len
        if in_backward():  # a checkpoint computes the call again: with the same facts, but they are recorded already
            known = zip(self._sizes[name], self._asked[name], strict=False)
            again = (asked for before, asked in known if before == sizes)
            return next(again, Asked(self._wants[name].fitted(q_len, k_len)))
        known = len(self._calls[name])  # what follows is of a call that failed
        del self._sizes[name][known:], self._passes[name][known:], self._asked[name][known:]
        number = self._running.passes if self._running.modules else -known
        chain = self._chain_of_next(name, number, sizes)
        want = chain.fitted(q_len, k_len)
        if self._budget is not None:
            want = self._affordable(name, chain, want, sizes)
        self._sizes[name].append(sizes)
        self._passes[name].append(number)
        self._asked[name].append(Asked(chain.ask(want, sizes), chain.position(sizes)))
        return self._asked[name][-1]

    def _chain_of_next(self, name: str, number: int, sizes: Sizes) -> Chain:
        """Return the chain of the next call, in the forward pass of this number: one that it continues, or a new one.

        A call continues the one before if its keys grow within the pass, else that of the pass before in its place.
        """
        chains, passes = self._chains[name], self._passes[name]
        if passes and passes[-1] == number:
            here = chains[self._turns[name]]
            if grows(here.last, sizes, here.first):
                return here
            self._turns[name] += 1
        else:
            self._turns[name] = 0
        turn = self._turns[name]
        if turn == len(chains):
            chains.append(Chain(self._wants[name]))
        elif not self._is_next_step(name, chains[turn], number, sizes):
            chains[turn] = Chain(self._wants[name])
        return chains[turn]

    def _is_next_step(self, name: str, chain: Chain, number: int, sizes: Sizes) -> bool:
        """Return whether a call in the forward pass of this number continues a chain.

        Its sizes alone don't tell where it has one query, and as many keys as before. Then the attentions that were
        called in this pass must have continued theirs, and the passes follow at equal distances: there is a pass of the
        encoder before another generation.
        """
        if (is_longer := grows(chain.last, sizes, chain.first)) or not continues(chain.last, sizes, chain.first):
            return is_longer
        passes = [self._passes[name][n] for n in (*chain.numbers[:2], chain.numbers[-1])]
        if len(chain.numbers) > 1 and number - passes[-1] != passes[1] - passes[0]:
            return False
        return not any(self._has_begun_again(one, number) for one in self._passes)

    def _has_begun_again(self, name: str, number: int) -> bool:
        """Return whether an attention was called in the forward pass of this number, and continued no call before."""
        passes = self._passes[name]
        if not passes or passes[-1] != number or passes[0] == number:
            return False
        numbers = self._chains[name][self._turns[name]].numbers
        return bool(numbers) and passes[numbers[0]] == number

    def _affordable(self, name: str, chain: Chain, want: Want, sizes: Sizes) -> Want:
        """Return what of `want` the budget has room for, or what replaces it.

        What a step has no room for is removed from the calls that it continues, too, for together they lack it, unless
        that is all that they have.
        """
        left = self._shares[name] - self._spent[name]
        needed = smaller = want
        for smaller, words in _smaller_wants(want, sizes[3]):
            kept = {fact: getattr(smaller, fact) for fact in want.asked if smaller.asks(fact)}
            if chain.numbers and smaller is not want and kept:
                smaller = Want(**kept, row_heads=smaller.row_heads)
                self._remove(name, chain, set(want.asked) - kept.keys())
                left = self._shares[name] - self._spent[name]
            if (bytes_ := _bytes_of_call(smaller, sizes, chain)) <= left:
                if smaller is not want:
                    missing = ", ".join(fact for fact in want.asked if not smaller.asks(fact))
                    taken = _format_bytes(_bytes_of_call(needed, sizes, chain))
                    self.dropped[name] = (
                        f"{missing} would take {taken}, {_format_bytes(left)} are left: recorded instead are {words}"
                    )
                    chain.take(smaller, want)
                self._spent[name] += bytes_
                return smaller
        count, least = self._sharers[name], self._spent[name] + _bytes_of_call(smaller, sizes, chain)
        raise ArgumentError(
            f"budget must leave {_format_bytes(least)} for the statistics of {name}, got "
            f"{_format_bytes(self._shares[name])} for each of {count} attentions: raise it to "
            f"{_format_bytes(count * least)}, want less, or choose layers"
        )

    def _remove(self, name: str, chain: Chain, facts: set[str]) -> None:
        """Remove facts from the calls of a chain, and count what they took as left."""
        gone = facts | ({"top_keys"} if "top" in facts else set())
        for number in chain.numbers:
            call = self._calls[name][number]
            self._calls[name][number] = without(call, gone)
            self._spent[name] -= sum(
                4 * x.numel() * (1 + (fact == "top_keys")) for fact, x in call.tensors().items() if fact in gone
            )

    def is_elsewhere(self) -> bool:
        """Return whether another thread is at work than the one that captures: its calls are not recorded."""
        return self._running.is_elsewhere()

    def add(self, name: str, observation: Observation) -> None:
        """Append the Observation of a call. Its sums over queries are added to those of the first of its chain."""
        if in_backward():
            return
        calls, chain = self._calls[name], self._chains[name][self._turns[name]]
        number = len(calls)
        sizes = self._sizes[name][number]
        first = chain.numbers[0] if chain.numbers else number
        if chain.loses_tiles(sizes):
            call = f"a call of {sizes[2]:,} queries on {sizes[3]:,} keys continues the one before"
            self.dropped.setdefault(name, f"no tiles, which would take all weights of a step: {call}")
        observation, with_sums = chain.add(number, sizes, observation, calls[first] if chain.numbers else observation)
        calls.append(observation)
        calls[first] = with_sums
        self._firsts[name].append(first)

    def add_weights(self, name: str, weights: Tensor) -> None:
        """Append the Observation of a call of which only the weights (batch, heads, queries, keys) are known."""
        if self.is_elsewhere():
            return
        want, first_query = self.reserve(name, *weights.shape)
        if unknown := [fact for fact in ("lse", "max_score") if getattr(want, fact)]:
            verb = "is" if len(unknown) == 1 else "are"
            self.dropped.setdefault(name, f"{' and '.join(unknown)} {verb} not known from weights alone")
        self.add(name, observe_weights(weights, want, first_query=first_query))

    @property
    def is_blind(self) -> bool:
        """Tell whether the model ran, and nothing in it was known to be attention, neither before nor then."""
        return not self._wants and self._running.passes > 0

    def describe_unseen(self) -> str:
        """Return a text that names the modules whose attention could not be recorded, and says what to do."""
        if not self.unseen:
            return f"{NOTHING_SEEN}: where it computes attention, {UNSEEN_FIX}"
        named = [f"{name or 'model'} ({how})" for name, how in self.unseen.items()]
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        return f"capture could not record the attention of {', '.join(named[:MOST_NAMED])}{more}: {UNSEEN_FIX}"

    def calls(self, name: str) -> list[Observation]:
        """Return the Observation of each call, in their order.

        A call that continues another, as a step of generation does, adds what its keys receive, and its tiles, to those
        of the first, and has none of its own: it would be as long as all keys.
        """
        if name in self._calls:
            return self._calls[name]
        path = self.path(name)
        return [self._calls[path][n] for n in self._numbers(name)]

    def lengths(self, name: str) -> tuple[int, int]:
        """Return how many queries and keys the Observation of this name has."""
        sizes = [self._sizes[self.path(name)][n] for n in self._numbers(name)]
        return sum(q_len for _, _, q_len, _ in sizes), max(k_len for *_, k_len in sizes)

    def path(self, name: str) -> str:
        """Return the path of the module that has a name: without the number of a call in a forward pass."""
        return name if name in self._wants else name.rpartition("@")[0]

    def _numbers(self, name: str) -> list[int]:
        """Return which calls of its module a name stands for."""
        groups = self._groups(self.path(name)) if self.path(name) in self._wants else {}
        if name in groups:
            return groups[name]
        if name in self._calls:  # called never, or several times in one pass
            return list(range(len(self._calls[name])))
        raise UnknownAttentionError(f"nothing was captured of {name!r}: {self._what_there_is()}")

    def _what_there_is(self) -> str:
        if self.unseen or self.is_blind:
            return self.describe_unseen()
        if len(self):
            return f"choose one of {', '.join(self)}"
        return "no attention was called, so there is none to choose: call the model inside the context"

    def _groups(self, path: str) -> dict[str, list[int]]:
        """Return the names under which the calls of a module are read, each with the numbers of its calls."""
        sizes, passes = self._sizes[path], self._passes[path]
        count = len(self._calls[path])
        seen: Counter[int] = Counter()
        turns: list[int] = []
        for number in passes[:count]:
            turns.append(seen[number])
            seen[number] += 1
        first = self._firsts[path]
        steps = [(sizes[n], sizes[n + 1], sizes[first[n]], turns[n + 1]) for n in range(count - 1)]
        if not any(turns) or all(grows(*step) if turn else continues(*step) for *step, turn in steps):
            return {path: list(range(count))}
        return {f"{path}@{turn}": [n for n in range(count) if turns[n] == turn] for turn in sorted(set(turns))}

    def __contains__(self, name: object) -> bool:
        """Return whether something was captured under a name, be it of one call or of several."""
        return any(name == one for one in self)

    def __getitem__(self, name: str) -> Observation:
        if not isinstance(name, str):
            raise UnknownAttentionError(f"a capture is indexed by paths, got {shown(name)}: {self._what_there_is()}")
        calls, numbers = self.calls(name), self._numbers(name)
        if not calls:
            raise UnknownAttentionError(f"{name} was not called: call the model inside the context")
        if len(calls) == 1:
            return calls[0]
        groups = self._groups(self.path(name))
        if name not in groups:
            raise UnknownAttentionError(
                f"{name} was called {len(groups)} times in a forward pass: choose one of {', '.join(groups)}, or "
                f"captured.calls({name!r}) has them all"
            )
        sizes, first = self._sizes[self.path(name)], self._firsts[self.path(name)]
        for n, m in pairwise(numbers):
            steps = sizes[n], sizes[m], sizes[first[n]]
            if not (grows(*steps) or (continues(*steps) and first[n] == first[m])):
                raise ArgumentError(
                    f"{name or 'the model itself'} was called {len(calls)} times on different inputs, with a cache "
                    "that forgets keys, or with several queries at a time over a cache that was filled before: "
                    f"captured.calls({name!r}) has them all"
                )
        firsts = sorted({first[n] for n in numbers})
        return join_steps(calls, [sizes[n] for n in numbers], [self._calls[self.path(name)][n] for n in firsts])

    if not TYPE_CHECKING:  # else no misspelt name would be found

        def __getattr__(self, name: str) -> Any:
            if name in Want.__dataclass_fields__ or name in ("plot", "to_pandas"):
                path = next(iter(self), "PATH")
                raise AttributeError(f"a capture has an Observation for each attention: captured[{path!r}].{name}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Iterator[str]:
        for path, calls in self._calls.items():
            if calls:
                yield from self._groups(path)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        names = list(self)
        lines = [f"Captured {len(names)} attention{'s' if len(names) != 1 else ''}"]
        width = max(map(len, names), default=0)
        for name in names:
            numbers, path = self._numbers(name), self.path(name)
            heads = self._sizes[path][numbers[-1]][1]
            queries, k_len = self.lengths(name)
            calls = f", {len(numbers)} calls" if len(numbers) > 1 else ""
            lines.append(f"  {name:{width}}  {heads} heads, {queries} queries x {k_len} keys{calls}")
            if path in self.dropped:
                lines.append(f"  {'':{width}}  {self.dropped[path]}")
        if self.unseen or self.is_blind:
            lines.append(f"  {self.describe_unseen()}")
        return "\n".join(lines)


def bytes_needed(want: Want, batch: int, heads: int, q_len: int, k_len: int) -> int:
    """Return the memory that the wanted facts take, each number counted as 4 bytes and each position as 8."""
    queries, tiles = batch * heads * q_len, _count_tiles(q_len, k_len, want.pooled)
    numbers = queries * (want.entropy + want.distance + want.lse + want.max_score + bool(want.sink))
    numbers += queries * (want.mass is not None) + batch * heads * (want.agreement is not None)
    numbers += batch * heads * k_len * want.received
    numbers += queries * want.top * 3
    numbers += batch * len(want.row_heads or range(heads)) * len(want.rows) * k_len
    numbers += batch * tiles * bool(want.pooled)
    numbers += batch * heads * _count_tiles(q_len, k_len, want.pooled_heads) * bool(want.pooled_heads)
    numbers += batch * q_len * k_len * want.head_mean + queries * k_len * want.weights
    return 4 * numbers


def _bytes_of_call(want: Want, sizes: Sizes, chain: Chain) -> int:
    """Return the memory that a call takes: where it continues a chain, only what the sums grow by."""
    if not chain.numbers:
        return bytes_needed(want, *sizes)
    alone = replace(want, received=False, pooled=0, pooled_heads=0)
    return bytes_needed(alone, *sizes) + chain.bytes_of_sums(want, sizes)


def _count_tiles(q_len: int, k_len: int, most: int) -> int:
    return tile_count(q_len, most) * tile_count(k_len, most)


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


def _format_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
