"""Word alignment: which source token each target token stands for, estimated from the pairs alone."""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.data.corpus import Corpus
from glassformer.errors import DataError, RunError
from glassformer.tensors import check_tensors, read_tensors, write_checked_tensors
from glassformer.text.tokenizer import EOS

NULL = 0.08
"""Probability that a target token stands for none of the source."""
TENSION = 4.0
"""Rate at which places become unlikely away from the diagonal."""
ROUNDS = 6
"""Rounds of expectation maximisation."""
PRIOR = 1e-4
"""Pseudo-count: how often each translation of each token counts as seen before any pair is read."""
CELLS = 1 << 23
"""Most source tokens times target tokens, summed over the pairs used: they need about 500 MB."""


class Aligner:
    """IBM model 2 with a pull to the diagonal (fast_align: Dyer et al. 2013, section 2).

    p(y_t stands for x_s) ∝ (1 - NULL) softmax_s(-TENSION |t / T - s / S|) p(y_t | x_s), for none of them ∝ NULL p(y_t)

    T and S are the lengths without `</s>`; t and s are the middles of the tokens. It differs from fast_align in two
    things: TENSION is constant, and the prior of p(y | x) is a plain pseudo-count.
    """

    def __init__(
        self,
        cells: Int[Tensor, " entries"],
        likely: Float[Tensor, " entries"],
        frequency: Float[Tensor, " target_vocab"],
    ) -> None:
        """`likely` is p(y | x) for the cells x * target_vocab + y, in ascending order; `frequency` is p(y)."""
        self._cells, self._likely, self._frequency = cells, likely, frequency

    @classmethod
    def train(cls, corpus: Corpus, source_vocab_size: int, target_vocab_size: int) -> "Aligner":
        """Estimate the probabilities from these pairs, or from as many of them, evenly spread, as CELLS allows.

        The same pairs give the same result. Raises DataError where even one pair is too long.
        """
        sides = corpus.source, corpus.target
        work = (sides[0].lengths - 1).mul_(sides[1].lengths - 1).sum().item()
        step = max(1.0, work / CELLS)
        cells, places, owners, tokens = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        seen = 0
        for number in range(int(len(corpus) / step)):
            x, y = (side[int(number * step)][:-1].long() for side in sides)
            cells.append((x * target_vocab_size + y[:, None]).flatten())
            places.append(_places(torch.tensor([len(y)]), torch.tensor([len(x)]), len(y), len(x)).flatten())
            owners.append(torch.arange(seen, seen + len(y)).repeat_interleave(len(x)))
            tokens.append(y)
            seen += len(y)
        if not cells:
            raise DataError(
                f"{len(corpus):,} pairs of {work / len(corpus):,.0f} cells (source times target tokens) are too long "
                f"to learn an alignment from, which takes at most {CELLS:,}: train without guide, or lower max_tokens"
            )
        known, entry = torch.cat(cells).unique(return_inverse=True)
        del cells
        place, owner, token = torch.cat(places), torch.cat(owners), torch.cat(tokens)
        del places, owners, tokens
        frequency = token.bincount(minlength=target_vocab_size) / len(token)
        none = NULL * frequency[token]
        source = known // target_vocab_size
        likely = torch.full((len(known),), 1 / target_vocab_size)
        for _ in range(ROUNDS):
            joint = (1 - NULL) * place * likely[entry]
            share = joint / none.index_add(0, owner, joint)[owner]
            counts = torch.zeros(len(known), dtype=torch.double).index_add_(0, entry, share.double())
            given = torch.zeros(source_vocab_size, dtype=torch.double).index_add_(0, source, counts)
            likely = ((counts + PRIOR) / (given[source] + PRIOR * target_vocab_size)).float()
        return cls(known, likely, frequency)

    def align(
        self, source: Int[Tensor, "batch source_len"], target: Int[Tensor, "batch target_len"]
    ) -> Float[Tensor, "batch target_len source_len"]:
        """Return the probability that each target token stands for each source token.

        A row sums to at most 1; what is missing is the probability that the target token stands for none. Sequences
        end with `</s>` and are padded with it; `</s>` stands for nothing.
        """
        place = _places((target != EOS).sum(1), (source != EOS).sum(1), target.shape[1], source.shape[1])
        cells = source[:, None, :] * len(self._frequency) + target[:, :, None]
        entry = torch.searchsorted(self._cells, cells).clamp_(max=len(self._cells) - 1)
        joint = (1 - NULL) * place * torch.where(self._cells[entry] == cells, self._likely[entry], 0.0)
        none = NULL * self._frequency[target][:, :, None]
        return (joint / (joint.sum(2, keepdim=True) + none)).nan_to_num(0.0)

    def to(self, device: torch.device) -> "Aligner":
        """Return a copy on another device."""
        return Aligner(*(tensor.to(device) for tensor in (self._cells, self._likely, self._frequency)))

    def save(self, path: Path) -> None:
        """Write a safetensors file, with a checksum, whose tensors are named as the constructor's arguments."""
        tensors = {"cells": self._cells, "likely": self._likely, "frequency": self._frequency}
        write_checked_tensors(path, tensors, {})

    @classmethod
    def load(cls, path: Path) -> "Aligner":
        """Read what `save` wrote; RunError if it is damaged, or something else."""
        try:
            check_tensors(path)
        except RunError as error:
            raise RunError(f"{error}: remove it, and it is learned again") from None
        tensors = read_tensors(path)
        kinds = {name: (tensor.dtype, tensor.dim()) for name, tensor in tensors.items()}
        expected = {"cells": (torch.int64, 1), "likely": (torch.float32, 1), "frequency": (torch.float32, 1)}
        if kinds != expected or len(tensors["cells"]) != len(tensors["likely"]) or not len(tensors["cells"]):
            raise RunError(f"{path} is damaged: it must hold cells, their probabilities and frequencies, got {kinds}")
        return cls(**tensors)


def _places(
    target: Int[Tensor, " batch"], source: Int[Tensor, " batch"], target_len: int, source_len: int
) -> Float[Tensor, "batch target_len source_len"]:
    """Return softmax_s(-TENSION |t / T - s / S|) for targets and sources of lengths T and S; zero past their ends."""
    t, s = ((torch.arange(n, device=target.device) + 0.5) for n in (target_len, source_len))
    inside = (t < target[:, None])[:, :, None] & (s < source[:, None])[:, None, :]
    apart = ((t / target[:, None])[:, :, None] - (s / source[:, None])[:, None, :]).abs()
    closeness = torch.where(inside, torch.exp(-TENSION * apart), 0.0)
    return closeness / closeness.sum(2, keepdim=True).clamp(min=1e-30)
