"""Features of a translation's words that need no reference: the model's own numbers as it reads them again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.alignment.attention import BATCH_TOKENS, decode_with_weights, shifted
from glassformer.confidence.words import Span, is_punctuation, source_words_of, spans_of
from glassformer.generation.batches import MOST_LOGITS, batches_by_length
from glassformer.generation.translator import Translator
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS

FEATURES = (
    "logit",
    "entropy",
    "punctuation",
    "attention_entropy",
    "line_log_prob",
    "line_coverage",
    "line_length",
)
"""Names of a word's features, in the order of the columns. `logit`: log(p / (1 - p)) of the word's probability p;
`entropy`: the largest entropy of its tokens' distributions, in nats; `punctuation`: 1
for a mark; `attention_entropy`: mean entropy of its attention to the source, in nats. Of the whole line: the mean
log-probability of a token; the mean attention that a source word gets, each at most 1; log of the number of words."""
LEAST = 1e-6
"""A probability counts as at least so far from 0 and 1."""


@dataclass(frozen=True)
class Looking:
    """The heads whose attention to the source says what a translation looks at, all of one layer."""

    layer: int
    heads: tuple[int, ...]
    shift: int
    """0: a token is judged by the state that writes it; 1: by the state that reads it."""


@dataclass(frozen=True)
class Observed:
    """A line and its translation, with the features of its words."""

    source: list[Span]
    words: list[Span]
    features: Float[Tensor, "words features"]
    """A column for each of FEATURES."""
    coverage: Float[Tensor, " source_words"]
    """The attention that each source word gets from the whole translation, in tokens of it.

    That of a token counts by the token's probability: the state that expects a word which was then left out looks at
    it too, and gives the token that came instead a low one.
    """
    looks_at: Float[Tensor, "words source_words"]
    """The attention of each word, the sum over its tokens, to each source word."""

    def probabilities(self) -> list[float]:
        """Return how likely the model finds each word: the product of its tokens' probabilities."""
        return self.features[:, 0].sigmoid().tolist()


def observe_words(
    translator: Translator, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], looking: Looking
) -> list[Observed]:
    """Return the features of each translation's words; ids are without `</s>`. One pass reads all, in batches."""
    here = [source_words_of(ids, translator.source_tokenizer) for ids in sources]
    there = [spans_of(ids, translator.target_tokenizer) for ids in targets]
    found = [
        Observed(x, y, torch.zeros(len(y), len(FEATURES)), torch.zeros(len(x)), torch.zeros(len(y), len(x)))
        for x, y in zip(here, there, strict=True)
    ]
    engine = translator.engine
    real = [n for n, observed in enumerate(found) if observed.source and observed.words]
    longest = [list(max(sources[n], targets[n], key=len)) for n in real]
    most = max(1, min(BATCH_TOKENS, MOST_LOGITS // engine.config.target_vocab_size))
    for batch in batches_by_length(longest, most, len(real)):
        numbers = [real[n] for n in batch]
        rows = [torch.tensor([*sources[n], EOS]) for n in numbers]
        source, keep = pad_source(rows, engine.source_pad)
        written = [torch.tensor([*targets[n], EOS]) for n in numbers]
        reading = [torch.tensor([engine.target_pad, *targets[n]]) for n in numbers]
        target_in = pad_sequence(reading, batch_first=True, padding_value=engine.target_pad)
        target_out = pad_sequence(written, batch_first=True, padding_value=EOS)
        logits, weights = decode_with_weights(
            engine,
            source.to(engine.device),
            keep.to(engine.device),
            target_in.to(engine.device),
            {looking.layer: looking.heads},
        )
        log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        entropies = torch.special.entr(log_probs.exp()).sum(-1).cpu()
        chosen = log_probs.gather(2, target_out.to(engine.device)[:, :, None]).squeeze(2).cpu()
        means = weights[looking.layer].mean(1).float()
        for row, n in enumerate(numbers):
            steps, width = len(written[row]), len(rows[row])
            attention = shifted(means[row, :steps, :width], looking.shift)
            observed = (found[n].source, found[n].words)
            found[n] = _described(*observed, chosen[row, :steps], entropies[row, :steps], attention)
    return found


def _described(
    source: list[Span],
    words: list[Span],
    log_probs: Float[Tensor, " steps"],
    entropies: Float[Tensor, " steps"],
    attention: Float[Tensor, "tokens source_len"],
) -> Observed:
    by_word = torch.stack([attention[:, word.first : word.last].sum(1) for word in source], dim=1)
    coverage = (by_word * log_probs[: len(by_word), None].exp()).sum(0)
    attention_entropies = torch.special.entr(attention).sum(1)
    of_line = [float(log_probs.mean()), float(coverage.clamp(max=1).mean()), math.log(len(words))]
    rows = list[list[float]]()
    for word in words:
        tokens = slice(word.first, word.last)
        probability = min(max(math.exp(float(log_probs[tokens].sum())), LEAST), 1 - LEAST)
        rows.append(
            [
                math.log(probability / (1 - probability)),
                float(entropies[tokens].max()),
                float(all(map(is_punctuation, word.text))),
                float(attention_entropies[tokens].mean()),
                *of_line,
            ]
        )
    looks_at = torch.stack([by_word[word.first : word.last].sum(0) for word in words])
    return Observed(source, words, torch.tensor(rows), coverage, looks_at)
