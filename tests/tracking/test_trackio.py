"""trackio: its database, read back by itself, and that it asks nobody about a token."""

import os
import sqlite3
import warnings
from pathlib import Path

import pytest

from glassformer.run.metrics import read_metrics
from glassformer.run.names import METRICS
from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("unchecked", "every_update", "undrawn")
COURSE = dict(max_updates=7, validate_every=3, checkpoint_seconds=1e-9, score_pairs=1, average=1, track="trackio")


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """trackio's own reader of its databases."""
    folder = tmp_path / "databases"
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        pytest.importorskip("trackio", reason="pip install 'glassformer[tracking]'")
        from trackio.sqlite_storage import SQLiteStorage
    for module in ("utils", "sqlite_storage"):  # trackio reads the variable once: another test may have imported it
        monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", folder)
    return SQLiteStorage


def test_trackio_reads_a_training_back_that_was_stopped(settings, storage, crashing, interrupting, capfd):
    config = settings(**COURSE)
    project = config.out.parent.name
    with crashing(4), pytest.raises(SystemError):
        train(config)
    with interrupting(2):
        resume(config.out)
    run = resume(config.out).folder
    (record,) = storage.get_run_records(project)
    assert record["name"] == "run"
    rows, metrics = storage.get_logs(project, "run"), read_metrics(run / METRICS)
    found = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert found == [(one.update, pytest.approx(one.loss)) for one in metrics.reports]
    scores = [(row["step"], row["valid/bleu"]) for row in rows if "valid/bleu" in row]
    assert scores == [(one.update, one.score) for one in metrics.validations]
    assert storage.get_run_config(project, "run")["heads"] == 2
    out, err = capfd.readouterr()
    assert out == ""  # which belongs to the commands
    assert "trackio show" in err


def test_figures_that_were_lost_on_their_way_are_sent_again(settings, storage, interrupting):
    config = settings(**COURSE)
    project = config.out.parent.name
    with interrupting(4):
        train(config)
    with sqlite3.connect(storage.get_project_db_path(project)) as database:
        database.execute("DELETE FROM metrics WHERE step > 2")  # as after a kill, half a second before
    database.close()
    resume(config.out)
    steps = [row["step"] for row in storage.get_logs(project, "run") if "train/loss" in row]
    assert steps == list(range(1, 8))


def test_nobody_is_asked_whose_a_token_is(settings, storage, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    asked = []
    monkeypatch.setattr("httpx2.HTTPTransport.handle_request", lambda _, request: asked.append(request.url))
    config = settings(**COURSE)
    assert train(config).finished
    assert asked == []
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False
    with pytest.raises(AttributeError):  # of the answer, which is none: a question would be seen
        huggingface_hub.whoami()
    assert len(asked) >= 1


def test_a_database_that_cannot_be_written_does_not_end_the_training(settings, storage, monkeypatch):
    def full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(storage, "bulk_log", full)
    with pytest.warns(UserWarning, match="trackio failed to flush metric logs .*disk is full") as given:
        assert train(settings(**COURSE)).finished
    assert len(given) == 1


def test_the_databases_lie_beside_the_run_unless_somebody_says_otherwise(storage, monkeypatch, tmp_path):
    from glassformer.tracking.trackio import Trackio

    monkeypatch.setenv("TRACKIO_DIR", "elsewhere")
    Trackio(tmp_path / "runs/mine")
    assert os.environ["TRACKIO_DIR"] == "elsewhere"
    monkeypatch.delenv("TRACKIO_DIR")
    Trackio(tmp_path / "runs/mine")
    assert Path(os.environ["TRACKIO_DIR"]) == tmp_path / "runs/trackio"
