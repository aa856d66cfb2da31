"""Which updates are left out, by numbers worked out by hand."""

import math

import pytest
import torch

from glassformer.training.outliers import OutlierDetector

NAN, INF = math.nan, math.inf


def harmful(detector: OutlierDetector, loss: float, norm: float = 1.0) -> bool:
    found = detector.judge(torch.tensor(loss), torch.tensor(norm))
    assert found.item() in (0.0, 1.0)
    return bool(found)


def settled(*losses: float, updates: int = 100) -> OutlierDetector:
    """After so many updates with these losses in turn."""
    detector = OutlierDetector(torch.device("cpu"))
    assert not any(harmful(detector, losses[update % len(losses)]) for update in range(updates))
    return detector


@pytest.mark.parametrize(
    ("loss", "norm"), [(NAN, 1.0), (INF, 1.0), (-INF, 1.0), (2.0, NAN), (2.0, INF), (NAN, NAN)], ids=str
)
def test_what_is_not_a_number_is_left_out_from_the_first_update_on(loss, norm):
    for detector in (OutlierDetector(torch.device("cpu")), settled(2.0)):
        before = detector.state.clone()
        assert harmful(detector, loss, norm)
        assert torch.equal(detector.state[:3], before[:3])  # mean, variance and number of those that were taken
        assert detector.left_out() == (1, 1)
        assert not harmful(detector, 2.0)


def test_mean_and_variance_follow_the_losses():
    # mean' = mean + 0.02 (loss - mean); variance' = 0.98 (variance + 0.02 (loss - mean)^2)
    detector = settled(2.0, updates=1)
    assert detector.state.tolist() == [2, 0, 1, 0, 0]
    harmful(detector, 3.0)
    torch.testing.assert_close(detector.state, torch.tensor([2.02, 0.98 * 0.02, 2, 0, 0]))
    harmful(detector, 1.02)
    torch.testing.assert_close(detector.state, torch.tensor([2.0, 0.98 * (0.0196 + 0.02), 3, 0, 0]))


@pytest.mark.parametrize(
    ("before", "updates", "loss", "jumps"),
    [
        ([2.0], 1000, 2.99, False),
        ([2.0], 1000, 3.01, True),
        ([2.0], 1000, 1e30, True),
        ([9.0], 1000, 0.1, False),  # a fall
        ([1.5, 2.5], 1000, 6.8, False),  # in turn: mean 2, deviation 0.5 about, of which ten are 5
        ([1.5, 2.5], 1000, 7.2, True),
        ([2.0], 99, 40.0, False),
        ([2.0], 100, 40.0, True),
    ],
)
def test_after_a_hundred_updates_a_jump_is_more_than_a_nat_and_ten_deviations(before, updates, loss, jumps):
    assert harmful(settled(*before, updates=updates), loss) == jumps


def test_those_left_out_are_counted_in_a_row_and_in_all():
    detector = settled(2.0)
    assert detector.left_out() == (0, 0)
    for count in (1, 2, 3):
        assert harmful(detector, NAN)
        assert detector.left_out() == (count, count)
    assert not harmful(detector, 2.0)
    assert detector.left_out() == (0, 3)
    assert harmful(detector, 50.0)
    assert detector.left_out() == (1, 4)


def test_a_jump_that_stays_is_left_out_every_time():
    """The mean does not run after what was never learned from."""
    detector = settled(2.0)
    assert all(harmful(detector, 11.0) for _ in range(1000))
    assert detector.left_out() == (1000, 1000)
    assert not harmful(detector, 2.0)


def test_double_precision_is_watched_too():
    detector, one = settled(2.0), torch.tensor(1.0, dtype=torch.float64)
    assert [detector.judge(loss * one, one).item() for loss in (NAN, 2.5)] == [1, 0]
    assert detector.state.dtype == torch.float32
