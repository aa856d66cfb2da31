"""How translations are searched for."""

import math
from dataclasses import dataclass

from glassformer.errors import ConfigError

STOPPING = ("exact", "heuristic", "first")
PENALTIES = ("wu", "plain")


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Beam search (greedy with a beam of 1), or sampling."""

    beam: int = 5
    """Hypotheses kept at each step; 1 is greedy search."""
    n_best: int = 1
    """Translations returned for each source, best first; at most the beam."""
    length_penalty: float = 1.0
    """Exponent alpha by which long translations are favoured: log-probability / penalty; 0 compares sums."""
    penalty: str = "plain"
    """plain: length^alpha. wu: ((5 + length) / 6)^alpha (Wu et al. 2016, section 7). Length counts </s>."""
    stopping: str = "heuristic"
    """exact: until no open hypothesis can still win. heuristic: once as many as the beam have finished and none still
    open has, at its present length, a better score than all of these. first: once as many as the beam have
    finished. (Hugging Face's early_stopping "never", False and True; first is CTranslate2's patience 1.)"""
    consensus: bool = False
    """Choose of all that the beam has found, or of the n_best draws, not the likeliest translation but the one that the
    others agree with most (minimum Bayes risk: Kumar & Byrne 2004); worth a beam of 20."""
    coverage_penalty: float = 0.0
    """Beam search: how much a score falls for source tokens that got less than one token's attention in all: times
    the sum of log(min(attention, 1)), attention of the last layer, mean of its heads (Wu et al. 2016, section 7)."""
    min_length: int = 0
    """Shortest translation in tokens, without </s>."""
    no_repeat_ngram: int = 0
    """No sequence of so many tokens comes twice in a translation; 0 allows all."""
    replace_unknown: bool = False
    """Put the source token that got the most attention in place of each unknown token."""
    sample: bool = False
    """Draw each token from the model's distribution instead of searching; n_best draws for each source."""
    temperature: float = 1.0
    """Sampling: below 1 sharpens the distribution, above 1 flattens it."""
    top_k: int = 0
    """Sampling: draw from the k likeliest tokens; 0 from all."""
    top_p: float = 1.0
    """Sampling: draw from the likeliest tokens that together reach this probability (Holtzman et al. 2020)."""
    seed: int = 1
    """Sampling: the seed."""
    max_length: int = 256
    """Longest translation in tokens; also at most 3 tokens for each source token, plus 50."""
    max_source_tokens: int = 1024
    """A longer source is cut, with a warning."""
    batch_tokens: int = 4096
    """Most source tokens, times the beam, in a batch, padding included."""
    batch_lines: int = 0
    """Most lines in a batch; 0: as many as batch_tokens allows."""

    def __post_init__(self) -> None:
        if self.max_source_tokens < 2:
            raise ConfigError(f"max_source_tokens must be at least 2 (with </s>), got {self.max_source_tokens}")
        for name in ("beam", "n_best", "max_length", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.n_best > self.beam and not self.sample:
            raise ConfigError(f"n_best must be at most the beam, got n_best {self.n_best} and beam {self.beam}")
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"seed must be at least 0 and less than 2^32, got {self.seed}")
        if not 0 <= self.length_penalty <= 20:
            raise ConfigError(f"length_penalty must be at least 0 and at most 20, got {self.length_penalty}")
        for name, values in (("penalty", PENALTIES), ("stopping", STOPPING)):
            if getattr(self, name) not in values:
                raise ConfigError(f"{name} must be one of {', '.join(values)}, got {getattr(self, name)!r}")
        if not 1e-6 <= self.temperature <= 1e6:
            raise ConfigError(f"temperature must be at least 1e-6 and at most 1e6, got {self.temperature}")
        for name in ("top_k", "min_length", "no_repeat_ngram", "batch_lines"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.min_length > self.max_length:
            raise ConfigError(
                f"min_length must be at most max_length, got min_length {self.min_length}, max_length {self.max_length}"
            )
        if not 0 <= self.coverage_penalty < math.inf:
            raise ConfigError(f"coverage_penalty must be at least 0 and finite, got {self.coverage_penalty}")
        if self.coverage_penalty and (self.sample or self.beam == 1):
            raise ConfigError(
                "coverage_penalty chooses among the hypotheses of a beam: it needs beam above 1, no sample"
            )
        if self.consensus and (self.n_best if self.sample else self.beam) == 1:
            raise ConfigError(
                "consensus chooses among several translations: it needs beam above 1, or sample with n_best above 1"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def normaliser(self, length: int) -> float:
        """What a log-probability over `length` tokens is divided by to become a score."""
        base = length if self.penalty == "plain" else (5 + length) / 6
        return base**self.length_penalty
