"""Loss and score of a model on the validation pairs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from glassformer.errors import DivergedError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.pairs.files import Pair
from glassformer.scoring.scores import is_same, score
from glassformer.text.batching import plan_batches
from glassformer.text.tokenizer import SymbolTokenizer, Tokenizer
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import Processes
from glassformer.training.loader import BatchLoader
from glassformer.training.objective import Objective
from glassformer.transformer.model import Transformer

SAMPLES = 3
"""Translations to show."""


class Validated(NamedTuple):
    """Loss, score and some translations of a model, on the validation pairs."""

    loss: float
    """Negative log-likelihood in nats per token."""
    score: float
    samples: list[tuple[str, str, str]]
    """Source, reference and translation of a few pairs (see `choose_samples`)."""


def choose_samples(
    sources: Sequence[str], references: Sequence[str], translations: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Return the first samples; where all of them are right, the last makes room for the first that is wrong."""
    samples = list(zip(sources, references, translations, strict=True))
    first = samples[:SAMPLES]
    wrong = next((sample for sample in samples if not is_same(*sample[1:])), None)
    return first if wrong is None or wrong in first else [*first[:-1], wrong]


class Validator:
    """The validation pairs of a run, shared out over the processes."""

    def __init__(
        self,
        config: TrainConfig,
        dtype: torch.dtype,
        loader: BatchLoader,
        text: list[Pair],
        tokenizers: tuple[Tokenizer, Tokenizer],
        processes: Processes,
    ) -> None:
        """`text` are the pairs that are translated for the score, `loader` gives all of them as ids."""
        self._config = config
        self._dtype = dtype
        self._loader = loader
        self._sources, self._references = ([pair[side] for pair in text] for side in (0, 1))
        self._tokenizers = tokenizers
        self._processes = processes
        corpus = loader.corpus
        size = config.chosen_batch_tokens
        self._plan = plan_batches(
            corpus.source.lengths, corpus.target.lengths, batch_tokens=size, seed=config.seed, epoch=0
        )

    def validate(self, model: Transformer, update: int) -> "Validated":
        """Return loss and score of the model, the same in all processes.

        Raises DivergedError, which names `update`, if the loss is not finite.
        """
        model.eval()
        loss = self._loss(model)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the validation loss is {loss} at update {update}: lower --learning-rate, raise --warmup, or set "
                "--clip-norm"
            )
        translations = self._translate(model)
        model.train()
        config, symbols = self._config, isinstance(self._tokenizers[1], SymbolTokenizer)
        value = score(translations, self._references, config.metric, tokenize=config.tokenize, symbols=symbols).value
        return Validated(loss, value, choose_samples(self._sources, self._references, translations))

    def _loss(self, model: Transformer) -> float:
        objective = Objective(model, self._dtype, self._config.label_smoothing)
        nll = tokens = 0.0
        with torch.no_grad():
            for pairs in self._plan:
                batch = self._loader.batch(pairs)
                if batch.counted:
                    nll += objective(batch)[1].item()
                    tokens += batch.tokens
        nll, tokens = self._processes.add(nll, tokens)
        return nll / tokens

    def _translate(self, model: Transformer) -> list[str]:
        """Return the model's translations of all sources."""
        translator = Translator.of(model, *self._tokenizers, precision=str(self._dtype).removeprefix("torch."))
        own = translator.translate(self._processes.share(self._sources), SearchConfig(beam=1))
        return self._processes.gather(own)
