"""Scores and prunings in a tracker, from the commands and from Python."""

import pytest

from glassformer.run.metrics import Validation, append_metrics
from glassformer.run.names import BOARD, METRICS
from glassformer.scoring.scores import Score
from glassformer.tracking.results import track_scores, track_steps
from glassformer.tracking.session import TrackerWarning


@pytest.fixture
def run(tmp_path):
    """The figures of a run folder of twenty updates."""
    folder = tmp_path / "run"
    folder.mkdir()
    append_metrics(folder / METRICS, Validation(20, 2.5, "bleu", 17.0))
    return folder


def test_scores_are_a_run_of_their_own_at_the_last_update(run, notebook):
    tracker = notebook()
    scores = [Score("BLEU", 17.5, "made up"), Score("chrF", 41.0, "made up")]
    track_scores(run, "valid.tsv", scores, tracker=tracker, settings={"search": "beam 5"})
    assert tracker.rows == [(20, {"test/BLEU": 17.5, "test/chrF": 41.0})]
    (begun,) = tracker.begun
    assert (begun["name"], begun["group"], begun["config"]) == ("run evaluate valid.tsv", "run", {"search": "beam 5"})
    assert tracker.calls == ["init", "log", "finish"]


def test_without_a_tracker_nothing_is_done(run):
    assert track_scores(run, "valid.tsv", []) is None


def test_a_tracker_that_fails_leaves_the_scores_alone(tmp_path, notebook):
    tracker = notebook("log")
    with pytest.warns(TrackerWarning, match="no route to host"):
        assert track_steps(tmp_path, "prune", {1: {"a": 1.0}, 2: {"a": 2.0}}, tracker=tracker) is None
    assert tracker.calls == ["init", "log", "finish"][:2]


def test_tensorboard_has_the_scores_once_however_often_a_test_set_is_scored(run, read_board):
    pytest.importorskip("tensorboard", reason="pip install 'glassformer[tracking]'")
    for value in (17.5, 18.5):
        place = track_scores(run, "valid.tsv", [Score("BLEU", value, "made up")], track="tensorboard")
    assert read_board(run / BOARD / "evaluate valid.tsv") == {"test/BLEU": [(20, 18.5)]}
    assert place.startswith(f"{run}/tensorboard/evaluate valid.tsv (see it with: tensorboard --logdir ")
