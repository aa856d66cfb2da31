"""Sentences about the shortcomings of a finished training, and the command that trains on from it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from glassformer.pairs.mixture import are_weighted
from glassformer.run.config import ENDS
from glassformer.run.metrics import Metrics, Validation
from glassformer.scoring.scores import LOWER_IS_BETTER
from glassformer.settings.checks import MOST
from glassformer.training.config import INHERITED, TrainConfig

STEEP = 0.05
"""Share by which the validation loss fell over the last half before the cooldown, above which it fell steeply."""
RISEN = 0.1
"""The model memorises its pairs where the last validation loss is above the lowest by more than this share of it."""


@dataclass(frozen=True)
class Concern:
    """An aim that a training didn't reach."""

    sentence: str
    times: int
    """The training to advise is this many times as long; 0: a longer one would not help."""

    def __str__(self) -> str:
        return self.sentence


def concerns(config: TrainConfig, metrics: Metrics, updates: int, warmup: int) -> Iterator[Concern]:
    """Yield a concern for each aim that a training of so many `updates` didn't reach."""
    validations, cooldown = metrics.validations, (1 - config.cooldown) * updates
    memorises = updates >= warmup and not _reads_once(config, metrics) and _memorises(metrics, cooldown)
    only_cost = config.from_ is not None and not memorises and _is_as_it_began(metrics)
    if updates < warmup:
        yield Concern(
            f"the learning rate never reached its peak: {updates:,} of {warmup:,} updates of its warm-up were made",
            10 if config.warmup is None else math.ceil(10 * warmup / max(1, updates)),
        )
    if validations and all(map(_is_worthless, validations)):
        score = "100 or more" if config.metric in LOWER_IS_BETTER else "0"
        yield Concern(
            f"{config.metric} was {score} in every validation: the model has not learned it yet, or the pairs don't "
            "belong together",
            0 if memorises else 4,
        )
    elif only_cost:
        yield Concern(
            "no validation was better than the first: the model is still the one that it began from; a longer training "
            "may help, or a lower --learning-rate",
            4,
        )
    elif not memorises and _fell_steeply(validations, cooldown):
        yield Concern("the loss was still falling fast: a longer training will be better", 2)
    if memorises:
        lowest = min(validations, key=lambda one: one.loss)
        yield Concern(
            f"the validation loss was lowest at update {lowest.update:,} ({lowest.loss:.4f}, in the end "
            f"{validations[-1].loss:.4f}): the model memorises its pairs; more pairs help, or a higher --dropout, a "
            "longer training doesn't",
            0,
        )


def command_to_go_on(config: TrainConfig, folder: Path, times: int = 1) -> str:
    """Return the command that trains on from the model of a finished run, with limits so many times as high."""
    longer = {name: min(MOST, times * limit) for name in ENDS if (limit := getattr(config, name)) is not None}
    left_out = (*INHERITED, "from_")
    words = [
        _as_flag(name, value) for name, value in replace(config, **longer).changes().items() if name not in left_out
    ]
    return " ".join(["glassformer train --from", quote(str(folder)), *words, "--out", quote(f"{folder}-more")])


def _as_flag(name: str, value: Any) -> str:
    """Return a setting as it is given on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([flag, *(f"{one:.10g}" if isinstance(one, float) else quote(str(one)) for one in values)])


def _is_worthless(validation: Validation) -> bool:
    return validation.score >= 100 if validation.metric in LOWER_IS_BETTER else validation.score <= 0


def _is_perfect(validation: Validation) -> bool:
    return validation.score <= 0 if validation.metric in LOWER_IS_BETTER else validation.score >= 100


def _memorises(metrics: Metrics, cooldown: float) -> bool:
    """Return whether the loss rose, and the best validation came before the update where the cooldown begins."""
    if metrics.best is None or metrics.best.update >= cooldown or _is_perfect(metrics.best):
        return False
    lowest = min(one.loss for one in metrics.validations)
    return metrics.validations[-1].loss > (1 + RISEN) * lowest


def _reads_once(config: TrainConfig, metrics: Metrics) -> bool:
    """Return whether the training read no pair twice, so that it can't have memorised any."""
    is_in_first_epoch = bool(metrics.reports) and metrics.reports[-1].epoch == 1
    is_repeated = config.join_lines > 1 or (config.source is not None and are_weighted(config.source))
    return is_in_first_epoch and not is_repeated


def _is_as_it_began(metrics: Metrics) -> bool:
    """Return whether the weights in the run folder are those before the first update."""
    return metrics.averaged is None and metrics.best is not None and metrics.best.update == 0 < (metrics.updates or 0)


def _fell_steeply(validations: Sequence[Validation], cooldown: float) -> bool:
    """Return whether the loss fell steeply until the update where the cooldown begins, and no less in the end."""
    before = [one for one in validations if one.update <= cooldown]
    if len(before) < 4:
        return False
    fell = before[-1].loss < (1 - STEEP) * before[len(before) // 2].loss
    return fell and validations[-1].loss <= before[-1].loss
