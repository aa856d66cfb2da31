"""A run in a tracker: how it is begun, and that a tracker that fails stops nothing."""

import warnings

import pytest

from glassformer.tracking.session import Session, TrackerWarning


def test_a_run_is_called_by_its_folder(notebook, tmp_path):
    tracker = notebook()
    session = Session(tracker, tmp_path / "runs/mine", "evaluate valid.tsv")
    id = session.begin({"heads": 3})
    assert tracker.begun == [
        {
            "project": "runs",
            "name": "mine evaluate valid.tsv",
            "group": "mine",
            "job_type": "evaluate",
            "id": id,
            "resume": "never",
            "config": {"heads": 3},
        }
    ]
    assert len(id) == 16
    assert session.begin({}, id) == id
    assert (tracker.begun[1]["id"], tracker.begun[1]["resume"]) == (id, "allow")


def test_init_gets_the_settings_that_it_names(tmp_path):
    class Picky:
        def init(self, name, *, resume="must"):
            self.got = name, resume

        def log(self, metrics, *, step): ...

        def finish(self): ...

    tracker = Picky()
    Session(tracker, tmp_path / "mine").begin({})
    assert tracker.got == ("mine", "never")


def test_a_run_that_is_begun_elsewhere_is_neither_begun_nor_ended(notebook, tmp_path):
    class Run:
        id = "wandb's"

        def __init__(self):
            self.rows = []

        def log(self, metrics, *, step):
            self.rows.append((step, metrics))

    run = Run()
    session = Session(run, tmp_path)
    assert session.begin({}) == "wandb's"
    session.log({"a": 1.0, "b": None}, 7)
    session.finish()
    assert run.rows == [(7, {"a": 1.0})]


def use(session):
    session.begin({})
    session.log({"a": 1.0}, 1)
    session.log({"a": 2.0}, 2)
    session.finish()


@pytest.mark.parametrize(("fails", "calls"), [("init", 1), ("log", 2), ("finish", 4)])
def test_a_tracker_that_fails_says_so_once_and_gets_no_more(fails, calls, notebook, tmp_path):
    tracker = notebook(fails)
    session = Session(tracker, tmp_path)
    with pytest.warns(TrackerWarning) as given:
        use(session)
    assert [str(one.message) for one in given] == [
        "the tracker Notebook failed, and gets no more figures: no route to host"
    ]
    assert len(tracker.calls) == calls
    assert session.place is None


def test_a_signal_is_no_failure_of_the_tracker(tmp_path):
    class Interrupted:
        def log(self, metrics, *, step):
            raise KeyboardInterrupt

    with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
        Session(Interrupted(), tmp_path).log({"a": 1.0}, 1)
