"""Translation of lines of several sentences, sentence by sentence."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from glassformer.errors import ConfigError, shown
from glassformer.generation.attention import Translation
from glassformer.generation.config import SearchConfig, as_config
from glassformer.generation.segments.sentences import Segments, segments_of, split_long, split_sentences
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import check_lines

Segment = Literal["line", "paragraph"]
SEGMENTS: tuple[Segment, ...] = get_args(Segment)


def check_segment(segment: str, config: SearchConfig, *, has_prefixes: bool = False) -> None:
    """Raise ConfigError for another word, and where what is set is about a line as a whole."""
    if segment not in SEGMENTS:
        raise ConfigError(f"segment must be one of {', '.join(SEGMENTS)}, got {shown(segment)}")
    if segment == "line":
        return
    if config.n_best > 1:
        raise ConfigError(
            f"segment paragraph joins one translation of each sentence: n_best must be 1, got {config.n_best}"
        )
    if has_prefixes:
        raise ConfigError("segment paragraph translates sentences, and prefixes are those of lines: leave out one")


def translate_paragraphs(
    translator: Translator,
    lines: Sequence[str],
    config: SearchConfig | None = None,
    progress: Callable[[int], None] = lambda sentences: None,
) -> list[Translation]:
    """Return the translation of each line, made of those of its sentences, with the white space between them.

    A sentence longer than the model reads or may answer (`config.max_source_tokens`, half of `config.max_length`) is
    split between clauses, or else at spaces: nothing is cut off. Tokens and their log-probabilities are those of
    all sentences, each with a `</s>` of its own; `score` is their sum divided by the length penalty of all. `progress`
    is told after each batch how many sentences that were. Raises ConfigError for `n_best` above 1.

    Example: docs/howto/documents.md.
    """
    config = as_config(config)
    check_lines("lines", lines)
    check_segment("paragraph", config)
    split = [segments_that_fit(translator, line, config) for line in lines]
    found = iter(translator.translations([text for one in split for text in one.texts], config, progress))
    return [_joined(one, [next(found) for _ in one.texts], config) for one in split]


def segments_that_fit(translator: Translator, line: str, config: SearchConfig) -> Segments:
    """Return the sentences of a line; one that is too long for the settings in pieces."""
    most = max(1, min(config.max_source_tokens - 1, config.max_length // 2))

    def length_of(text: str) -> int:
        (ids,) = translator.source_tokenizer.encode([text])
        return len(ids)

    whole = split_sentences(line)
    pieces = [whole.gaps[0]]
    for text, gap in zip(whole.texts, whole.gaps[1:], strict=True):
        pieces += [*split_long(text, length_of, most), gap]
    return segments_of(pieces)


def _joined(segments: Segments, translations: Sequence[Translation], config: SearchConfig) -> Translation:
    """Return the translations of a line's sentences as one."""
    gains = [gain for one in translations for gain in one.token_log_probs]
    log_prob = sum((one.log_prob for one in translations), start=0.0)
    return Translation(
        text=segments.joined([one.text for one in translations]),
        score=log_prob / config.normaliser(len(gains)) if gains else 0.0,
        log_prob=log_prob,
        tokens=[token for one in translations for token in one.tokens],
        token_log_probs=gains,
        cut=any(one.cut for one in translations),
    )
