"""A model of which tokens of a pair stand for which: both directions, learned from the pairs alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.alignment.hmm import Direction
from glassformer.alignment.learning import LONGEST, batches_of_cells, choose_pairs, learn
from glassformer.data.corpus import Corpus
from glassformer.errors import DataError, RunError
from glassformer.tensors import check_tensors, read_tensors, write_checked_tensors
from glassformer.text.tokenizer import EOS

CELLS = 1 << 23
"""Most source tokens times target tokens, summed over the pairs of a corpus that are used: they need about 500 MB."""


class AlignmentModel:
    """Both directions of an alignment: which source tokens the target's stand for, and the other way round.

    Estimated as follows: a few rounds in which each token is aligned for itself, likelier near the diagonal (IBM model
    2 as in fast_align: Dyer et al. 2013), then chains, whose counts the other direction has a say in (agreement: Liang
    et al. 2006), then chains with fertilities. Few rounds, for more fit the rare words too closely. Where kinds of
    tokens have kin (`source_kin`, `target_kin`), p(y | x) is drawn to that of x's kin, and this to that of kin by kin:
    forms of a word help each other.
    """

    def __init__(self, forward: Direction, backward: Direction) -> None:
        """`forward` explains the target's tokens by the source's, `backward` the source's by the target's."""
        self.forward, self.backward = forward, backward

    @classmethod
    def train(
        cls,
        source: Sequence[Int[Tensor, " _"]],
        target: Sequence[Int[Tensor, " _"]],
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        source_kin: Int[Tensor, " source_vocab"] | None = None,
        target_kin: Int[Tensor, " target_vocab"] | None = None,
    ) -> "AlignmentModel":
        """Estimate the model from pairs of ids without `</s>`; none may be empty. The same pairs give the same model.

        `source_kin` and `target_kin` number the family of each token.
        """
        kin = (source_kin, target_kin)
        return cls(*learn(source, target, (source_vocab_size, target_vocab_size), kin))

    @classmethod
    def of_corpus(cls, corpus: Corpus, source_vocab_size: int, target_vocab_size: int) -> "AlignmentModel":
        """Estimate the model from these pairs, or from as many of them, evenly spread, as CELLS allows.

        Pairs that have more than LONGEST or CELLS are left out. Raises DataError where none is left.
        """
        cells = (corpus.source.lengths[:] - 1) * (corpus.target.lengths[:] - 1)
        chosen = choose_pairs(cells, CELLS)
        if not chosen:
            raise DataError(
                f"{len(corpus):,} pairs of {cells.double().mean():,.0f} cells (source times target tokens) are too "
                f"long to learn an alignment from, which takes at most {min(LONGEST, CELLS):,}: train without guide, "
                "or lower max_tokens"
            )
        source, target = ([side[number][:-1].long() for number in chosen] for side in (corpus.source, corpus.target))
        return cls.train(source, target, source_vocab_size, target_vocab_size)

    def align(
        self, source: Int[Tensor, "batch source_len"], target: Int[Tensor, "batch target_len"]
    ) -> Float[Tensor, "batch target_len source_len"]:
        """Return the probability that each target token stands for each source token.

        A row sums to at most 1; what is missing is the probability that the target token stands for none. Sequences
        end with `</s>` and are padded with it; `</s>` stands for nothing.
        """
        sources = (source != EOS).sum(1).clamp(min=1)  # the chain needs a place to be at: an empty source has `</s>`
        return self.forward.posterior(source, target, sources, (target != EOS).sum(1))

    def posteriors(
        self, pairs: Sequence[tuple[Int[Tensor, " _"], Int[Tensor, " _"]]]
    ) -> Iterator[tuple[int, Float[Tensor, "_ _"], Float[Tensor, "_ _"]]]:
        """Yield the number of each pair, in any order, with the probability of each link by either direction.

        Both are (target_len, source_len). Pairs are given without `</s>`; those with an empty side are passed over.
        """
        real = [n for n, pair in enumerate(pairs) if all(map(len, pair))]
        for batch in batches_of_cells([(len(pairs[n][0]), len(pairs[n][1])) for n in real]):
            numbers = [real[n] for n in batch]
            sides = [[pairs[n][side] for n in numbers] for side in (0, 1)]
            x, y = (pad_sequence(side, batch_first=True) for side in sides)
            sources, targets = (torch.tensor([len(ids) for ids in side]) for side in sides)
            forward = self.forward.posterior(x, y, sources, targets)
            backward = self.backward.posterior(y, x, targets, sources).mT
            for row, n in enumerate(numbers):
                source_len, target_len = (len(side[row]) for side in sides)
                yield n, forward[row, :target_len, :source_len], backward[row, :target_len, :source_len]

    def to(self, device: torch.device) -> "AlignmentModel":
        """Return a copy on another device."""
        return AlignmentModel(
            *(
                Direction(**{name: tensor.to(device) for name, tensor in direction.tensors.items()})
                for direction in (self.forward, self.backward)
            )
        )

    def save(self, path: Path) -> None:
        """Write a safetensors file, with a checksum."""
        sides = {"forward": self.forward, "backward": self.backward}
        tensors = {f"{side}.{name}": tensor for side, of in sides.items() for name, tensor in of.tensors.items()}
        write_checked_tensors(path, tensors, {})

    @classmethod
    def load(cls, path: Path) -> "AlignmentModel":
        """Read what `save` wrote; RunError if it is damaged, or something else."""
        try:
            check_tensors(path)
        except RunError as error:
            raise RunError(f"{error}: remove it, and it is learned again") from None
        tensors = read_tensors(path)
        kinds = {name: (tensor.dtype, tensor.dim()) for name, tensor in tensors.items()}
        wanted = {f"{side}.{name}": kind for side in _SIDES for name, kind in _KINDS.items()}
        if kinds != wanted or any(len(tensors[f"{side}.cells"]) != len(tensors[f"{side}.likely"]) for side in _SIDES):
            raise RunError(f"{path} is damaged: it must hold the tensors {', '.join(_KINDS)} of two directions")
        return cls(*(Direction(**{name: tensors[f"{side}.{name}"] for name in _KINDS}) for side in _SIDES))


_SIDES = ("forward", "backward")
_KINDS = {
    "cells": (torch.int64, 1),
    "likely": (torch.float32, 1),
    "none": (torch.float32, 1),
    "jumps": (torch.float32, 1),
    "ratios": (torch.float32, 2),
}
