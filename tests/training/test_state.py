"""The numbers of a training as it moves on."""

import pytest
import torch

from glassformer.training import state as module
from glassformer.training.state import Tally, TrainingState
from glassformer.training.step import UpdateSums


def test_updates_and_epochs_are_counted():
    state = TrainingState()
    state.enter_epoch(5)
    for batches in (2, 2, 1):
        state.count_update(batches)
    assert (state.update, state.epoch, state.batch, state.batches) == (3, 0, 5, 5)
    state.finish_epoch()
    assert (state.update, state.epoch, state.batch) == (3, 1, 0)


@pytest.mark.parametrize(("batches", "done"), [(8, 4), (4, 2), (16, 8), (1, 0), (5, 2)])
def test_in_an_epoch_of_other_batches_the_same_share_is_done(batches, done):
    state = TrainingState(batch=4, batches=8)
    state.enter_epoch(batches)
    assert (state.batch, state.batches) == (done, batches)


def test_the_best_validation_is_the_first_of_the_highest_rank():
    state, best = TrainingState(), []
    for update, rank in ((10, [30.0, -2.0]), (20, [30.0, -2.0]), (30, [29.0, -1.0]), (40, [30.0, -1.5])):
        state.update = update
        best.append(state.count_validation(rank))
    assert best == [True, False, False, True]
    assert (state.best, state.best_update, state.validated, state.since_best) == ([30.0, -1.5], 40, 40, 0)
    assert not state.count_validation([0.0, 0.0])
    assert state.since_best == 1
    state.ends_at = 70
    state.forget_patience()
    assert (state.since_best, state.ends_at, state.best_update) == (0, None, 40)


def test_a_tally_sums_up_and_leaves_pauses_out(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    tally = Tally([7.0, 3.0], torch.device("cpu"))
    tally.add(UpdateSums(torch.tensor(5.0), torch.tensor(2.0)), 2)
    now += 4.0
    with tally.paused():
        now += 90.0
    tally.add(UpdateSums(torch.tensor(0.0), torch.tensor(0.0)), 10)  # it was left out
    assert tally.sums.tolist() == [12.0, 5.0]
    sums, speed = tally.close()
    assert (sums.tolist(), speed) == ([12.0, 5.0], 12 / 4)
    assert tally.sums.tolist() == [0.0, 0.0]
