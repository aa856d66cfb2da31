"""The choice of the heads that align best: by how well they agree with an alignment learned from pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.alignment.aligner import Aligner
from glassformer.alignment.attention import TokenizedLine, by_word, shifted, source_weights, tokenize_lines
from glassformer.alignment.heads import AligningHeads, source_heads
from glassformer.errors import DataError, RunError
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import check_lines

FEWEST, MOST = 100, 500
"""Fewest pairs to learn an alignment from, and most on which heads are measured."""
ABOVE_CHANCE = 0.25
"""Share of the way from chance to full agreement that the heads must have gone."""


@dataclass
class _Agreement:
    """Links of candidates counted against those of an alignment."""

    hits: Tensor | float = 0.0
    found: Tensor | float = 0.0
    wanted: float = 0.0
    by_chance: float = field(default=0.0)

    def add(
        self,
        weights: Float[Tensor, "*candidates target_words source_words"],
        on_end: Float[Tensor, "*candidates target_words"],
        alignment: Float[Tensor, "target_words source_words"],
    ) -> None:
        """Count the links of a pair: each target word to the word that it looks at most, unless that is the end."""
        best, place = weights.max(-1)
        linked = best > on_end
        right = alignment.expand(weights.shape).gather(-1, place[..., None]).squeeze(-1)
        self.hits = self.hits + (right * linked).sum(-1)
        self.found = self.found + linked.sum(-1)
        self.wanted += float(alignment.sum())
        self.by_chance += float(alignment.sum()) / weights.shape[-1]

    def scores(self) -> Tensor:
        """Return the F1 of each candidate."""
        return 2 * torch.as_tensor(self.hits) / (torch.as_tensor(self.found) + self.wanted).clamp(min=1)


def choose_heads(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> AligningHeads:
    """Return the layer, the heads and the shift whose links agree best with those that an Aligner learns from pairs.

    An `Aligner` learns from all pairs, which should be of the run's kind, some thousands of them; heads are measured on
    MOST of them, evenly spread. First the best head of all layers is chosen, each with the state that writes a token
    and with the one that reads it, then others of its layer are taken in while their mean agrees better.

    Raises DataError for fewer than FEWEST pairs, and RunError if no head agrees much better than chance, as in a model
    that was not trained. Example: docs/howto/align.md.
    """
    check_lines("sources", sources)
    check_lines("targets", targets)
    here = tokenize_lines(translator.source_tokenizer, sources, "source")
    there = tokenize_lines(translator.target_tokenizer, targets, "target")
    real = [n for n, (x, y) in enumerate(zip(here, there, strict=True)) if x.ids and y.ids]
    if len(real) < FEWEST:
        raise DataError(
            f"choosing the heads that align takes at least {FEWEST} pairs to learn an alignment from, got {len(real)}: "
            "give more, of the kind that the run was trained on (--data FILE); the choice is kept"
        )
    source_words, target_words = ([[word.text for word in side[n].words] for n in real] for side in (here, there))
    aligner = Aligner.train(source_words, target_words)
    step = max(1.0, len(real) / MOST)
    measured = [int(n * step) for n in range(int(len(real) / step))]
    links = aligner.align([source_words[n] for n in measured], [target_words[n] for n in measured])
    pairs = [(here[real[n]], there[real[n]]) for n in measured]
    alignments = [torch.zeros(len(y.words), len(x.words)) for x, y in pairs]
    for alignment, of_pair in zip(alignments, links, strict=True):
        for link in of_pair:
            alignment[link.target, link.source] = 1.0
    return _best(translator, pairs, alignments)


def _best(
    translator: Translator, pairs: Sequence[tuple[TokenizedLine, TokenizedLine]], alignments: Sequence[Tensor]
) -> AligningHeads:
    """Return the heads that agree best with these alignments."""
    heads = source_heads(translator.engine.config)
    sources, targets = zip(*pairs, strict=True)
    tried = {(layer, shift): _Agreement() for layer in heads for shift in (0, 1)}
    for n, weights in source_weights(translator.engine, sources, targets, heads):
        for (layer, shift), agreement in tried.items():
            agreement.add(*by_word(shifted(weights[layer], shift), *pairs[n]), alignments[n])
    scores = {key: agreement.scores() for key, agreement in tried.items()}
    layer, shift = max(scores, key=lambda key: float(scores[key].max()))
    first = tried[layer, shift]
    chosen, best = _combined(translator, pairs, alignments, layer, shift, scores[layer, shift])
    chance = 2 * first.by_chance / (sum(len(y.words) for y in targets) + first.wanted)
    if best < chance + ABOVE_CHANCE * (1 - chance):
        raise RunError(
            f"no head of this run aligns: the best, head {chosen[0]} of decoder.{layer}.source_attention, agrees by "
            f"{best:.3f} with the alignment learned from the pairs, links at random by {chance:.3f}. Is the model "
            "trained, and are these pairs of its languages?"
        )
    return AligningHeads(
        layer=layer,
        heads=tuple(chosen),
        shift=shift,
        agreement=round(best, 4),
        chance=round(chance, 4),
        pairs=len(pairs),
    )


def _combined(
    translator: Translator,
    pairs: Sequence[tuple[TokenizedLine, TokenizedLine]],
    alignments: Sequence[Tensor],
    layer: int,
    shift: int,
    scores: Float[Tensor, " heads"],
) -> tuple[list[int], float]:
    """Return the best head of a layer with those that make the mean of all agree better, and how well it agrees."""
    order = scores.argsort(descending=True, stable=True).tolist()
    sources, targets = zip(*pairs, strict=True)
    seen = {
        n: by_word(shifted(weights[layer], shift), *pairs[n])
        for n, weights in source_weights(translator.engine, sources, targets, {layer: tuple(range(len(scores)))})
    }
    chosen, best = order[:1], float(scores.max())
    for head in order[1:]:
        agreement = _Agreement()
        for n, (weights, on_end) in seen.items():
            taken = [*chosen, head]
            agreement.add(weights[taken].mean(0), on_end[taken].mean(0), alignments[n])
        if float(agreement.scores()) > best:
            chosen, best = [*chosen, head], float(agreement.scores())
    return chosen, best
