"""Decide when `watch` warns of a head: its entropy is nearly gone, or its scores run away."""

import math

from glassformer.capture.sightings import HIGHEST, Alarm, Figures

COLLAPSED, ALIVE = 0.02, 0.1
"""A head is warned of when its entropy falls below the first, if it was above the second before.

Both are shares of the largest entropy that is possible, as means over all queries of a step.
"""
LARGE, GROWN = 50.0, 2.0
"""A head is warned of when its largest score is above the first, and so many times what it was when watching began.

bfloat16 has steps of 0.25 between 32 and 64, so there a weight may be wrong by an eighth, exp(0.125).
"""


class AttentionWarning(UserWarning):
    """A head whose attention collapses, or whose scores run away, in the training that `watch` looks at.

    Example: docs/howto/watch.md.
    """


class Alarms:
    """Compares the figures of each step with those before."""

    def __init__(self) -> None:
        self._highest: dict[tuple[str, int], float] = {}
        """The highest entropy that a head has had; what a collapsed head is at, once it was warned of."""
        self._reference: dict[tuple[str, int], float] = {}
        """The largest score that a head's is compared with: the first, then each that was warned of."""
        self._broken: dict[str, set[int]] = {}
        """The heads of each layer whose last figures were not numbers."""

    def judge(self, figures: Figures) -> list[Alarm]:
        """Return what is alarming in the figures of the next step. A head is warned of once, until it gets worse."""
        found: list[Alarm] = []
        for layer, facts in figures.items():
            broken = {n for values in facts.values() for n, value in enumerate(values) if not math.isfinite(value)}
            new = broken - self._broken.get(layer, set())
            found += [Alarm(layer, head, "nan", math.nan, math.nan) for head in sorted(new)]
            self._broken[layer] = broken
            for head, entropy in enumerate(facts.get("entropy", ())):
                if head not in broken:
                    found += self._judge_entropy(layer, head, entropy)
            scores = next((facts[fact] for fact in HIGHEST if fact in facts), ())
            for head, score in enumerate(scores):
                if head not in broken:
                    found += self._judge_score(layer, head, score)
        return found

    def _judge_entropy(self, layer: str, head: int, entropy: float) -> list[Alarm]:
        highest = self._highest.get((layer, head), 0.0)
        if entropy < COLLAPSED and highest >= ALIVE:
            self._highest[layer, head] = entropy  # warned of again only after it recovered
            return [Alarm(layer, head, "collapse", highest, entropy)]
        self._highest[layer, head] = max(highest, entropy)
        return []

    def _judge_score(self, layer: str, head: int, score: float) -> list[Alarm]:
        reference = self._reference.setdefault((layer, head), score)
        if score > LARGE and score >= GROWN * reference:
            self._reference[layer, head] = score
            return [Alarm(layer, head, "runaway", reference, score)]
        return []
