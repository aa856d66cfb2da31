"""metrics.jsonl, written and read: a line for each report and each validation of a training, and one at its end where
the mean of several weights became the model. Loads no torch.

{"update": 20, "epoch": 1, "loss": 5.1, "tokens_per_second": 9000, "seconds": 3.1, "learning_rate": 4e-05}
{"update": 250, "valid_loss": 4.2, "metric": "bleu", "score": 3.5, "seconds": 41.0}
{"update": 250, "averaged": 5, "averaged_loss": 4.1, "metric": "bleu", "averaged_score": 3.9, "seconds": 42.0}
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from glassformer.decoding import Natural, decode_json, read_bounded_lines
from glassformer.files import open_to_append, replacing
from glassformer.scoring.scores import LOWER_IS_BETTER

LONGEST = 1 << 16
"""Most bytes of a line; those that training writes have 150."""


@dataclass(frozen=True)
class Report:
    """Figures of the last few updates; None where a line doesn't say them."""

    update: int
    loss: float | None
    """Training loss with label smoothing, nats per token; None if all these updates were left out."""
    learning_rate: float | None
    seconds: float | None
    """Time spent training and validating so far."""
    epoch: int | None
    """Number of the epoch, from 1."""
    tokens_per_second: float | None = None
    left_out: int = 0
    """Updates left out so far, because they would have done harm."""

    def to_json(self) -> dict[str, Any]:
        """Return the line of the file."""
        line: dict[str, Any] = {"update": self.update, "epoch": self.epoch, "loss": self.loss}
        line |= {"tokens_per_second": self.tokens_per_second, "seconds": self.seconds}
        line |= {"learning_rate": self.learning_rate}
        return line | ({"left_out": self.left_out} if self.left_out else {})


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

    def to_json(self) -> dict[str, Any]:
        """Return the line of the file."""
        line = {"update": self.update, "valid_loss": self.loss, "metric": self.metric, "score": self.score}
        return line | {"seconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class Averaged(Validation):
    """The validation of the mean of several weights, which became the model of a finished training."""

    validations: int
    """Number of validations whose weights were averaged."""

    def to_json(self) -> dict[str, Any]:
        """Return the line of the file. Its names are others than a validation's: it is no point of the curves."""
        line = {"update": self.update, "averaged": self.validations, "averaged_loss": self.loss, "metric": self.metric}
        return line | {"averaged_score": self.score, "seconds": self.seconds}


@dataclass(frozen=True)
class Metrics:
    """The lines of metrics.jsonl, each kind by rising updates."""

    reports: list[Report]
    validations: list[Validation]
    averaged: Averaged | None = None
    """The validation of the mean of several weights; None where the model is of single ones."""

    @property
    def kept(self) -> Validation | None:
        """The validation of the weights in the run folder: of a mean, or the best one."""
        return self.averaged or self.best

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
        ends = [] if self.averaged is None else [self.averaged]
        known = (
            next((line.seconds for line in reversed(lines) if line.seconds is not None), None)
            for lines in (self.reports, self.validations, ends)
        )
        return max((seconds for seconds in known if seconds is not None), default=None)


def append_metrics(path: Path, figures: Report | Validation) -> None:
    """Add a line to a metrics.jsonl."""
    with os.fdopen(open_to_append(path), "a", encoding="utf-8") as file:
        file.write(json.dumps(figures.to_json()) + "\n")


def drop_metrics_after(path: Path, update: int, validated: int) -> None:
    """Remove the lines that a continued run will write again, and what is no line: cut off, or damaged.

    It has made so many updates, and its last validation after so many of them (-1: none). Another may have been made
    since, of the very same update. What became of the mean of its weights is written again at its end.
    Raises RunError where it can't be written to, before any work is done for its lines.
    """
    if not os.path.lexists(path):
        return
    os.close(open_to_append(path))
    kept = []
    for line in read_bounded_lines(path, LONGEST):
        try:
            figures = decode_json(line, _Line)
        except ValueError:  # the disk was full, or the process was killed while writing
            continue
        if figures.averaged is None and figures.update <= (update if figures.valid_loss is None else validated):
            kept.append(line.rstrip(b"\n") + b"\n")
    with replacing(path) as file:
        file.write(b"".join(kept))


def read_metrics(path: Path) -> Metrics:
    """Read the lines that can be used: none if there is no file yet, and not one that was cut off or damaged.

    Where the updates go back, because a run went on from an earlier one, the lines that were written first are left
    out.
    """
    reports: list[Report] = []
    validations: list[Validation] = []
    averaged: Averaged | None = None
    for line in read_bounded_lines(path, LONGEST):
        try:
            figures = decode_json(line, _Line).figures()
        except ValueError:
            continue
        if figures is None:
            continue
        averaged = figures if isinstance(figures, Averaged) else None  # the last line, or none
        if isinstance(figures, Report):
            _drop_from(reports, figures.update)
            _drop_from(validations, figures.update)
            reports.append(figures)
        elif averaged is None:
            _drop_from(reports, figures.update + 1)  # a report of the same update comes before
            _drop_from(validations, figures.update)
            validations.append(figures)
    return Metrics(reports, validations, averaged)


def _drop_from(lines: list[Any], update: int) -> None:
    while lines and lines[-1].update >= update:
        lines.pop()


class _Line(Struct, frozen=True):
    """A line of any kind; a report is what has a loss, a validation what has a valid_loss, a metric and a score."""

    update: Natural
    seconds: float | None = None
    loss: float | UnsetType | None = UNSET
    learning_rate: float | None = None
    epoch: Natural | None = None
    tokens_per_second: float | None = None
    left_out: Natural = 0
    valid_loss: float | None = None
    metric: str | None = None
    score: float | None = None
    averaged: Natural | None = None
    averaged_loss: float | None = None
    averaged_score: float | None = None

    def figures(self) -> Report | Validation | None:
        """Return the report or the validation, which may be that of a mean; None where it is neither."""
        if self.averaged is not None:
            loss, metric, score = self.averaged_loss, self.metric, self.averaged_score
            if loss is None or metric is None or score is None:
                return None
            return Averaged(self.update, loss, metric, score, self.seconds, validations=self.averaged)
        if self.valid_loss is not None and self.metric is not None and self.score is not None:
            return Validation(self.update, self.valid_loss, self.metric, self.score, self.seconds)
        if self.loss is UNSET:
            return None
        return Report(
            update=self.update,
            loss=self.loss,
            learning_rate=self.learning_rate,
            seconds=self.seconds,
            epoch=self.epoch,
            tokens_per_second=self.tokens_per_second,
            left_out=self.left_out,
        )
