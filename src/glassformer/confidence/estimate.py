"""Confidence in translations: a calibration is fitted on pairs, applied to what was translated, and measured."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.alignment.heads import read_aligning_heads
from glassformer.confidence.calibration import (
    BINS,
    Bin,
    Calibration,
    calibration_error,
    fit_logistic,
    fit_temperature,
    read_calibration,
    reliability,
)
from glassformer.confidence.features import Looking, Observed, observe_words
from glassformer.confidence.words import Span, right_words
from glassformer.errors import ConfigError, DataError, RunError, counted, shown
from glassformer.generation.batches import ended
from glassformer.generation.config import SOURCE_TOKENS, SearchConfig
from glassformer.generation.translator import Translation, Translator, ids_of_prefixes
from glassformer.text.tokenizer import check_lines
from glassformer.text.words import Word, is_unspaced

FEWEST_WORDS = 100
"""Fewest words that a calibration is fitted on."""
FALSE_ALARMS = 0.02
"""Share of the source words of complete translations that may be named as left out."""
_LONG = 4
"""Letters of a word that can be named as left out; shorter ones often have no counterpart."""


class WordConfidence(NamedTuple):
    """A word of a translation, by the characters from `start` up to `end`, and how likely it is right.

    Example: docs/howto/confidence.md.
    """

    text: str
    start: int
    end: int
    probability: float
    """The probability that the word stands in the reference, as `right_words` counts it."""


class LineConfidence(NamedTuple):
    """Holds the confidence in the translation of a line. Example: docs/howto/confidence.md."""

    probability: float
    """The share of the words that is expected to be right: the mean of their probabilities. 0 without words."""
    words: list[WordConfidence]
    omitted: list[Word]
    """Words of the source that the translation hardly looks at, and may have left out."""


class ConfidenceEstimator:
    """Tells how likely the words of a run's translations are right. Example: docs/howto/confidence.md."""

    def __init__(self, translator: Translator, calibration: Calibration | None = None) -> None:
        """Take the calibration that the translator's run folder keeps, or another; ConfigError if there is none."""
        folder = translator.folder
        if calibration is None and len(translator.folders) > 1:
            raise ConfigError("confidence is that of one run's model, and an ensemble has none: load one run")
        if calibration is None and folder is not None:
            calibration = read_calibration(folder, translator.engine.config)
        if calibration is None:
            raise ConfigError(
                f"{folder or 'this translator'} has no calibration for its weights: glassformer evaluate RUN "
                "--source F --target G --fit-calibration fits one on held-out pairs, and from Python "
                "confidence.estimate.fit_calibration"
            )
        self.translator, self.calibration = translator, calibration

    def estimate(
        self,
        lines: Sequence[str],
        translations: Sequence[Translation],
        *,
        max_source_tokens: int = SearchConfig.max_source_tokens,
    ) -> list[LineConfidence]:
        """Return the confidence in the translation of each line.

        `max_source_tokens` is that of the search: no more of a line is read. Raises ConfigError unless there are as
        many, and for a translation that isn't as the model wrote it: one of several sentences that were translated
        apart, or with placeholders or other text put in.
        """
        sources, targets = _tokens(self.translator, lines, translations, max_source_tokens)
        written = self.translator.target_tokenizer.decode(targets)
        for n, (text, translation) in enumerate(zip(written, translations, strict=True)):
            if text != translation.text:
                raise ConfigError(
                    f"translations[{n}] must be as the model wrote it, got {shown(translation.text)}, whose tokens "
                    f"read {shown(text)}: confidence is known of lines that were translated whole, without "
                    "placeholders and replaced words"
                )
        seen = observe_words(self.translator, sources, targets, self.calibration.looking)
        return [self._confidence(one, line) for one, line in zip(seen, lines, strict=True)]

    def estimate_tokens(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[LineConfidence]:
        """Return the confidence in translations that are given as ids, both sides without `</s>`."""
        seen = observe_words(self.translator, sources, targets, self.calibration.looking)
        return [self._confidence(one) for one in seen]

    def _confidence(self, seen: Observed, line: str | None = None) -> LineConfidence:
        """Return the confidence; words of the source have their places in the line, else in the text of its tokens."""
        probabilities = self.calibration.probabilities(seen.features).tolist()
        words = [
            WordConfidence(word.text, word.start, word.end, p)
            for word, p in zip(seen.words, probabilities, strict=True)
        ]
        below = [
            word
            for word, coverage in zip(seen.source, seen.coverage.tolist(), strict=True)
            if coverage < self.calibration.omitted_below
        ]
        spans = self.translator.source_tokenizer.spans(line) if line is not None and below else []
        named = [Word(one.text, one.start, one.end) if line is None else _in_line(one, line, spans) for one in below]
        return LineConfidence(
            sum(probabilities) / max(1, len(probabilities)), words, [one for one in named if _can_be_missed(one.text)]
        )


def _in_line(word: Span, line: str, spans: Sequence[tuple[int, int]]) -> Word:
    """Return a word as it stands in the line whose tokens have these places; some, such as a lone space, have none."""
    places = [(start, end) for start, end in spans[word.first : word.last] if start < end]
    start, end = (places[0][0], places[-1][1]) if places else spans[word.first]  # one of several of a character
    return Word(line[start:end], start, end)


def fit_calibration(
    translator: Translator,
    sources: Sequence[str],
    translations: Sequence[Translation],
    references: Sequence[str],
    *,
    max_source_tokens: int = SearchConfig.max_source_tokens,
) -> Calibration:
    """Return the calibration that held-out lines, their translations and references teach.

    Attention is that of the run's aligning heads, where it keeps any, else of all heads of the decoder's last layer.
    The same pairs always give the same calibration. `max_source_tokens` is that of the search. Raises DataError for
    fewer than FEWEST_WORDS words, or where all or none are right, and RunError where the model gives numbers that
    aren't finite. Example: docs/howto/confidence.md.
    """
    looking = _looking(translator)
    ids = _tokens_beside(translator, sources, translations, references, max_source_tokens)
    seen, right = _judged(translator, *ids, references, looking)
    truth = torch.tensor(right, dtype=torch.float64)
    if len(truth) < FEWEST_WORDS or not 0 < truth.sum() < len(truth):
        raise DataError(
            f"a calibration takes at least {FEWEST_WORDS} words of translations, some right and some wrong, got "
            f"{len(truth):,}, of which {int(truth.sum()):,} are right: give more held-out pairs of the kind that the "
            "run was trained on"
        )
    features = torch.cat([one.features for one in seen])
    if not bool(features.isfinite().all()):
        raise RunError("the model's numbers are not finite, and can't be calibrated: is the run damaged?")
    weights, bias = fit_logistic(features, truth)
    below, found, alarms = _omission_bound(translator, *ids, seen, looking)
    return Calibration(
        weights=tuple(weights.tolist()),
        bias=bias,
        temperature=fit_temperature(features[:, 0], truth),
        layer=looking.layer,
        heads=looking.heads,
        shift=looking.shift,
        omitted_below=below,
        omissions_found=found,
        false_alarms=alarms,
        lines=len(seen),
        words=len(truth),
        right=float(truth.mean()),
    )


class Measured(NamedTuple):
    """Compares the probabilities of a calibration with the words that are right. Example: docs/howto/confidence.md."""

    model: list[Bin]
    """By the model's own probabilities of words."""
    scaled: list[Bin]
    """By these with the calibration's temperature alone."""
    words: list[Bin]
    """By the calibrated probabilities of words."""
    lines: list[Bin]
    """By lines: the share of right words that is expected, and the share that is right."""

    def __str__(self) -> str:
        count = sum(one.size for one in self.words)
        right = sum(one.size * one.right for one in self.words) / count
        errors = [calibration_error(bins) for bins in self]
        return (
            f"ECE of words {errors[2]:.4f}  ({BINS} bins, {count:,} words, {right:.1%} right; the model's own "
            f"probabilities {errors[0]:.4f}, with a temperature {errors[1]:.4f})\n"
            f"ECE of lines {errors[3]:.4f}  ({BINS} bins, share of right words)"
        )


def measure_calibration(
    translator: Translator,
    calibration: Calibration,
    sources: Sequence[str],
    translations: Sequence[Translation],
    references: Sequence[str],
    *,
    max_source_tokens: int = SearchConfig.max_source_tokens,
) -> Measured:
    """Return how well a calibration holds on other pairs than those it was fitted on.

    `max_source_tokens` is that of the search. Raises DataError if no translation has a word.

    Example: docs/howto/confidence.md.
    """
    ids = _tokens_beside(translator, sources, translations, references, max_source_tokens)
    seen, right = _judged(translator, *ids, references, calibration.looking)
    if not right:
        raise DataError("there is nothing to measure: no translation has a word")
    features = torch.cat([one.features for one in seen])
    probabilities = calibration.probabilities(features)
    counts = [len(one.words) for one in seen if one.words]
    expected, counted = (_means(values, counts) for values in (probabilities, torch.tensor(right, dtype=torch.float64)))
    return Measured(
        reliability([p for one in seen for p in one.probabilities()], right),
        reliability((features[:, 0] / calibration.temperature).sigmoid().tolist(), right),
        reliability(probabilities.tolist(), right),
        reliability(expected, counted),
    )


def _means(values: Float[Tensor, " words"], counts: Sequence[int]) -> list[float]:
    """Return the mean of each line's words."""
    return [float(part.mean()) for part in values.split(list(counts))]


def _tokens(
    translator: Translator, lines: Sequence[str], translations: Sequence[Translation], max_source_tokens: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of lines, as far as they were read, and of their translations, both without `</s>`."""
    SOURCE_TOKENS.check("max_source_tokens", max_source_tokens)
    check_lines("lines", lines)
    if len(lines) != len(translations):
        raise ConfigError(f"each line needs a translation, got {len(translations):,} for {counted(len(lines), 'line')}")
    encoded = ended(translator.source_tokenizer.encode(lines), lines, max_source_tokens, "source")
    known = translator.target_tokenizer.id_of
    for n, one in enumerate(translations):
        if (put_in := next((token for token in one.tokens if known(token) is None), None)) is not None:
            raise ConfigError(
                f"translations[{n}] has {shown(put_in)}, which isn't of the vocabulary: confidence is not known of "
                "translations with placeholders, or with terms that were put in"
            )
    targets = ids_of_prefixes(translator.target_tokenizer, [one.tokens for one in translations])
    return [ids[:-1] for ids in encoded], targets


def _tokens_beside(
    translator: Translator,
    lines: Sequence[str],
    translations: Sequence[Translation],
    references: Sequence[str],
    max_source_tokens: int,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return what `_tokens` does; DataError unless there is a reference for each line."""
    check_lines("references", references)
    if len(translations) != len(references):
        raise DataError(f"{len(translations)} translations do not match {len(references)} references")
    return _tokens(translator, lines, translations, max_source_tokens)


def _judged(
    translator: Translator,
    source_ids: Sequence[list[int]],
    target_ids: Sequence[list[int]],
    references: Sequence[str],
    looking: Looking,
) -> tuple[list[Observed], list[float]]:
    """Return the features of translations, and 1 or 0 for each of their words: whether it is right."""
    seen = observe_words(translator, source_ids, target_ids, looking)
    texts = translator.target_tokenizer.decode(target_ids)
    right = [
        float(one)
        for text, observed, reference in zip(texts, seen, references, strict=True)
        for one in right_words(text, observed.words, reference)
    ]
    return seen, right


def _looking(translator: Translator) -> Looking:
    """Return the run's aligning heads, or all of the last layer that has any."""
    model = translator.engine.config
    kept = None if translator.folder is None else read_aligning_heads(translator.folder, model)
    if kept is not None:
        return Looking(kept.layer, kept.heads, kept.shift)
    heads = model.source_heads
    if not heads:
        raise RunError("this run has no heads left in its attention to the source: its confidence can't be calibrated")
    last = max(heads)
    return Looking(last, tuple(range(heads[last])), 0)


def _can_be_missed(word: str) -> bool:
    """Return whether a source word can be named as left out: it has some letters, or is of a script without spaces."""
    letters = sum(map(str.isalnum, word))
    return letters >= _LONG or (letters > 0 and any(map(is_unspaced, word)))


def _omission_bound(
    translator: Translator,
    source_ids: Sequence[list[int]],
    target_ids: Sequence[list[int]],
    seen: Sequence[Observed],
    looking: Looking,
) -> tuple[float, float, float]:
    """Return the coverage below which a source word counts as left out, and the shares of alarms right and wrong.

    The bound is that which names FALSE_ALARMS of the words of these translations. To count what it finds, the words
    that stand for one source word are taken out of every translation, and the rest is read again.
    """
    coverage = [
        float(covered)
        for one in seen
        for word, covered in zip(one.source, one.coverage, strict=True)
        if _can_be_missed(word.text)
    ]
    if not coverage:
        return 0.0, 0.0, 0.0
    bound = sorted(coverage)[int(FALSE_ALARMS * len(coverage))]
    whole, shortened, missing = list[list[int]](), list[list[int]](), list[int]()
    for n, one in enumerate(seen):
        stands_for = one.looks_at.argmax(1).tolist() if one.source else []
        choice = sorted({place for place in stands_for if _can_be_missed(one.source[place].text)})
        if not choice:
            continue
        place = choice[n % len(choice)]
        left = [word for word, other in zip(one.words, stands_for, strict=True) if other != place]
        whole.append(source_ids[n])
        shortened.append([i for word in left for i in target_ids[n][word.first : word.last]])
        missing.append(place)
    read_again = observe_words(translator, whole, shortened, looking)
    found = [float(one.coverage[place]) < bound for one, place in zip(read_again, missing, strict=True)]
    alarms = sum(covered < bound for covered in coverage) / len(coverage)
    return bound, sum(found) / max(1, len(found)), alarms
