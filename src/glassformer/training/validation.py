"""How good a model is: the loss and the task's score on validation pairs."""

import math

import torch

from glassformer.errors import DivergedError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.text.batching import plan_batches
from glassformer.text.pairs import Pair
from glassformer.text.scores import score
from glassformer.text.tokenizer import SymbolTokenizer, Tokenizer
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import Processes
from glassformer.training.feed import Feed
from glassformer.training.objective import Objective
from glassformer.transformer.model import Transformer


class Validation:
    """The validation pairs of a run, shared out over the processes."""

    def __init__(
        self,
        config: TrainConfig,
        dtype: torch.dtype,
        feed: Feed,
        text: list[Pair],
        tokenizers: tuple[Tokenizer, Tokenizer],
        processes: Processes,
    ) -> None:
        """`text` are the pairs that are translated for the score, `feed` gives all of them as ids."""
        self._config = config
        self._dtype = dtype
        self._feed = feed
        self._sources, self._references = ([pair[side] for pair in text] for side in (0, 1))
        self._tokenizers = tokenizers
        self._processes = processes
        corpus = feed.corpus
        self._plan = plan_batches(
            corpus.source.lengths, corpus.target.lengths, batch_tokens=config.batch_tokens, seed=config.seed, epoch=0
        )

    def of(self, model: Transformer, update: int) -> tuple[float, float]:
        """Negative log-likelihood per token (nats), and the score. All processes get the same of the same model."""
        model.eval()
        loss = self._loss(model)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the validation loss is {loss} at update {update}: lower --learning-rate, raise --warmup, or set "
                "--clip-norm"
            )
        value = self._score(model)
        model.train()
        return loss, value

    def _loss(self, model: Transformer) -> float:
        objective = Objective(model, self._dtype, self._config.label_smoothing)
        nll = tokens = 0.0
        with torch.no_grad():
            for indices in self._plan:
                batch = self._feed.batch(indices)
                if batch.counted:
                    nll += objective(batch)[1].item()
                    tokens += batch.tokens
        nll, tokens = self._processes.add(nll, tokens)
        return nll / tokens

    def _score(self, model: Transformer) -> float:
        config = self._config
        translator = Translator.of(model, *self._tokenizers, precision=str(self._dtype).removeprefix("torch."))
        own = translator.translate(self._processes.share(self._sources), SearchConfig(beam=1))
        found = self._processes.gather(own)
        symbols = isinstance(self._tokenizers[1], SymbolTokenizer)
        return score(found, self._references, config.metric, tokenize=config.tokenize, symbols=symbols).value
