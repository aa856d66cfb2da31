"""The pace of a training: over how many updates the learning rate rises, and how many lie between validations."""

from glassformer.training.config import TrainConfig

WARMUP_SHARE = 0.1
"""Share of the updates over which the learning rate rises, unless that is more than `longest_warmup`."""
VALIDATIONS = 12
"""Validations of a short training; longer ones have one every `SELDOM` updates."""
SELDOM = 250
"""Most updates between validations."""

LEAST_UPDATES, LEAST_SECONDS, LEAST_SHARE = 5, 2.0, 0.04
"""Updates, seconds and share of the limit in minutes over which the speed is measured, at the least."""
ENOUGH_SECONDS = 60.0
"""Seconds of measuring that are enough for any limit."""


def warmup_updates(config: TrainConfig, d_model: int, planned: int) -> int:
    """Return over how many updates the learning rate rises, of so many `planned` ones; 0: not known yet."""
    longest = longest_warmup(d_model)
    return config.warmup or (max(1, min(longest, round(WARMUP_SHARE * planned))) if planned else longest)


def validation_interval(config: TrainConfig, planned: int) -> int:
    """Return how many updates lie between validations, of so many `planned` ones; 0: not known yet."""
    return config.validate_every or (max(1, min(SELDOM, planned // VALIDATIONS)) if planned else SELDOM)


def describe_plan(config: TrainConfig, planned: int, warmup: int, interval: int) -> str:
    """Return in words what is planned, and if time is the limit, how to train independently of the machine's load."""
    said = f"about {planned:,} updates: --warmup {warmup} --validate-every {interval}"
    if config.max_minutes is None:
        return said
    return (
        f"{said}\n  (a busy machine makes fewer updates, and so another model; with --max-updates {planned} in place "
        "of --max-minutes\n  and the settings above, the model is always the same)"
    )


class Stopwatch:
    """Measures how long an update takes, from the first updates of a process on."""

    def __init__(self, minutes: float | None) -> None:
        """Take the limit of the training in minutes, if it has one: the longer that is, the longer it measures."""
        self._least = min(ENOUGH_SECONDS, max(LEAST_SECONDS, LEAST_SHARE * 60 * (minutes or 0.0)))
        self._began: int | None = None
        self._first: tuple[int, float] | None = None

    def seconds_per_update(self, update: int, seconds: float) -> float | None:
        """Return the mean time of an update; None while too few have been seen.

        `seconds` is the time after this update. It is called before the first update of a process too, and leaves that
        out: much is set up in it.
        """
        if self._began is None:
            self._began = update
        if self._first is None:
            if update > self._began:
                self._first = update, seconds
            return None
        updates, passed = update - self._first[0], seconds - self._first[1]
        return passed / updates if updates >= LEAST_UPDATES and passed >= self._least else None


def longest_warmup(d_model: int) -> int:
    """Return over how many updates the rate of a model of this width rises in a long training."""
    return 4 * d_model
