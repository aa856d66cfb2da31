"""Batches of token arrays: similar lengths together, a budget of tokens each, in an order that a seed decides."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.attention.masks import keep_from_ids
from glassformer.attention.packing import Packing, send
from glassformer.seeds import derive_seed

Item = TypeVar("Item")
Result = TypeVar("Result")

CUT_AT_ONCE = 1 << 18
"""Number of pairs whose lengths are held as Python's numbers at a time."""


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


class Plan(Sequence[list[int]]):
    """The pairs of each batch, held in tensors: as lists, tens of millions of pairs would take gigabytes."""

    def __init__(self, order: Int[Tensor, " pairs"], starts: Int[Tensor, " batches"], ends: Int[Tensor, " batches"]):
        """Batch i holds the pairs `order[starts[i] : ends[i]]`."""
        self._order, self._starts, self._ends = order, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return self._order[self._starts[index] : self._ends[index]].tolist()


def plan_batches(
    source_lengths: Int[Tensor, " pairs"],
    target_lengths: Int[Tensor, " pairs"],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
) -> Plan:
    """Plan which pairs go into which batch of this epoch. The plan depends on these arguments alone.

    Pairs are sorted by length, equal lengths in random order, and cut into batches of at most `batch_tokens` source and
    at most `batch_tokens` target tokens, or twice as many if they were padded to the longest. A longer pair is a batch
    of its own. Then the batches are shuffled.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(len(source_lengths), generator=generator)
    # One sort by target length, then source length.
    keys = target_lengths[order].mul_(source_lengths.max() + 1).add_(source_lengths[order])
    order = order[keys.argsort(stable=True)].int()
    del keys
    starts = torch.tensor(_cuts(source_lengths, target_lengths, order, batch_tokens))
    ends = torch.cat([starts[1:], starts.new_tensor([len(order)])])
    mixed = torch.randperm(len(starts), generator=generator)
    return Plan(order, starts[mixed], ends[mixed])


def _cuts(source_lengths: Tensor, target_lengths: Tensor, order: Tensor, batch_tokens: int) -> list[int]:
    """Return where the batches of pairs in this order begin."""
    starts = [0]
    count = sources = targets = widest = 0
    for part in order.split(CUT_AT_ONCE):
        for source, target in zip(source_lengths[part].tolist(), target_lengths[part].tolist(), strict=True):
            count, sources, targets = count + 1, sources + source, targets + target
            widest = max(widest, source, target)
            full = sources > batch_tokens or targets > batch_tokens or widest * count > 2 * batch_tokens
            if full and count > 1:
                starts.append(starts[-1] + count - 1)
                count, sources, targets, widest = 1, source, target, max(source, target)
    return starts
