"""When a training ends, and how much of it is done."""

from collections.abc import Iterator

from glassformer.training.config import TrainConfig
from glassformer.training.schedule import cooled
from glassformer.training.state import TrainingState

EPOCHS, UPDATES, MOST_EPOCHS = 20, 8_000, 100
"""Limits where none is given: the first two are both reached, unless the third comes before."""


class Limits:
    """Limits of a training in epochs, updates and minutes, and its patience."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config

    def fraction(self, state: TrainingState) -> float:
        """Return how much of the training is done, as far as is known: patience may end it sooner."""
        return min(1.0, max(self._used(state)))

    def reached(self, state: TrainingState) -> bool:
        """Return whether the training is at its end."""
        return any(used >= 1 for used in self._used(state))

    def cools(self, state: TrainingState) -> bool:
        """Return whether the training is in its cooldown."""
        return self.fraction(state) >= 1 - self._config.cooldown

    def rate_factor(self, state: TrainingState) -> float:
        """Return what the learning rate is multiplied by: below 1 in the cooldown."""
        return cooled(self.fraction(state), self._config.cooldown)

    def apply_patience(self, state: TrainingState) -> None:
        """Set the end once patience is over, if it isn't set: such that the cooldown is still to come."""
        cooldown = self._config.cooldown
        if 0 < self._config.patience <= state.since_best and self.fraction(state) <= 1 - cooldown:
            state.ends_at = state.ends_at or round(state.update / (1 - cooldown))

    def most_updates(self, updates_per_epoch: int) -> int:
        """Return how many updates the limits in updates and epochs allow; 0 without any."""
        config, allowed = self._config, list[int]()
        if config.max_updates is not None:
            allowed.append(config.max_updates)
        if config.max_epochs is not None:
            allowed.append(config.max_epochs * updates_per_epoch)
        return min(allowed, default=0)

    def plan(self, state: TrainingState, updates_per_epoch: int, seconds_per_update: float | None) -> int:
        """Return how many updates the limits allow, as far as is known beforehand; 0 while the speed isn't known.

        Patience may end the training sooner.
        """
        config, most = self._config, self.most_updates(updates_per_epoch)
        allowed: list[float] = [most] if most else []
        if config.max_minutes is not None:
            if seconds_per_update is None:
                return 0
            allowed.append(state.update + (60 * config.max_minutes - state.seconds) / seconds_per_update)
        if not allowed:
            allowed.append(min(MOST_EPOCHS * updates_per_epoch, max(EPOCHS * updates_per_epoch, UPDATES)))
        return max(1, int(min(allowed)))

    def _used(self, state: TrainingState) -> Iterator[float]:
        """Yield how much of each limit is used up."""
        config = self._config
        epochs = state.epoch + state.batch / max(state.batches, 1)
        if config.max_epochs is not None:
            yield epochs / config.max_epochs
        if config.max_updates is not None:
            yield state.update / config.max_updates
        if config.max_minutes is not None:
            yield state.seconds / (60 * config.max_minutes)
        if config.max_epochs is config.max_updates is config.max_minutes is None:
            yield max(epochs / MOST_EPOCHS, min(epochs / EPOCHS, state.update / UPDATES))
        if state.ends_at is not None:
            yield state.update / state.ends_at
