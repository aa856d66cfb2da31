"""metrics.jsonl, read: the figures of a training along its updates. Loads no torch."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.text.scores import LOWER_IS_BETTER


@dataclass(frozen=True)
class Report:
    """Figures of the last few updates."""

    update: int
    loss: float | None
    """Of training, nats per token, with label smoothing; None if all these updates were left out."""
    learning_rate: float | None
    seconds: float | None
    """Time spent training and validating so far."""
    epoch: int | None


@dataclass(frozen=True)
class Validation:
    """Figures of one validation."""

    update: int
    loss: float
    """Negative log-likelihood, nats per token."""
    metric: str
    score: float
    seconds: float | None = None
    """Time spent training and validating so far."""


@dataclass(frozen=True)
class Metrics:
    """The lines of metrics.jsonl, each kind by rising updates."""

    reports: list[Report]
    validations: list[Validation]

    @property
    def best(self) -> Validation | None:
        """The validation with the best score; of equal ones that with the lower loss, then the first."""
        if not self.validations:
            return None
        sign = 1 if self.validations[-1].metric in LOWER_IS_BETTER else -1
        return min(self.validations, key=lambda one: (sign * one.score, one.loss))

    @property
    def updates(self) -> int | None:
        """The last update that is recorded."""
        return max((line.update for line in (*self.reports[-1:], *self.validations[-1:])), default=None)

    @property
    def seconds(self) -> float | None:
        """The time spent training and validating, as of the last line that says it."""
        known = (
            next((line.seconds for line in reversed(lines) if line.seconds is not None), None)
            for lines in (self.reports, self.validations)
        )
        return max((seconds for seconds in known if seconds is not None), default=None)


def read_metrics(path: Path) -> Metrics:
    """The lines that can be used: none if there is no file yet, and not one that was cut off.

    Where the updates go back, because a run went on from an earlier one, what was written first is left out.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    reports: list[Report] = []
    validations: list[Validation] = []
    for line in lines:
        figures = _parse(line)
        if (validation := _validation(figures)) is not None:
            _drop_from(reports, validation.update + 1)  # a report of the same update comes before
            _drop_from(validations, validation.update)
            validations.append(validation)
        elif (report := _report(figures)) is not None:
            _drop_from(reports, report.update)
            _drop_from(validations, report.update)
            reports.append(report)
    return Metrics(reports, validations)


def _drop_from(lines: list[Any], update: int) -> None:
    while lines and lines[-1].update >= update:
        lines.pop()


def _parse(line: str) -> Mapping[str, Any]:
    try:
        figures = json.loads(line)
    except ValueError:
        figures = None
    return figures if isinstance(figures, dict) else {}


def _report(figures: Mapping[str, Any]) -> Report | None:
    update = _whole(figures.get("update"))
    if update is None or "loss" not in figures:
        return None
    loss, rate, seconds = (_number(figures.get(name)) for name in ("loss", "learning_rate", "seconds"))
    return Report(update, loss, rate, seconds, _whole(figures.get("epoch")))


def _validation(figures: Mapping[str, Any]) -> Validation | None:
    update, metric = _whole(figures.get("update")), figures.get("metric")
    loss, score = (_number(figures.get(name)) for name in ("valid_loss", "score"))
    if update is None or loss is None or score is None or not isinstance(metric, str):
        return None
    return Validation(update, loss, metric, score, _number(figures.get("seconds")))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
