"""Batches of a corpus as this process works on them."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from glassformer.data.corpus import Corpus
from glassformer.text.batching import Batch, prefetch
from glassformer.text.resampling import Resampler
from glassformer.training.distributed import Processes
from glassformer.transformer.config import ModelConfig

PairNumbers = Sequence[Sequence[int]]
"""The numbers of the pairs in each batch of one update."""


class BatchLoader:
    """The batches of a corpus on this process's device, each with the pairs that are this process's share."""

    def __init__(
        self,
        corpus: Corpus,
        model: ModelConfig,
        device: torch.device,
        processes: Processes,
        resampling: Resampler | None = None,
    ) -> None:
        self.corpus = corpus
        self._resampling = resampling
        self._pads = model.source_pad, model.target_pad
        self._device = device
        self._processes = processes

    def batch(self, pairs: Sequence[int], seed: int | None = None) -> Batch:
        """Return this process's part of a batch; where there are too few pairs for it, a batch that isn't counted.

        `seed` is for the resampling, if there is any; without a seed the pairs are as the corpus has them.
        """
        own = self._processes.share(pairs)
        source, target = ([side[i] for i in own or pairs[:1]] for side in (self.corpus.source, self.corpus.target))
        if self._resampling is not None and seed is not None:
            source, target = (self._resampling.resample(n, side, seed) for n, side in enumerate((source, target)))
        return Batch.of(source, target, *self._pads, counted=bool(own)).to(self._device)

    def load(
        self, updates: Iterable[tuple[PairNumbers, Sequence[int] | None]]
    ) -> Iterator[tuple[PairNumbers, list[Batch]]]:
        """Yield the pairs of each update with its batches; the next are made meanwhile where the device loses no time.

        With the pairs comes a seed for the resampling of each batch, or None. The seeds must be others each time that
        the same pairs come.
        """

        def with_batches(update: tuple[PairNumbers, Sequence[int] | None]) -> tuple[PairNumbers, list[Batch]]:
            numbers, seeds = update
            return numbers, [self.batch(*each) for each in zip(numbers, seeds or [None] * len(numbers), strict=True)]

        if self._device.type == "cpu":  # it has no time to spare while it works
            return map(with_batches, updates)
        return prefetch(with_batches, updates)

    def count_tokens(self, numbers: PairNumbers, batches: Sequence[Batch]) -> int:
        """Return the target tokens of an update, whose batches these are, in all processes together."""
        if self._resampling is None:
            return self._count_target_tokens(numbers)
        return int(self._processes.add(sum(batch.tokens for batch in batches if batch.counted))[0])

    def _count_target_tokens(self, numbers: PairNumbers) -> int:
        """Return the target tokens as the corpus has them."""
        return sum(int(self.corpus.target.lengths[list(pairs)].sum()) for pairs in numbers)

    def describe(self, numbers: PairNumbers) -> str:
        """Say the shape of the largest batch of an update."""
        corpus, largest = self.corpus, max(numbers, key=lambda pairs: self._count_target_tokens([pairs]))
        sides = [side.lengths[list(largest)] for side in (corpus.source, corpus.target)]
        source, target = (int(lengths.sum()) for lengths in sides)
        longest = max(int(lengths.max()) for lengths in sides)
        return f"{len(largest):,} pairs with {source:,} source and {target:,} target tokens, the longest {longest:,}"
