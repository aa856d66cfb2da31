"""When a training ends and how much of it is done, without training."""

from pathlib import Path

import pytest

from glassformer.training import limits
from glassformer.training.config import TrainConfig
from glassformer.training.limits import Limits
from glassformer.training.state import TrainingState


def limits_of(**settings) -> Limits:
    return Limits(TrainConfig(out=Path("run"), **{"cooldown": 0.0, **settings}))


@pytest.mark.parametrize(
    ("settings", "state", "fraction"),
    [
        (dict(max_epochs=3), dict(epoch=1, batch=1, batches=4), 1.25 / 3),
        (dict(max_epochs=3), dict(epoch=2, batch=4, batches=4), 1.0),
        (dict(max_updates=40), dict(update=10, epoch=7), 0.25),
        (dict(max_updates=40), dict(update=41), 1.0),
        (dict(max_minutes=2.0), dict(seconds=30.0), 0.25),
        (dict(max_minutes=2.0, max_updates=40), dict(seconds=30.0, update=30), 0.75),
        (dict(max_updates=40), dict(update=10, ends_at=20), 0.5),
        (dict(max_updates=40), dict(), 0.0),
    ],
    ids=str,
)
def test_the_limit_that_is_nearest_counts(settings, state, fraction):
    assert limits_of(**settings).fraction(TrainingState(**state)) == pytest.approx(fraction)
    assert limits_of(**settings).reached(TrainingState(**state)) == (fraction == 1)


@pytest.mark.parametrize(
    ("epochs", "updates", "reached"), [(2, 5, True), (2, 4, False), (1, 5, False), (1, 900, False), (9, 4, True)]
)
def test_with_no_limit_given_both_passes_and_updates_are_made_unless_the_passes_are_too_many(
    monkeypatch, epochs, updates, reached
):
    for name, value in (("EPOCHS", 2), ("UPDATES", 5), ("MOST_EPOCHS", 9)):
        monkeypatch.setattr(limits, name, value)
    state = TrainingState(epoch=epochs, update=updates)
    assert limits_of().reached(state) == reached
    assert not limits_of(max_updates=1000).reached(state)


@pytest.mark.parametrize(
    ("settings", "state", "ends_at"),
    [
        (dict(patience=3), dict(update=50, since_best=3), 50),
        (dict(patience=3), dict(update=50, since_best=2), None),
        (dict(patience=0), dict(update=50, since_best=99), None),
        (dict(patience=3, cooldown=0.5), dict(update=40, since_best=3), 80),  # the cooldown still comes
        (dict(patience=3, cooldown=0.5), dict(update=60, since_best=3), None),  # it has begun
        (dict(patience=3, cooldown=0.5), dict(update=40, since_best=4, ends_at=70), 70),
    ],
    ids=str,
)
def test_once_patience_is_over_the_end_is_set(settings, state, ends_at):
    state = TrainingState(**state)
    limits_of(max_updates=100, **settings).apply_patience(state)
    assert state.ends_at == ends_at


def test_in_the_cooldown_the_rate_falls_to_nothing():
    own = limits_of(max_updates=100, cooldown=0.4)
    states = [TrainingState(update=update) for update in (0, 59, 60, 70, 100)]
    assert [own.rate_factor(state) for state in states] == pytest.approx([1, 1, 1, 0.75, 0])
    assert [own.cools(state) for state in states] == [False, False, True, True, True]
