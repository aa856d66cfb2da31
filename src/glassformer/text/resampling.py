"""Subword regularisation (Kudo 2018): training sees the same text split into other pieces each time."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.text.tokenizer import EOS, UNK, SubwordTokenizer, Tokenizer


class Resampler:
    """Splits some sequences of ids anew, at random."""

    def __init__(self, tokenizers: Sequence[Tokenizer], share: float) -> None:
        """`share` of the sequences; those of a tokenizer without other splittings stay as they are."""
        self._tokenizers = [
            tokenizer if isinstance(tokenizer, SubwordTokenizer) and tokenizer.can_sample else None
            for tokenizer in tokenizers
        ]
        self._share = share

    def resample(self, side: int, sequences: Sequence[Int[Tensor, " _"]], seed: int) -> list[Int[Tensor, " _"]]:
        """Sequences that end with `</s>`, of the source (side 0) or the target.

        The same for the same seed in one process; another process draws others. One that holds an unknown token, whose
        text isn't known, stays as it is.
        """
        tokenizer = self._tokenizers[side]
        if tokenizer is None:
            return list(sequences)
        seed = (2 * seed + side) % (1 << 31)
        draw = torch.rand(len(sequences), generator=torch.Generator().manual_seed(seed)).tolist()
        chosen = [n for n, number in enumerate(draw) if number < self._share and UNK not in sequences[n]]
        texts = tokenizer.decode([sequences[n].tolist() for n in chosen])
        resampled = list(sequences)
        for n, ids in zip(chosen, tokenizer.sample(texts, seed), strict=True):
            resampled[n] = sequences[n].new_tensor([*ids, EOS])
        return resampled
