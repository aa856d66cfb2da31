"""Batches of token arrays: similar lengths together, a budget of tokens each, in an order that a seed decides."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeVar, overload, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.attention.masks import keep_from_ids
from glassformer.attention.packing import Packing, send
from glassformer.seeds import derive_seed

Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK = 1 << 12
"""Neighbouring pairs of a corpus that stay in one window."""
WINDOW = 1 << 24
"""Most pairs that are sorted at a time, a multiple of `BLOCK`. A larger corpus is planned in several windows."""


@dataclass(frozen=True)
class Batch:
    """Pairs side by side in one row of source tokens and one of target tokens (see `Packing`)."""

    source: Int[Tensor, "1 source_row"]
    sources: Packing
    target_in: Int[Tensor, "1 target_row"]
    """The targets, each shifted right by one: it begins with the padding token."""
    targets: Packing
    target_out: Int[Tensor, " tokens"]
    """The token to predict at each position of the targets."""
    counted: bool = True
    """False for a stand-in where a process has no pair of its own: its loss is not counted."""

    @classmethod
    def of(
        cls,
        source: Sequence[Tensor],
        target: Sequence[Tensor],
        source_pad: int,
        target_pad: int,
        *,
        counted: bool = True,
    ) -> "Batch":
        """Make the batch of these pairs of ids; each sequence ends with `</s>`."""
        sources, targets = (Packing.of([len(ids) for ids in side]) for side in (source, target))
        start = target[0].new_full((1,), target_pad)
        shifted = torch.cat([part for ids in target for part in (start, ids[:-1])])
        return cls(
            sources.fill(torch.cat(list(source)), source_pad),
            sources,
            targets.fill(shifted, target_pad),
            targets,
            torch.cat(list(target)).long(),
            counted,
        )

    @property
    def tokens(self) -> int:
        """Return the number of target tokens to predict."""
        return self.targets.tokens

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device."""
        return type(self)(
            send(self.source, device),
            self.sources.to(device),
            send(self.target_in, device),
            self.targets.to(device),
            send(self.target_out, device),
            self.counted,
        )


def pad_source(
    sequences: list[Tensor], pad: int
) -> tuple[Int[Tensor, "batch source_len"], Bool[Tensor, "batch 1 1 source_len"]]:
    """Return source ids padded to one length, and their keep mask."""
    source = pad_sequence(sequences, batch_first=True, padding_value=pad).long()
    return source, keep_from_ids(source, pad)


def prefetch(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield what `work` makes of each item; a thread makes the next one while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[Result] | None = None
        for item in items:
            following = pool.submit(work, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


@runtime_checkable
class Lengths(Protocol):
    """The length of every sequence: a tensor, or what looks up a part of them when it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> Tensor: ...


@dataclass(frozen=True)
class Window:
    """Pairs of a corpus that are sorted, cut into batches and shuffled together."""

    lengths: tuple[Lengths, Lengths]
    """Lengths of all sources of the corpus, and of all its targets."""
    blocks: Int[Tensor, " blocks"]
    """The numbers of the window's blocks, rising: block b has the `BLOCK` pairs from b * BLOCK on, or what is left."""
    batch_tokens: int
    seed: int

    def cut(self) -> Int[Tensor, " batches"]:
        """Return where batches of the sorted pairs start, which follows from how many pairs have which lengths."""
        return torch.tensor(_cuts(_runs(*self._keys()), self.batch_tokens), dtype=torch.int32)

    def plan(self, starts: Int[Tensor, " batches"]) -> list[Tensor]:
        """Return the pairs of the window, numbered from 0, in their order, and where each batch starts and ends.

        `starts` is what `cut` returns.
        """
        generator = torch.Generator().manual_seed(self.seed)
        keys, _ = self._keys()
        ends = torch.cat([starts[1:], starts.new_tensor([len(keys)])])
        order = torch.randperm(len(keys), generator=generator, dtype=torch.int32)
        keys = keys.index_select(0, order)
        order = order.index_select(0, keys.argsort(stable=True))
        mixed = torch.randperm(len(starts), generator=generator)
        return [order, starts[mixed], ends[mixed]]

    def number(self, pairs: Int[Tensor, " batch"]) -> list[int]:
        """Return the numbers that pairs of the window have in the corpus."""
        return (self.blocks[pairs // BLOCK] * BLOCK + pairs % BLOCK).tolist()

    def _keys(self) -> tuple[Int[Tensor, " window"], int]:
        """Return target length * base + source length of each pair, and the base: so one sort is one by both."""
        source, target = map(self._gather, self.lengths)
        base = int(source.max()) + 1
        most = (int(target.max()) + 1) * base
        dtype = next(each for each in (torch.int16, torch.int32, torch.int64) if most <= torch.iinfo(each).max)
        return target.to(dtype).mul_(base).add_(source.to(dtype)), base

    def _gather(self, lengths: Lengths) -> Int[Tensor, " window"]:
        """Return the lengths of the window's pairs."""
        gathered = torch.empty(len(self.blocks) * BLOCK, dtype=torch.int32)
        end = 0
        for block in self.blocks.tolist():
            part = lengths[block * BLOCK : (block + 1) * BLOCK]
            gathered[end : end + len(part)] = part
            end += len(part)
        return gathered[:end]


class Plan(Sequence[list[int]]):
    """The pairs of each batch of an epoch, window after window. The order of one window is held, the last asked for."""

    def __init__(self, windows: Sequence[Window]) -> None:
        """Cut all windows into batches."""
        self._windows = windows
        self._starts = [window.cut() for window in windows]
        self._ends = list(accumulate(map(len, self._starts)))
        self._held: tuple[int, list[Tensor]] = -1, []

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        index %= len(self)
        number = bisect_right(self._ends, index)
        window = self._windows[number]
        if self._held[0] != number:
            self._held = -1, []  # two at a time would take twice the memory
            self._held = number, window.plan(self._starts[number])
        order, starts, ends = self._held[1]
        batch = index - self._ends[number]  # counted from the window's end
        return window.number(order[starts[batch] : ends[batch]])


def plan_batches(source_lengths: Lengths, target_lengths: Lengths, *, batch_tokens: int, seed: int, epoch: int) -> Plan:
    """Plan which pairs go into which batch of this epoch. The plan depends on these arguments alone.

    Pairs are sorted by length, equal lengths in random order, and cut into batches of at most `batch_tokens` source and
    at most `batch_tokens` target tokens, or twice as many if they were padded to the longest. A longer pair is a batch
    of its own. Then the batches are shuffled.

    More than `WINDOW` pairs are first dealt out at random to windows of nearly equal size, in blocks of neighbours, so
    that each window is a sample of the whole corpus. Each is planned like a corpus of its own, when its turn comes.
    """
    lengths, first = (source_lengths, target_lengths), derive_seed(seed, epoch)
    blocks = math.ceil(len(source_lengths) / BLOCK)
    windows = math.ceil(len(source_lengths) / WINDOW)
    if windows == 1:  # its batches must stay those that they were: trainings go on with them
        return Plan([Window(lengths, torch.arange(blocks), batch_tokens, first)])
    generator = torch.Generator().manual_seed(first)
    dealt = torch.randperm(blocks, generator=generator).tensor_split(windows)
    seeds = torch.randint(1 << 62, (windows,), generator=generator).tolist()
    return Plan(
        [Window(lengths, part.sort().values, batch_tokens, own) for part, own in zip(dealt, seeds, strict=True)]
    )


def _runs(keys: Int[Tensor, " window"], base: int) -> Iterator[tuple[int, int, int]]:
    """Yield source and target length and the number of pairs with them, for each key that occurs, in their order."""
    if int(keys.max()) < len(keys):  # faster, and takes less memory than the lengths
        counts = keys.bincount()
        values = counts.nonzero()[:, 0]
        counts = counts[values]
    else:
        values, counts = keys.unique(return_counts=True)
    return zip((values % base).tolist(), (values // base).tolist(), counts.tolist(), strict=True)


def _cuts(runs: Iterable[tuple[int, int, int]], batch_tokens: int) -> list[int]:
    """Return where the batches of sorted pairs begin."""
    starts: list[int] = []
    pairs = count = widest = 0
    sources = targets = batch_tokens  # the first pair begins a batch
    for source, target, many in runs:
        wider = max(widest, source, target)
        room = min(
            (batch_tokens - sources) // source, (batch_tokens - targets) // target, 2 * batch_tokens // wider - count
        )
        if (fit := min(many, room)) > 0:
            count, sources, targets, widest = count + fit, sources + fit * source, targets + fit * target, wider
            pairs, many = pairs + fit, many - fit
        if many:
            wider = max(source, target)
            full = max(1, min(batch_tokens // source, batch_tokens // target, 2 * batch_tokens // wider))
            starts += range(pairs, pairs + many, full)
            pairs += many
            count = (many - 1) % full + 1
            sources, targets, widest = count * source, count * target, wider
    return starts
