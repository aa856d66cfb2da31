"""The updates of the warm-up, and between validations."""

from pathlib import Path

import pytest

from glassformer.training.config import TrainConfig
from glassformer.training.pace import Pace, Stopwatch


def pace(planned: int, d_model: int = 64, **given: object) -> Pace:
    return Pace.of(TrainConfig(out=Path("run"), **given), d_model, planned)


@pytest.mark.parametrize(
    ("planned", "warmup", "validate_every"),
    [(1, 1, 1), (79, 8, 6), (1_000, 100, 83), (2_560, 256, 213), (100_000, 256, 250), (0, 256, 250)],
)
def test_a_tenth_of_the_updates_and_a_twelfth(planned, warmup, validate_every):
    assert pace(planned) == Pace(warmup, validate_every)
    assert pace(planned, warmup=7, validate_every=3) == Pace(7, 3)


def test_the_plan_is_said_with_the_flags_that_repeat_it():
    said = pace(470).described(470, TrainConfig(out=Path("run"), max_minutes=2.0))
    assert said.startswith("about 470 updates: --warmup 47 --validate-every 39\n  (on a busy machine fewer, and other")
    assert said.endswith(
        "--max-updates 470 in place of --max-minutes\n  always gives the same, with the settings above)"
    )
    assert pace(470).described(470, TrainConfig(out=Path("run"), max_updates=470)).endswith("--validate-every 39")


@pytest.mark.parametrize(("minutes", "least"), [(None, 2.0), (0.5, 2.0), (10.0, 24.0), (600.0, 60.0)])
def test_the_speed_is_that_of_the_updates_after_the_first(minutes, least):
    stopwatch = Stopwatch(minutes)
    assert stopwatch.seconds_per_update(0, 0.0) is None
    assert stopwatch.seconds_per_update(1, 100.0) is None  # in which much is set up
    assert stopwatch.seconds_per_update(3, 101.0 + least) is None, "too few updates"
    assert stopwatch.seconds_per_update(6, 99.0 + least) is None, "too short"
    assert stopwatch.seconds_per_update(11, 100.0 + least) == pytest.approx(least / 10)
