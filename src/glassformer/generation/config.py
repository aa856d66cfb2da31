"""Settings of the search for translations."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from glassformer.errors import ArgumentError, ConfigError, shown
from glassformer.settings.checks import LONGEST, BatchTokens, Choice, Natural, Number, Seed, Whole, check_settings
from glassformer.settings.docstrings import with_fields

HYPOTHESES = Whole(at_least=1, limit=1024)
Hypotheses = Annotated[int, HYPOTHESES]
SOURCE_TOKENS = Whole(at_least=2, limit=LONGEST, note="with </s>")
STOPPING = ("exact", "heuristic", "first")
PENALTIES = ("wu", "plain")
Segmentation = Literal["line", "paragraph"]
"""A way for a line to go through the model: whole, or sentence by sentence."""
SEGMENTATIONS: tuple[Segmentation, ...] = get_args(Segmentation)
OF_DRAWS = ("temperature", "top_k", "top_p")
"""Settings that say how the next token is drawn; a search has no use for them."""


@with_fields
@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Beam search (greedy with a beam of 1), or sampling.

    Raises ConfigError for values out of range, and for settings that exclude one another.

    >>> greedy = SearchConfig(beam=1)
    >>> careful = SearchConfig(beam=20, consensus=True, no_repeat_ngram=3)
    >>> draws = SearchConfig(sample=True, top_p=0.9, n_best=4, seed=7)
    """

    beam: Hypotheses = 5
    """Hypotheses kept at each step; 1 is greedy search."""
    n_best: Hypotheses = 1
    """Translations returned for each source, best first; at most the beam."""
    length_penalty: Annotated[float, Number(at_least=0, at_most=20)] = 1.0
    """Exponent alpha of the penalty in score = log-probability / penalty. A larger one favours long translations; 0
    compares sums."""
    penalty: Annotated[str, Choice(*PENALTIES)] = "plain"
    """plain: length^alpha. wu: ((5 + length) / 6)^alpha (Wu et al. 2016, section 7). Length counts </s>."""
    stopping: Annotated[str, Choice(*STOPPING)] = "heuristic"
    """When a search stops. first: once as many hypotheses as the beam have finished. heuristic: as first, but only
    once the best open one, at its present length, scores no better than the worst of these. exact: once no open one
    can still win. (Hugging Face's early_stopping True, False and "never"; first is CTranslate2's patience 1.)"""
    consensus: bool = False
    """Choose of all that the beam has found, or of the n_best draws, not the likeliest translation but the one that the
    others agree with most (minimum Bayes risk: Kumar & Byrne 2004); worth a beam of 20."""
    coverage_penalty: Annotated[float, Number(at_least=0, less_than=math.inf, limit=1e6)] = 0.0
    """Beam search: penalise source tokens whose attention adds up to less than 1. The score gets this number times the
    sum of log(min(attention, 1)), with the last layer's attention, averaged over its heads (Wu et al. 2016, section 7).
    """
    min_length: Natural = 0
    """Shortest translation in tokens, without </s>."""
    no_repeat_ngram: Annotated[int, Whole(at_least=0, limit=1024)] = 0
    """No sequence of so many tokens comes twice in a translation; 0 allows all."""
    replace_unknown: bool = False
    """Put the source token that got the most attention in place of each unknown token."""
    sample: bool = False
    """Draw each token from the model's distribution instead of searching; n_best draws for each source."""
    temperature: Annotated[float, Number(at_least=1e-6, at_most=1e6)] = 1.0
    """Sampling: below 1 sharpens the distribution, above 1 flattens it."""
    top_k: Natural = 0
    """Sampling: draw from the k likeliest tokens; 0 from all."""
    top_p: Annotated[float, Number(above=0, at_most=1)] = 1.0
    """Sampling: draw from the likeliest tokens that together reach this probability (Holtzman et al. 2020)."""
    seed: Seed = 1
    """Sampling: the seed."""
    max_length: Annotated[int, Whole(at_least=1, limit=LONGEST)] = 256
    """Longest translation in tokens; also at most 3 tokens for each source token, plus 50."""
    max_source_tokens: Annotated[int, SOURCE_TOKENS] = 1024
    """A longer source is cut, with a warning."""
    batch_tokens: BatchTokens = 4096
    """Most source tokens, times the beam, in a batch, padding included."""
    batch_lines: Natural = 0
    """Most lines in a batch; 0: as many as batch_tokens allows."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.n_best > self.beam and not self.sample:
            raise ConfigError(f"n_best must be at most the beam, got n_best {self.n_best} and beam {self.beam}")
        if self.min_length > self.max_length:
            raise ConfigError(
                f"min_length must be at most max_length, got min_length {self.min_length}, max_length {self.max_length}"
            )
        if self.coverage_penalty and (self.sample or self.beam == 1):
            raise ConfigError(
                "coverage_penalty chooses among the hypotheses of a beam: it needs a `beam` above 1, and no `sample`"
            )
        if self.consensus and (self.n_best if self.sample else self.beam) == 1:
            raise ConfigError(
                "`consensus` chooses among several translations: it needs a `beam` above 1, or `sample` with n_best "
                "above 1"
            )
        if not self.sample and (
            given := [name for name in OF_DRAWS if getattr(self, name) != getattr(SearchConfig, name)]
        ):
            raise ConfigError(f"{given[0]} is for draws: give `sample` too, or leave it out")

    def in_words(self, precision: object) -> str:
        """Return the beam, the settings that aren't as they come, and the precision: what decides a score.

        >>> SearchConfig(max_length=99).in_words("float32")
        'beam 5, max_length 99, float32'
        """
        default = SearchConfig()
        changed = {name: value for name, value in vars(self).items() if value != getattr(default, name)}
        named = [f"{name} {value}" for name, value in ({"beam": self.beam} | changed).items()]
        return ", ".join([*named, str(precision)])

    def normaliser(self, length: int) -> float:
        """Return what a log-probability over `length` tokens is divided by to become a score."""
        base = length if self.penalty == "plain" else (5 + length) / 6
        return base**self.length_penalty


def as_config(given: SearchConfig | None, default: SearchConfig | None = None) -> SearchConfig:
    """Return the settings that a caller gave, or the default where there are none; ArgumentError for anything else."""
    if given is None:
        return default or SearchConfig()
    if not isinstance(given, SearchConfig):
        raise ArgumentError(f"config must be a SearchConfig, got {shown(given)}: pass SearchConfig(beam=5), say")
    return given


def check_token_by_token(config: SearchConfig) -> None:
    """Raise ConfigError for settings with which a translation isn't known token by token."""
    if config.beam > 1 and not config.sample:
        raise ConfigError(f"stream needs beam 1 or sample: a beam of {config.beam} decides only at the end")
    if config.consensus:
        raise ConfigError("stream can't choose by consensus: it writes one translation, token by token")
    if config.replace_unknown:
        raise ConfigError("stream can't replace_unknown: which source token got most attention is known at the end")
