"""Rules about what a search may not choose next, applied to log-probabilities, which are not normalised again."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import ArgumentError, ConfigError, check_sequence, counted, shown
from glassformer.generation.config import SearchConfig
from glassformer.text.tokenizer import EOS, Tokenizer, check_lines

Prefixes = Sequence[str | Sequence[str]]
"""Give the beginning of each translation: a text, or tokens of the vocabulary. An empty one leaves it free."""


class Constraints:
    """Rules of a search over B sources with W hypotheses each: forced first tokens, a least length, no n-gram twice."""

    def __init__(self, config: SearchConfig, prefixes: list[list[int]] | None, width: int) -> None:
        self._min_length = config.min_length
        self._ngram = config.no_repeat_ngram
        self._prefixes = prefixes or []
        self._width = width
        self._longest = max(map(len, self._prefixes), default=0)

    def apply(
        self,
        log_probs: Float[Tensor, "rows classes"],
        ids: Int[Tensor, "sources width length"],
        open_: list[int],
    ) -> None:
        """Set to -inf, in place, what may not follow `ids`; `open_` are the sources that the rows belong to.

        Where the rules leave nothing, the target ends.
        """
        length = ids.shape[2]
        end = log_probs[:, EOS].clone()
        forced = [(n, self._prefixes[b][length]) for n, b in enumerate(open_) if self._is_forced(b, length)]
        kept = [log_probs[self._width * n : self._width * (n + 1), token].clone() for n, token in forced]
        if self.forbids_end(length):
            log_probs[:, EOS] = -torch.inf
        if self._ngram and length >= self._ngram:
            self._block_repeats(log_probs, ids.flatten(0, 1).tolist())
            nothing = log_probs.amax(1) == -torch.inf
            log_probs[nothing, EOS] = end[nothing]
        for (n, token), kept_log_probs in zip(forced, kept, strict=True):
            rows = log_probs[self._width * n : self._width * (n + 1)]
            rows.fill_(-torch.inf)
            rows[:, token] = kept_log_probs

    def forbids_end(self, length: int) -> bool:
        """Return whether targets of this length may not end yet."""
        return length < self._min_length

    def needs_all(self, length: int) -> bool:
        """Return whether what may follow targets of this length depends on more than their length."""
        return bool(self._ngram) or length < self._longest

    def _is_forced(self, source: int, length: int) -> bool:
        return length < self._longest and length < len(self._prefixes[source])

    def _block_repeats(self, log_probs: Tensor, rows: list[list[int]]) -> None:
        size, classes = self._ngram, log_probs.shape[1]
        blocked = [
            (row, token)
            for row, ids in enumerate(rows)
            for start, token in enumerate(ids[size - 1 :])
            if token < classes and ids[start : start + size - 1] == ids[len(ids) - size + 1 :]
        ]  # a token that stands for a text may lie beyond the classes, where the model writes none
        if blocked:
            rows_and_tokens = torch.tensor(blocked, device=log_probs.device)
            log_probs[rows_and_tokens[:, 0], rows_and_tokens[:, 1]] = -torch.inf


def ids_for_lines(tokenizer: Tokenizer, prefixes: Prefixes, count: int) -> list[list[int]]:
    """Return what `ids_of_prefixes` does for so many lines; ConfigError unless each has a prefix."""
    check_sequence("prefixes", prefixes)
    if len(prefixes) != count:
        raise ConfigError(f"prefixes must be one for each line, got {len(prefixes):,} for {counted(count, 'line')}")
    return ids_of_prefixes(tokenizer, prefixes)


def ids_of_prefixes(tokenizer: Tokenizer, prefixes: Prefixes) -> list[list[int]]:
    """Return the ids of texts, or of tokens; ConfigError for a token that the vocabulary lacks."""
    texts = [prefix if isinstance(prefix, str) else "" for prefix in prefixes]
    check_lines("prefixes", texts)
    ids = tokenizer.encode(texts)
    for n, prefix in enumerate(prefixes):
        if not isinstance(prefix, Sequence):
            raise ArgumentError(f"prefixes[{n}] must be text or tokens, got {shown(prefix)}: '' prescribes nothing")
        if not isinstance(prefix, str):
            ids[n] = [_id_of(tokenizer, token, n) for token in prefix]
    return ids


def _id_of(tokenizer: Tokenizer, token: str, number: int) -> int:
    found = tokenizer.id_of(token) if isinstance(token, str) else None
    if not found:  # `</s>` has the id 0
        raise ConfigError(f"prefixes[{number}] must be tokens of the target's vocabulary, got {shown(token)}")
    return found
