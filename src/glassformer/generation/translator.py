"""Text in, text out: batches by length, searches, restores the order."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from glassformer.device import pick_device
from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.search import Hypothesis, beam_search, greedy, sample
from glassformer.run import load_run
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS, Tokenizer
from glassformer.transformer.model import Transformer

MOST_LOGITS = 1 << 23


@dataclass(frozen=True)
class Translation:
    """One translation of a line, and how likely the model finds it."""

    text: str
    score: float
    """Log-probability divided by the length penalty; higher is better."""
    log_prob: float
    """Sum of the tokens' log-probabilities, in nats."""


class Translator:
    """A trained model with its tokenizers.

    >>> translator = Translator.load("runs/en-de")            # doctest: +SKIP
    >>> translator.translate(["Two dogs run.", "A man sings."])  # doctest: +SKIP
    ['Zwei Hunde rennen.', 'Ein Mann singt.']
    """

    def __init__(self, model: Transformer, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Translator":
        """The translator of a run folder."""
        run = load_run(Path(folder), pick_device(device))
        return cls(run.model, run.source_tokenizer, run.target_tokenizer)

    def translate(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda lines_done: None,
    ) -> list[str]:
        """The best translation of each line, in order. An empty line stays empty."""
        return [best[0].text for best in self.translate_n_best(lines, config, progress)]

    def translate_n_best(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda lines_done: None,
    ) -> list[list[Translation]]:
        """Up to `config.n_best` translations of each line with their scores, best first."""
        if isinstance(lines, str):
            raise TypeError("lines must be a sequence of lines, got one str: pass [line]")
        config = config or SearchConfig()
        encoded = self.source_tokenizer.encode(lines)
        sources = _ended(encoded, lines, config.max_source_tokens, "source")
        results = [[Translation("", 0.0, 0.0)] for _ in lines]
        if empty := sum(not ids for ids in sources):
            progress(empty)
        generator = torch.Generator(self._device).manual_seed(config.seed)
        with self._evaluating():
            for batch in _batches_by_length(sources, *self._batch_limits(config)):
                found = self._search([sources[i] for i in batch], config, generator)
                for i, hypotheses in zip(batch, found, strict=True):
                    results[i] = self._texts(hypotheses)
                progress(len(batch))
        return results

    @torch.inference_mode()
    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda pairs_done: None,
    ) -> list[float]:
        """log p(target | source) of each pair, in nats: the sum over the target's tokens and `</s>`.

        Both are cut, with a warning, to `config.max_source_tokens`. Pairs go through the model in batches of
        `config.batch_tokens`; an empty target is worth the probability of ending at once.
        """
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError("sources and targets must be sequences of lines, got one str: pass [line]")
        if len(sources) != len(targets):
            raise ConfigError(
                f"score needs a target for each source, got {len(sources)} sources, {len(targets)} targets"
            )
        config = config or SearchConfig()
        source_ids, target_ids = (
            [ids or [EOS] for ids in _ended(tokenizer.encode(lines), lines, config.max_source_tokens, side)]
            for tokenizer, lines, side in (
                (self.source_tokenizer, sources, "source"),
                (self.target_tokenizer, targets, "target"),
            )
        )
        found = [0.0] * len(sources)
        longest = [max(pair, key=len) for pair in zip(source_ids, target_ids, strict=True)]
        most_logits = max(1, MOST_LOGITS // self.model.config.target_vocab_size)
        with self._evaluating():
            for batch in _batches_by_length(longest, min(config.batch_tokens, most_logits), len(sources)):
                scores = self._score([source_ids[i] for i in batch], [target_ids[i] for i in batch])
                for i, score in zip(batch, scores, strict=True):
                    found[i] = score
                progress(len(batch))
        return found

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Without dropout; then in the mode that the model was in."""
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)

    def _score(self, sources: list[list[int]], targets: list[list[int]]) -> list[float]:
        source, keep = pad_source([torch.tensor(ids) for ids in sources], self.model.source_pad)
        target, inside = pad_source([torch.tensor(ids) for ids in targets], self.model.target_pad)
        target, inside = target.to(self._device), inside[:, 0, 0].to(self._device)
        keep = keep.to(self._device)
        start = target.new_full((len(target), 1), self.model.target_pad)
        memory = self.model.encode(source.to(self._device), keep)
        states, _ = self.model.decode(torch.cat([start, target[:, :-1]], dim=1), self.model.start(memory, keep))
        logits = self.model.logits(states)
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        picked = log_probs.gather(2, target.masked_fill(~inside, EOS)[:, :, None]).squeeze(2)
        return picked.masked_fill(~inside, 0.0).double().sum(1).tolist()

    @property
    def _device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def _batch_limits(self, config: SearchConfig) -> tuple[int, int]:
        """Most padded source tokens and most sources at once, such that the logits of one step stay small."""
        width = 1 if config.sample else config.beam
        logits_each = width * self.model.config.target_vocab_size
        return max(1, config.batch_tokens // width), max(1, MOST_LOGITS // logits_each)

    def _search(
        self, sources: list[list[int]], config: SearchConfig, generator: torch.Generator
    ) -> list[list[Hypothesis]]:
        source, keep = pad_source([torch.tensor(ids) for ids in sources], self.model.source_pad)
        source, keep = source.to(self._device), keep.to(self._device)
        limits = [min(config.max_length, 3 * len(ids) + 50) for ids in sources]
        if config.sample:
            draws = [sample(self.model, source, keep, limits, config, generator) for _ in range(config.n_best)]
            return [sorted(drawn, key=lambda hypothesis: -hypothesis.score) for drawn in zip(*draws, strict=True)]
        if config.beam == 1:
            return [[found] for found in greedy(self.model, source, keep, limits, config)]
        return beam_search(self.model, source, keep, limits, config)

    def _texts(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        texts = self.target_tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
        return [
            Translation(text, hypothesis.score, hypothesis.log_prob)
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]


def _ended(encoded: list[list[int]], lines: Sequence[str], most: int, side: str) -> list[list[int]]:
    """The ids of each line with `</s>`, cut with a warning to `most`; an empty line has none."""
    for ids, line in zip(encoded, lines, strict=True):
        if len(ids) >= most:
            cut = f"a {side} of {len(ids):,} tokens is cut to its first {most - 1:,}: {line[:40]!r}…"
            warnings.warn(cut, stacklevel=3)
    return [[*ids[: most - 1], EOS] if ids else [] for ids in encoded]


def _batches_by_length(sources: list[list[int]], most_tokens: int, most_sources: int) -> list[list[int]]:
    """Indices of the sources that aren't empty, longest first, in batches of at most so many padded tokens."""
    order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: -len(sources[i]))
    batches: list[list[int]] = []
    for i in order:
        size = len(batches[-1]) + 1 if batches else 0
        if batches and size <= most_sources and len(sources[batches[-1][0]]) * size <= most_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
