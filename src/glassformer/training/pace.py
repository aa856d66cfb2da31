"""The pace of a training: over how many updates the learning rate rises, and how many lie between validations."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Pace:
    """The two numbers of updates."""

    warmup: int
    validate_every: int

    @classmethod
    def of(cls, config: TrainConfig, d_model: int, planned: int) -> "Pace":
        """Return what `config` says, and what it leaves out by the number of `planned` updates; 0: not known yet."""
        longest = longest_warmup(d_model)
        if not planned:
            return cls(config.warmup or longest, config.validate_every or SELDOM)
        return cls(
            config.warmup or max(1, min(longest, round(WARMUP_SHARE * planned))),
            config.validate_every or max(1, min(SELDOM, planned // VALIDATIONS)),
        )

    def described(self, planned: int, config: TrainConfig) -> str:
        """Return in words what was planned, and how to have the same weights again where time is the limit."""
        said = f"about {planned:,} updates: --warmup {self.warmup} --validate-every {self.validate_every}"
        if config.max_minutes is None:
            return said
        return (
            f"{said}\n  (on a busy machine fewer, and other weights; --max-updates {planned} in place of "
            "--max-minutes\n  always gives the same, with the settings above)"
        )


class Stopwatch:
    """Measures how long an update takes, from the first updates of a process on."""

    def __init__(self, minutes: float | None) -> None:
        """The limit of the training is so many `minutes`, if it has one."""
        self._least = min(ENOUGH_SECONDS, max(LEAST_SECONDS, LEAST_SHARE * 60 * (minutes or 0.0)))
        self._first: tuple[int, float] | None = None

    def seconds_per_update(self, update: int, seconds: float) -> float | None:
        """Return the mean time of an update; None while too few have been seen.

        `seconds` is the time after this update. The first update of a process is left out, in which much is set up.
        """
        if update and self._first is None:
            self._first = update, seconds
        if self._first is None:
            return None
        updates, passed = update - self._first[0], seconds - self._first[1]
        return passed / updates if updates >= LEAST_UPDATES and passed >= self._least else None


def longest_warmup(d_model: int) -> int:
    """Return over how many updates the rate of a model of this width rises in a long training."""
    return 4 * d_model
