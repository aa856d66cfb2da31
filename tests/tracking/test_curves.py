"""A training in a tracker: each line of metrics.jsonl once, however often it was stopped, and by whatever tracker."""

import json

import pytest

from glassformer.run.metrics import read_metrics
from glassformer.run.names import BOARD, METRICS, RESUME, TRACKED
from glassformer.tracking.session import TrackerWarning
from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("unchecked", "every_update", "undrawn")
COURSE = dict(max_updates=7, validate_every=3, checkpoint_seconds=1e-9, score_pairs=1, average=1)


def updates(run):
    """The updates that metrics.jsonl has reports and validations of."""
    metrics = read_metrics(run / METRICS)
    return [one.update for one in metrics.reports], [one.update for one in metrics.validations]


def test_a_training_is_tracked_line_by_line(settings, notebook):
    tracker = notebook()
    run = train(settings(**COURSE, watch=4), tracker=tracker).folder
    metrics = read_metrics(run / METRICS)
    assert (tracker.steps("train/loss"), tracker.steps("valid/loss")) == updates(run)
    assert tracker.steps("train/loss") == list(range(1, 8))
    losses = [row["train/loss"] for _, row in tracker.rows if "train/loss" in row]
    assert losses == [report.loss for report in metrics.reports]
    scores = [row["valid/bleu"] for _, row in tracker.rows if "valid/bleu" in row]
    assert scores == [one.score for one in metrics.validations]
    assert tracker.steps("attention/entropy_mean/encoder.0.self_attention") == [1, 4]
    assert [step for step, _ in tracker.rows] == sorted(step for step, _ in tracker.rows)
    (begun,) = tracker.begun
    assert (begun["name"], begun["resume"], begun["config"]["heads"]) == ("run", "never", 2)
    assert tracker.calls[-1] == "finish"


def test_a_training_that_goes_on_goes_on_in_the_tracker(settings, notebook, interrupting):
    first, second = notebook(), notebook()
    with interrupting(4):
        run = train(settings(**COURSE), tracker=first).folder
    assert json.loads((run / RESUME / TRACKED).read_text()) == {"tracker": "Notebook", "id": first.begun[0]["id"]}
    resume(run, tracker=second)
    assert first.steps("train/loss") + second.steps("train/loss") == list(range(1, 8))
    assert first.steps("valid/loss") + second.steps("valid/loss") == updates(run)[1]
    assert (second.begun[0]["id"], second.begun[0]["resume"]) == (first.begun[0]["id"], "allow")


def test_what_is_computed_again_is_not_sent_again(settings, notebook, crashing):
    tracker = notebook()
    config = settings(**{**COURSE, "checkpoint_seconds": 1e6})
    with crashing(5), pytest.raises(SystemError):
        train(config, tracker=tracker)
    assert tracker.steps("train/loss") == list(range(1, 5))
    run = resume(config.out, tracker=tracker).folder  # from the very beginning, for there is no checkpoint
    assert (tracker.steps("train/loss"), tracker.steps("valid/loss")) == updates(run)


def test_a_tracker_that_comes_later_gets_what_was_before(settings, notebook, interrupting):
    with interrupting(4):
        run = train(settings(**COURSE)).folder
    tracker = notebook()
    resume(run, tracker=tracker)
    assert (tracker.steps("train/loss"), tracker.steps("valid/loss")) == updates(run)
    assert tracker.begun[0]["resume"] == "never"


def test_a_tracker_that_lost_the_run_gets_all_of_it_anew(settings, notebook, interrupting):
    class Forgetful(notebook):
        id = "another"

        def init(self, **settings):
            super().init(**settings)
            return self

    with interrupting(4):
        run = train(settings(**COURSE), tracker=notebook()).folder
    tracker = Forgetful()
    Forgetful.__name__ = "Notebook"
    resume(run, tracker=tracker)
    assert tracker.steps("train/loss") == list(range(1, 8))


def test_a_tracker_that_fails_does_not_end_the_training(settings, notebook):
    with pytest.warns(TrackerWarning, match="failed, and gets no more figures: no route to host") as given:
        result = train(settings(**COURSE), tracker=notebook("log"))
    assert (result.finished, result.updates, len(given)) == (True, 7, 1)


@pytest.mark.parametrize("fails", ["init", "log"])
def test_a_tracker_that_failed_gets_what_it_missed(settings, notebook, interrupting, fails):
    failing, working = notebook(fails), notebook()
    with interrupting(4), pytest.warns(TrackerWarning):
        run = train(settings(**COURSE), tracker=failing).folder
    resume(run, tracker=working)
    assert working.begun[0]["resume"] == ("allow" if fails == "log" else "never")
    assert (working.steps("train/loss"), working.steps("valid/loss")) == updates(run)


def test_tensorboard_reads_a_training_back_that_was_stopped(settings, crashing, interrupting, read_board):
    pytest.importorskip("tensorboard", reason="pip install 'glassformer[tracking]'")
    config = settings(**COURSE, track="tensorboard")
    with crashing(4), pytest.raises(SystemError):
        train(config)
    with interrupting(2):
        resume(config.out)
    run = resume(config.out, learning_rate=1e-3).folder
    metrics, found = read_metrics(run / METRICS), read_board(run / BOARD)
    assert found["train/loss"] == [(one.update, pytest.approx(one.loss)) for one in metrics.reports]
    assert found["train/learning_rate"] == [(one.update, pytest.approx(one.learning_rate)) for one in metrics.reports]
    assert found["valid/loss"] == [(one.update, pytest.approx(one.loss)) for one in metrics.validations]
    assert found["valid/bleu"] == [(one.update, pytest.approx(one.score)) for one in metrics.validations]


def test_a_full_disk_of_the_tracker_does_not_end_the_training(settings, monkeypatch):
    pytest.importorskip("tensorboard", reason="pip install 'glassformer[tracking]'")
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "flush", full)
    with pytest.warns(TrackerWarning, match="the tracker TensorBoard failed, .*No space left on device"):
        result = train(settings(**COURSE, track="tensorboard"))
    assert result.finished
