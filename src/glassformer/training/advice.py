"""Sentences about the shortcomings of a finished training, and the command that trains on from it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from glassformer.run.metrics import Metrics, Validation
from glassformer.text.scores import LOWER_IS_BETTER
from glassformer.training.config import INHERITED, TrainConfig

STEEP = 0.05
"""Share by which the validation loss fell over the last half before the cooldown, above which it fell steeply."""


def concerns(config: TrainConfig, metrics: Metrics, updates: int, warmup: int) -> Iterator[str]:
    """Yield a sentence for each aim that a training of so many `updates` didn't reach."""
    validations = metrics.validations
    if updates < warmup:
        yield f"the learning rate never reached its peak: {updates:,} of {warmup:,} updates of its warm-up were made"
    if validations and all(map(_is_worthless, validations)):
        yield (
            f"{config.metric} was {validations[-1].score:.0f} in every validation: the model has not learned it yet, "
            "or the pairs don't belong together"
        )
    elif _fell_steeply(validations, (1 - config.cooldown) * updates):
        yield "the loss was still falling fast: a longer training will be better"


def command_to_go_on(config: TrainConfig, folder: Path) -> str:
    """Return the command that trains on from the model of a finished run, as long again."""
    left_out = (*INHERITED, "from_")
    words = [_as_flag(name, value) for name, value in config.changes().items() if name not in left_out]
    return " ".join(["glassformer train --from", quote(str(folder)), *words, "--out", quote(f"{folder}-more")])


def _as_flag(name: str, value: Any) -> str:
    """Return a setting as it is given on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([flag, *(f"{one:g}" if isinstance(one, float) else quote(str(one)) for one in values)])


def _is_worthless(validation: Validation) -> bool:
    return validation.score >= 100 if validation.metric in LOWER_IS_BETTER else validation.score <= 0


def _fell_steeply(validations: Sequence[Validation], cooldown: float) -> bool:
    """Return whether the loss fell steeply until the update where the cooldown begins, and no less in the end."""
    before = [one for one in validations if one.update <= cooldown]
    if len(before) < 4:
        return False
    fell = before[-1].loss < (1 - STEEP) * before[len(before) // 2].loss
    return fell and validations[-1].loss <= before[-1].loss
