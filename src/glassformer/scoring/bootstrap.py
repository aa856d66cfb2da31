"""Paired bootstrap resampling: whether a difference of two scores is more than the luck of the test set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.errors import DataError, check_texts
from glassformer.memory import check_room
from glassformer.scoring.scores import bleu_scorer, pick_bleu_tokenizer

SAMPLES = 1000
"""Number of test sets that are drawn, with replacement, from the lines of the given one: as many as sacreBLEU draws."""
BYTES_A_LINE = 90_000
"""Memory that sacreBLEU takes for a line: its numbers in all test sets drawn, and the 18 counts of chrF in each."""


@dataclass(frozen=True, kw_only=True)
class PairedScore:
    """One score of two systems on the same lines, and how likely their difference is by luck.

    Example: docs/howto/track.md.
    """

    name: str
    first: float
    second: float
    first_margin: float
    """Half of the interval that holds the first score in 95 % of the test sets drawn."""
    second_margin: float
    p_value: float
    """Share of the test sets drawn on which two equal systems would differ as much or more.

    It is at least 2 ^ (1 - n), where the systems differ on n different lines: n fair coins all fall the same way with
    that probability. Resampling can't show it, because it draws from these lines alone.
    """
    signature: str
    """sacreBLEU's signature."""

    @property
    def difference(self) -> float:
        """Return the second score less the first."""
        return self.second - self.first


def paired_bootstrap(
    first: Sequence[str], second: Sequence[str], references: Sequence[str], *, tokenize: str = "auto"
) -> list[PairedScore]:
    """Return BLEU and chrF of two systems, with sacreBLEU's paired bootstrap resampling (Koehn 2004; Post 2018).

    `tokenize` is as in `score`. Raises DataError where the lines don't match, OutOfMemoryError where they are
    more than memory holds, and ArgumentError for what is no line.

    >>> good, bad = [f"a b c d {n}" for n in range(7)], [f"a b d d {n}" for n in range(7)]
    >>> [(one.name, one.p_value < 0.05) for one in paired_bootstrap(bad, good, good)]
    [('BLEU', True), ('chrF2', True)]
    """
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    for name, lines in (("first", first), ("second", second), ("references", references)):
        check_texts(name, lines)
    if not len(first) == len(second) == len(references) or not references:
        raise DataError(
            f"both systems and the references must have the same number of lines, at least 1, got {len(first)}, "
            f"{len(second)} and {len(references)}"
        )
    check_room(len(references) * BYTES_A_LINE, f"resampling {len(references):,} lines", "take fewer")
    scorers = {
        "BLEU": bleu_scorer(pick_bleu_tokenizer(references) if tokenize == "auto" else tokenize),
        "chrF": CHRF(),
    }
    differing = {line for line in zip(first, second, references, strict=True) if line[0].split() != line[1].split()}
    least = 2.0 ** -max(0, len(differing) - 1)
    systems: list[tuple[str, Sequence[str]]] = [("first", list(first)), ("second", list(second))]
    signatures, scores = PairedTest(systems, scorers, [list(references)], test_type="bs", n_samples=SAMPLES)()
    found: list[PairedScore] = []
    for name, signature in signatures.items():
        one, other = (_figures(result) for result in scores[name])
        found.append(
            PairedScore(
                name=name,
                first=one["score"],
                second=other["score"],
                first_margin=one["ci"],
                second_margin=other["ci"],
                # Of equal systems sacreBLEU says 0.001: no test set drawn differs from another.
                p_value=1.0 if one["score"] == other["score"] else max(least, other["p_value"]),
                signature=str(signature),
            )
        )
    return found


def _figures(result: Any) -> dict[str, float]:
    """Return the numbers of a result of sacreBLEU, which are partly numpy's."""
    return {name: float(value) for name, value in vars(result).items() if value is not None}
