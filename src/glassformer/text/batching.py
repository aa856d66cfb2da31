"""Token arrays to batches: similar lengths together, a budget of tokens each, in an order given by a seed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.attention.masks import keep_from_ids
from glassformer.attention.packing import Packing, send

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Batch:
    """Pairs side by side in one row of source tokens and one of target tokens (see `Packing`)."""

    source: Int[Tensor, "1 source_row"]
    sources: Packing
    target_in: Int[Tensor, "1 target_row"]
    """Each target shifted right: it starts with padding."""
    targets: Packing
    target_out: Int[Tensor, " tokens"]
    """What is to be predicted at each position of the targets."""

    @classmethod
    def of(cls, source: Sequence[Tensor], target: Sequence[Tensor], source_pad: int, target_pad: int) -> "Batch":
        """The batch of these pairs of ids, each of which ends with `</s>`."""
        sources, targets = (Packing.of([len(ids) for ids in side]) for side in (source, target))
        start = target[0].new_full((1,), target_pad)
        shifted = torch.cat([part for ids in target for part in (start, ids[:-1])])
        return cls(
            sources.fill(torch.cat(list(source)), source_pad),
            sources,
            targets.fill(shifted, target_pad),
            targets,
            torch.cat(list(target)).long(),
        )

    @property
    def tokens(self) -> int:
        """Number of target tokens to predict."""
        return self.targets.tokens

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        return type(self)(
            send(self.source, device),
            self.sources.to(device),
            send(self.target_in, device),
            self.targets.to(device),
            send(self.target_out, device),
        )


def pad_source(
    sequences: list[Tensor], pad: int
) -> tuple[Int[Tensor, "batch source_len"], Bool[Tensor, "batch 1 1 source_len"]]:
    """Source ids padded to one length, and the keep mask that goes with them."""
    source = pad_sequence(sequences, batch_first=True, padding_value=pad).long()
    return source, keep_from_ids(source, pad)


def one_ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What `work` makes of each item, the next one made in a thread while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[Result] | None = None
        for item in items:
            following = pool.submit(work, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


def plan_batches(
    source_lengths: Int[Tensor, " pairs"],
    target_lengths: Int[Tensor, " pairs"],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
) -> list[list[int]]:
    """Which pairs go into which batch of this epoch: a function of its arguments alone.

    Pairs are sorted by length, equal lengths in random order, and cut into batches of at most `batch_tokens` source and
    at most `batch_tokens` target tokens (a longer pair is a batch of its own), padded at most twice as many; then the
    batches are shuffled.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(source_lengths), generator=generator)
    sides = source_lengths, target_lengths
    for lengths in sides:
        order = order[lengths[order].argsort(stable=True)]
    batches: list[list[int]] = []
    current: list[int] = []
    held, widest = [0, 0], 0
    for index, *lengths in zip(*(x[order].tolist() for x in (torch.arange(len(order)), *sides)), strict=True):
        held, widest = [a + b for a, b in zip(held, lengths, strict=True)], max(widest, *lengths)
        if current and (max(held) > batch_tokens or widest * (len(current) + 1) > 2 * batch_tokens):
            batches.append(current)
            current, held, widest = [], lengths, max(lengths)
        current.append(index)
    if current:
        batches.append(current)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
