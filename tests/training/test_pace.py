"""The updates of the warm-up, and between validations."""

from pathlib import Path

import pytest

from glassformer.training.config import TrainConfig
from glassformer.training.pace import Stopwatch, describe_plan, validation_interval, warmup_updates


def config(**given: object) -> TrainConfig:
    return TrainConfig(out=Path("run"), **given)


@pytest.mark.parametrize(
    ("planned", "warmup", "interval"),
    [(1, 1, 1), (79, 8, 6), (1_000, 100, 83), (2_560, 256, 213), (100_000, 256, 250), (0, 256, 250)],
)
def test_a_tenth_of_the_updates_and_a_twelfth(planned, warmup, interval):
    assert warmup_updates(config(), 64, planned) == warmup
    assert validation_interval(config(), planned) == interval
    assert warmup_updates(config(warmup=7), 64, planned) == 7
    assert validation_interval(config(validate_every=3), planned) == 3


def test_the_plan_is_said_with_the_flags_that_repeat_it():
    said = describe_plan(config(max_minutes=2.0), 470, 47, 39)
    assert said.startswith("about 470 updates: --warmup 47 --validate-every 39\n  (a busy machine makes fewer updates")
    assert said.endswith(
        "--max-updates 470 in place of --max-minutes\n  and the settings above, the model is always the same)"
    )
    assert describe_plan(config(max_updates=470), 470, 47, 39).endswith("--validate-every 39")


@pytest.mark.parametrize(("minutes", "least"), [(None, 2.0), (0.5, 2.0), (10.0, 24.0), (600.0, 60.0)])
def test_the_speed_is_that_of_the_updates_after_the_first(minutes, least):
    stopwatch = Stopwatch(minutes)
    assert stopwatch.seconds_per_update(0, 0.0) is None
    assert stopwatch.seconds_per_update(1, 100.0) is None  # in which much is set up
    assert stopwatch.seconds_per_update(3, 101.0 + least) is None, "too few updates"
    assert stopwatch.seconds_per_update(6, 99.0 + least) is None, "too short"
    assert stopwatch.seconds_per_update(11, 100.0 + least) == pytest.approx(least / 10)
