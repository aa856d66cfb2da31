"""Subword regularisation (Kudo 2018): each time it is trained on, the same text is split into other pieces."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.text.tokenizer import EOS, UNK, Tokenizer


class Resampler:
    """Splits a random share of sequences of ids anew."""

    def __init__(self, tokenizers: Sequence[Tokenizer], share: float) -> None:
        """`share` is the probability of each sequence. A tokenizer without other splittings changes nothing."""
        self._tokenizers = [tokenizer if tokenizer.can_sample else None for tokenizer in tokenizers]
        self._share = share

    def resample(self, side: int, sequences: Sequence[Int[Tensor, " _"]], seed: int) -> list[Int[Tensor, " _"]]:
        """Return sequences of the source (side 0) or the target (side 1), some split anew; each ends with `</s>`.

        The same seed gives the same result in one process, another one in another process. A sequence with an unknown
        token, before or after, stays as it is.
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
            if UNK not in ids:
                resampled[n] = sequences[n].new_tensor([*ids, EOS])
        return resampled
