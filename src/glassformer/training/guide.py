"""Guided attention (Chen et al. 2016): a head learns what to attend to from the alignment of the pairs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from glassformer.alignment.model import AlignmentModel
from glassformer.attention.functional import compute_attention
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.want import Want
from glassformer.data.corpus import Corpus
from glassformer.errors import ConfigError
from glassformer.text.batching import Batch
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

GUIDED = "decoder.0.source_attention"
"""The attention whose first head is guided."""


def check_guided(model: ModelConfig) -> None:
    """Raise ConfigError where a model has no head that could be guided."""
    if not model.heads_of(GUIDED):
        raise ConfigError(f"`guide` needs a head in {GUIDED}, of which the model has none left: leave it out")


class Guide:
    """A loss that pulls a head to the source of the token just written.

    loss = -weight * sum over t and s of a(t - 1, s) log w(t, s)

    w(t, s) is the head's weight of source token s as the decoder, having read target token t - 1, predicts token t; a
    is the alignment of the target tokens (see `AlignmentModel`). What has been read can be aligned better than what is
    yet to be predicted (Chen et al. 2020, "Accurate word alignment induction from neural machine translation").
    """

    def __init__(self, aligner: AlignmentModel, weight: float) -> None:
        self._aligner, self._weight = aligner, weight

    @staticmethod
    def prepare(path: Path, pairs: Corpus, model: ModelConfig, say: Callable[[str], None]) -> None:
        """Learn the alignment of these pairs and write it to `path`."""
        say("learning which source token each target token stands for")
        AlignmentModel.of_corpus(pairs, model.source_vocab_size, model.target_vocab_size).save(path)

    @classmethod
    def from_file(cls, path: Path, weight: float, device: torch.device) -> "Guide":
        """Return a guide by the alignment that `prepare` wrote; RunError if it is something else."""
        return cls(AlignmentModel.load(path).to(device), weight)

    @contextmanager
    def guiding(self, model: Transformer, batch: Batch) -> Iterator[list[Tensor]]:
        """Fill a list with the guide's loss (nats, summed over tokens), each time that the model decodes the batch."""
        source, read = (
            packing.spread(ids[:, :, None]).squeeze(2)
            for packing, ids in ((batch.sources, batch.source), (batch.targets, batch.target_in))
        )
        alignment = self._aligner.align(source, read[:, 1:])  # the first thing read is the start, no token
        keep = batch.sources.keep[:, 0]
        losses = list[Tensor]()

        def guided(of: Problem, dropout: float, want: Want | None) -> tuple[Tensor, Tensor | None]:
            scores = of.q[:, 0, 1:] @ of.k[:, 0].transpose(1, 2) * of.scale
            exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
            log_weights = exact.masked_fill(~keep, -1e9).log_softmax(2)
            losses.append(-self._weight * (alignment * log_weights).sum())
            return compute_attention(of, dropout, want)

        with model.attentions[GUIDED].computed_by(guided):
            yield losses
