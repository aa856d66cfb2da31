"""Batches of a corpus as this process works on them."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from glassformer.data.corpus import Corpus
from glassformer.text.batching import Batch, one_ahead
from glassformer.text.resampling import Resampling
from glassformer.training.distributed import Processes
from glassformer.transformer.config import ModelConfig

Group = Sequence[Sequence[int]]
"""The pairs of each batch of an update."""


class Feed:
    """The batches of a corpus on this process's device, of each the pairs that are this process's share."""

    def __init__(
        self,
        corpus: Corpus,
        model: ModelConfig,
        device: torch.device,
        processes: Processes,
        resampling: Resampling | None = None,
    ) -> None:
        self.corpus = corpus
        self._resampling = resampling
        self._pads = model.source_vocab_size - 1, model.target_vocab_size - 1
        self._device = device
        self._processes = processes

    def batch(self, indices: Sequence[int], seed: int | None = None) -> Batch:
        """Of these pairs; where they are too few for every process, a batch that isn't counted.

        `seed` is that of the resampling, if there is any; without one the pairs are as the corpus has them.
        """
        own = self._processes.share(indices)
        source, target = ([side[i] for i in own or indices[:1]] for side in (self.corpus.source, self.corpus.target))
        if self._resampling is not None and seed is not None:
            source, target = (self._resampling.of(n, side, seed) for n, side in enumerate((source, target)))
        return Batch.of(source, target, *self._pads, counted=bool(own)).to(self._device)

    def groups(self, groups: Iterable[tuple[Group, Sequence[int] | None]]) -> Iterator[tuple[Group, list[Batch]]]:
        """Yield each group with its batches; the next ones are made meanwhile where that costs the device no time.

        With each comes a seed for the resampling of each batch, or None. The seeds must be others each time that the
        same group comes.
        """

        def with_batches(item: tuple[Group, Sequence[int] | None]) -> tuple[Group, list[Batch]]:
            group, seeds = item
            return group, [self.batch(*each) for each in zip(group, seeds or [None] * len(group), strict=True)]

        if self._device.type == "cpu":  # it has no time to spare while it works
            return map(with_batches, groups)
        return one_ahead(with_batches, groups)

    def tokens(self, group: Group, batches: Sequence[Batch]) -> int:
        """Target tokens of the group, whose batches these are, in all processes together."""
        if self._resampling is None:
            return self._target_tokens(group)
        return int(self._processes.add(sum(batch.tokens for batch in batches if batch.counted))[0])

    def _target_tokens(self, group: Group) -> int:
        """As the corpus has them."""
        return sum(int(self.corpus.target.lengths[list(indices)].sum()) for indices in group)

    def describe(self, group: Group) -> str:
        """The shape of the largest of these batches."""
        corpus, largest = self.corpus, max(group, key=lambda indices: self._target_tokens([indices]))
        sides = [side.lengths[list(largest)] for side in (corpus.source, corpus.target)]
        source, target = (int(lengths.sum()) for lengths in sides)
        longest = max(int(lengths.max()) for lengths in sides)
        return f"{len(largest):,} pairs with {source:,} source and {target:,} target tokens, the longest {longest:,}"
