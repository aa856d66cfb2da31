"""Translation of lines of several sentences: sentence by sentence, or a few at a time where a run has learned that."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from glassformer.errors import ConfigError, counted, shown
from glassformer.generation.attention import Translation
from glassformer.generation.config import SEGMENTATIONS, SearchConfig, as_config
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.lines import Glossaries, LexicalUse, glossaries_of
from glassformer.generation.lexical.placeholders import compiled, protect
from glassformer.generation.segments.sentences import (
    Segments,
    join_short,
    merged_spans,
    segments_of,
    split_long,
    split_sentences,
)
from glassformer.generation.translator import Translator
from glassformer.settings.checks import Whole
from glassformer.text.tokenizer import check_lines

_SENTENCES = Whole(at_least=1)


def check_segment(
    segment: str, config: SearchConfig, *, has_prefixes: bool = False, sentences: int | None = None
) -> None:
    """Raise ConfigError for another word, and where what is set is about a line as a whole, or about sentences."""
    if segment not in SEGMENTATIONS:
        raise ConfigError(f"segment must be one of {', '.join(SEGMENTATIONS)}, got {shown(segment)}")
    if sentences is not None:
        _SENTENCES.check("sentences", sentences)
        if segment == "line":
            raise ConfigError(f"`sentences` {sentences} needs `segment` paragraph: a line goes through the model whole")
    if segment == "line":
        return
    if config.n_best > 1:
        raise ConfigError(
            f"`segment` paragraph joins one translation of each sentence: n_best must be 1, got {config.n_best}"
        )
    if has_prefixes:
        raise ConfigError("`segment` paragraph translates sentences, and `prefixes` are those of lines: leave out one")


def translate_paragraphs(
    translator: Translator,
    lines: Sequence[str],
    config: SearchConfig | None = None,
    progress: Callable[[int], None] = lambda segments: None,
    *,
    sentences: int | None = None,
    glossary: Glossaries = None,
    placeholders: str | None = None,
) -> list[Translation]:
    """Return the translation of each line: the translations of its sentences, with the white space between them.

    At most `sentences` sentences go through the model at once. Left out, it is as many as the run was trained to read
    (`TrainConfig.join_lines`, else one); a larger number gives a warning. A sentence that is too long for the model to
    read (`config.max_source_tokens`) or to answer (half of `config.max_length`) is split between clauses, or else at
    spaces; nothing is cut off. `glossary` and `placeholders` are as in `Translator.translate`; no term and no
    placeholder is split.

    A Translation has the tokens of all its segments, and their log-probabilities, each segment's with a `</s>` of its
    own. Its score is the sum of the segments' scores, each times its length penalty, divided by the length penalty of
    the whole. `progress` is called after each batch with the number of its segments. Raises ConfigError for `n_best`
    above 1.

    Example: docs/howto/documents.md.
    """
    config = as_config(config)
    rules = dict[str, Any](glossary=glossary, placeholders=placeholders)
    found = translate_in_segments(translator, lines, config, progress, sentences=sentences, **rules)
    return [joined_translation(segments, translations, config) for segments, translations in found]


def translate_in_segments(
    translator: Translator,
    lines: Sequence[str],
    config: SearchConfig,
    progress: Callable[[int], None] = lambda segments: None,
    *,
    sentences: int | None = None,
    glossary: Glossaries = None,
    placeholders: str | None = None,
) -> list[tuple[Segments, list[Translation]]]:
    """Return the segments of each line and their translations, as `translate_paragraphs` joins them."""
    check_lines("lines", lines)
    check_segment("paragraph", config, sentences=sentences)
    at_once = (translator.sentences or 1) if sentences is None else sentences
    warn_of_more_than_learned(translator.sentences, sentences, stacklevel=3)
    glossaries = glossaries_of(glossary, len(lines))
    pattern = None if placeholders is None else compiled(placeholders)
    split = [
        segments_that_fit(translator, line, config, at_once, glossary=own, pattern=pattern)
        for line, own in zip(lines, glossaries, strict=True)
    ]
    texts = [text for one in split for text in one.texts]
    of_texts = [own for one, own in zip(split, glossaries, strict=True) for _ in one.texts]
    given = None if all(own is None for own in of_texts) else of_texts
    found = iter(translator.translations(texts, config, progress, glossary=given, placeholders=placeholders))
    return [(one, [next(found) for _ in one.texts]) for one in split]


def warn_of_more_than_learned(learned: int | None, sentences: int | None, stacklevel: int) -> None:
    """Warn of more sentences at once than a run learned to read, if that is known."""
    if learned is not None and sentences is not None and sentences > learned:
        warnings.warn(
            f"this run learned to read {counted(learned, 'sentence')} at once: given {sentences}, it may leave some "
            f"out; train with --join-lines {sentences}",
            stacklevel=stacklevel + 1,
        )


def segments_that_fit(
    translator: Translator,
    line: str,
    config: SearchConfig,
    at_once: int = 1,
    *,
    glossary: Glossary | None = None,
    pattern: re.Pattern[str] | None = None,
) -> Segments:
    """Return the sentences of a line, up to `at_once` together; one that is too long for the settings in pieces.

    What the pattern of placeholders matches, and each term, stays in one piece. A placeholder counts as one token.
    """
    most = max(1, min(config.max_source_tokens - 1, config.max_length // 2))

    def length_of(text: str) -> int:
        parts = (text,) if pattern is None else protect(text, pattern).parts
        return len(parts) - 1 + sum(map(len, translator.source_tokenizer.encode(parts)))

    def whole_in(text: str) -> list[tuple[int, int]]:
        copied = [] if pattern is None else [found.span() for found in pattern.finditer(text)]
        terms = [] if glossary is None else [(found.begin, found.end) for found in glossary.find(text)]
        return merged_spans([*copied, *terms])

    sentences = split_sentences(line, whole_in(line))
    pieces = [sentences.gaps[0]]
    for text, gap in zip(sentences.texts, sentences.gaps[1:], strict=True):
        pieces += [*split_long(text, length_of, most, whole_in(text)), gap]
    return join_short(segments_of(pieces), length_of, most, at_once)


def joined_translation(segments: Segments, translations: Sequence[Translation], config: SearchConfig) -> Translation:
    """Return the translations of a line's segments as one."""
    gains = [gain for one in translations for gain in one.token_log_probs]
    log_prob = sum((one.log_prob for one in translations), start=0.0)
    judged = sum(one.score * config.normaliser(len(one.token_log_probs)) for one in translations if one.token_log_probs)
    return Translation(
        text=segments.joined([one.text for one in translations]),
        score=judged / config.normaliser(len(gains)) if gains else 0.0,
        log_prob=log_prob,
        tokens=[token for one in translations for token in one.tokens],
        token_log_probs=gains,
        lexical=use_of_parts(translations),
        cut=any(one.cut for one in translations),
    )


def use_of_parts(parts: Sequence[Translation]) -> LexicalUse | None:
    """Return the terms and placeholders of all parts of a line together; None where there were none to look for."""
    uses = [one.lexical for one in parts if one.lexical is not None]
    return sum(uses, start=LexicalUse()) if uses else None
