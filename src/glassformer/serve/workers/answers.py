"""From what a search has found to the JSON of an answer: `schemas.TranslatedLine` and what it holds."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from glassformer.attention.want import Want
from glassformer.confidence.estimate import ConfidenceEstimator
from glassformer.errors import ConfigError
from glassformer.generation.attention import Translation, check_attention, count_weights
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.engine import Stack
from glassformer.generation.lexical.lines import LexicalLine
from glassformer.generation.search import Hypothesis
from glassformer.generation.segments.paragraphs import joined_translation
from glassformer.generation.segments.sentences import Segments
from glassformer.generation.translator import Translator, translation_of
from glassformer.insight.heads import Head
from glassformer.page.inspection import choose_want
from glassformer.page.report import MOST_WEIGHTS, page
from glassformer.serve.workers.messages import Facts
from glassformer.serve.workers.words import calibrated_words, words_in, words_of
from glassformer.text.tokenizer import EOS

TILES = 64
"""Tiles a side, where a request asks for them."""


def line_answer(
    translator: Translator,
    source: list[int],
    found: Sequence[Hypothesis],
    config: SearchConfig,
    *,
    scores: bool = False,
    confidence: bool = False,
    with_source: bool = False,
    estimator: ConfidenceEstimator | None = None,
    lexical: LexicalLine | None = None,
) -> dict[str, Any]:
    """Return what was found for the ids of a line as JSON, but for its attention.

    With `confidence` and an estimator each word has how likely it is right, unless a term was forced upon the
    translation or a placeholder put in: a calibration knows only what the model has chosen itself. `lexical` is a line
    with terms or placeholders. A piece is what the model has written, a stand-in where a text was put in its place.
    """
    made = [translation_of(translator, "", [], one, config, lexical=lexical) for one in found]
    answers = [_translated(one) for one in made]
    if scores:
        for one, answer in zip(found, answers, strict=True):
            answer["pieces"] = _pieces(translator, one)
    if confidence:
        for one, answer in zip(found, answers, strict=True):
            is_free = not one.forced and not one.put_in
            answer["words"] = _words(translator, source, one, estimator if is_free else None)
            if lexical is not None and one.put_in:
                put_in = {place: lexical.wanted[n].forms[0] for place, n in one.put_in}
                answer["words"] = words_in(answer["text"], answer["words"], put_in)
    pieces = translator.source_tokenizer.tokens(source) if scores or with_source else None
    return {"translations": answers, "terms": _terms(made), "source_pieces": pieces, "attention": None}


def paragraph_answer(
    translator: Translator,
    sentences: Segments,
    found: Sequence[tuple[Sequence[Hypothesis], LexicalLine | None]],
    config: SearchConfig,
) -> dict[str, Any]:
    """Return what was found for the sentences of a line, with their terms and placeholders, as JSON: texts and scores.

    The line's second translation is made of the second ones of its sentences, or the last ones that they have.
    """
    rows = [
        [translation_of(translator, "", [], one, config, lexical=lexical) for one in best] for best, lexical in found
    ]
    made = [
        joined_translation(sentences, [row[min(n, len(row) - 1)] for row in rows], config)
        for n in range(max(map(len, rows), default=1))
    ]
    answers = [_translated(one) for one in made]
    return {"translations": answers, "terms": _terms(made), "source_pieces": None, "attention": None}


def _translated(made: Translation) -> dict[str, Any]:
    """Return a translation as JSON, without its pieces and words."""
    probability = as_probability(made.log_prob)
    return {"text": made.text, "score": made.score, "probability": probability, "pieces": None, "words": None}


def _terms(made: Sequence[Translation]) -> dict[str, Any] | None:
    """Return the terms and placeholders of the best translation as JSON."""
    use = made[0].lexical if made else None
    return None if use is None else asdict(use) | {"missing": list(use.missing)}


def _pieces(translator: Translator, hypothesis: Hypothesis) -> list[dict[str, Any]]:
    """Return the pieces of a translation as JSON."""
    log_probs = hypothesis.token_log_probs
    tokens = translator.target_tokenizer.tokens([*hypothesis.ids, EOS][: len(log_probs)])
    return [{"piece": token, "probability": as_probability(p)} for token, p in zip(tokens, log_probs, strict=True)]


def _words(
    translator: Translator, source: list[int], hypothesis: Hypothesis, estimator: ConfidenceEstimator | None
) -> list[dict[str, Any]]:
    """Return the words of a translation as JSON; `source` ends with `</s>`, or is empty."""
    if estimator is None:
        return words_of(hypothesis.ids, hypothesis.token_log_probs, translator.target_tokenizer)
    return calibrated_words(source[:-1], hypothesis.ids, hypothesis.token_log_probs, estimator)


def as_probability(log_prob: float) -> float:
    """Return the probability of a log-probability, which rounding may have made larger than 0."""
    return min(1.0, math.exp(log_prob))


def wants_of(
    translator: Translator, facts: Facts, source: list[int], found: Sequence[Hypothesis]
) -> dict[Stack, dict[int, Want]]:
    """Return the attention to observe of these translations; ConfigError for a layer that the model lacks.

    Where the request names no facts, these are all weights, or of long texts what a page can hold.
    """
    if facts.facts is None:
        want = choose_want(translator.engine.config, len(source), [len(one.ids) + 1 for one in found])
    else:
        asked = set(facts.facts)
        want = Want(
            weights="weights" in asked,
            entropy="entropy" in asked,
            received="received" in asked,
            top=facts.top if "top" in asked else 0,
            pooled_heads=TILES if "tiles" in asked else 0,
        )
    stacks: Mapping[Any, Want] = dict.fromkeys(facts.stacks, want)
    wants = check_attention(translator.engine, stacks, facts.layers)
    if want.weights:
        _check_weights(translator, wants, len(source), [len(one.ids) + 1 for one in found])
    return wants


def _check_weights(
    translator: Translator, wants: Mapping[Stack, Mapping[int, Want]], source: int, targets: Sequence[int]
) -> None:
    """Raise ConfigError, before they are computed, for more weights than a page holds."""
    count = count_weights(translator.engine.config, wants, source, targets)
    if count > MOST_WEIGHTS:
        raise ConfigError(
            f"attention has {count:,} weights here, and at most {MOST_WEIGHTS:,} are returned: ask for fewer layers, "
            "or for the facts tiles, top, entropy and received"
        )


def packed(translations: Sequence[Translation], heads: Sequence[Head]) -> str:
    """Return the attention of a line's translations as a page holds it, in base64."""
    return base64.b64encode(page(translations, title="", heads=heads).data).decode()
