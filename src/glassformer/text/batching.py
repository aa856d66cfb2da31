"""Token arrays to batches: similar lengths together, a budget of tokens each, in an order given by a seed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.attention.masks import keep_from_ids
from glassformer.text.corpus import Corpus


@dataclass(frozen=True)
class Batch:
    """One padded batch, its masks built once."""

    source: Int[Tensor, "batch source_len"]
    source_keep: Bool[Tensor, "batch 1 1 source_len"]
    target_in: Int[Tensor, "batch target_len"]
    """The target shifted right: starts with padding."""
    target_out: Int[Tensor, "batch target_len"]
    """What is to be predicted at each position; padding after `</s>`."""
    tokens: int
    """Number of target tokens to predict."""

    @classmethod
    def of(cls, corpus: Corpus, indices: list[int], source_pad: int, target_pad: int) -> "Batch":
        """The batch of these pairs of the corpus."""
        targets = [corpus.target[i] for i in indices]
        target_out = pad_sequence(targets, batch_first=True, padding_value=target_pad).long()
        start = target_out.new_full((len(indices), 1), target_pad)
        return cls(
            *pad_source([corpus.source[i] for i in indices], source_pad),
            torch.cat([start, target_out[:, :-1]], dim=1),
            target_out,
            sum(len(target) for target in targets),
        )

    def to(self, device: torch.device) -> "Batch":
        return type(self)(
            self.source.to(device, non_blocking=True),
            self.source_keep.to(device, non_blocking=True),
            self.target_in.to(device, non_blocking=True),
            self.target_out.to(device, non_blocking=True),
            self.tokens,
        )


def pad_source(
    sequences: list[Tensor], pad: int
) -> tuple[Int[Tensor, "batch source_len"], Bool[Tensor, "batch 1 1 source_len"]]:
    """Source ids padded to one length, and the keep mask that goes with them."""
    source = pad_sequence(sequences, batch_first=True, padding_value=pad).long()
    return source, keep_from_ids(source, pad)


def plan_batches(
    source_lengths: Int[Tensor, " pairs"],
    target_lengths: Int[Tensor, " pairs"],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
) -> list[list[int]]:
    """Which pairs go into which batch of this epoch: a function of its arguments alone.

    Pairs are sorted by length, equal lengths in random order, and cut into batches that, padded, hold at most
    `batch_tokens` source and at most `batch_tokens` target tokens (a longer pair is a batch of its own); then the
    batches are shuffled.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(source_lengths), generator=generator)
    order = order[source_lengths[order].argsort(stable=True)]
    order = order[target_lengths[order].argsort(stable=True)]
    longest = torch.maximum(source_lengths, target_lengths)[order].tolist()
    batches: list[list[int]] = []
    current: list[int] = []
    width = 0
    for index, length in zip(order.tolist(), longest, strict=True):
        width = max(width, length)
        if current and width * (len(current) + 1) > batch_tokens:
            batches.append(current)
            current, width = [], length
        current.append(index)
    if current:
        batches.append(current)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
