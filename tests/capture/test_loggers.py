"""Loggers of other packages get what `watch` sees, and give it back. Each test needs the package that it names."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from glassformer import watch

from .conftest import make_encoder

PATH = "layers.1.self_attn"
NAMES = {
    f"attention/{name}/layers.{n}.self_attn"
    for n in range(2)
    for name in ("entropy_lowest", "entropy_mean", "max_score_highest", "sink_highest", "sink_mean")
}


def lowest_entropies(model: nn.Module, logger: Any) -> list[tuple[int, float]]:
    """Watch five steps, every second one, and return the steps that were looked at and what was seen of one layer."""
    with watch(model, every=2, loggers=[logger]) as seen:
        for step in range(5):
            model(torch.randn(2, 7, 24)).sum().backward()
            seen.log(step)
    return [(sighting.step, min(sighting.figures[PATH]["entropy"])) for sighting in seen.sightings]


@pytest.fixture
def model() -> nn.Module:
    return make_encoder(dropout=0.0)


def test_tensorboard_reads_the_scalars_back(model, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        expected = lowest_entropies(model, writer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == NAMES
    read = [(event.step, event.value) for event in events.Scalars(f"attention/entropy_lowest/{PATH}")]
    assert [step for step, _ in read] == [0, 2, 4]
    assert read == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]


@pytest.mark.parametrize("by", ["module", "run"])
def test_trackio_stores_the_rows(model, by, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # which it reads when it is imported
    trackio = pytest.importorskip("trackio", reason="pip install trackio")
    from trackio.sqlite_storage import SQLiteStorage

    run = trackio.init(project=f"dates-{by}", name="first", auto_log_cpu=False, auto_log_gpu=False)
    expected = lowest_entropies(model, trackio if by == "module" else run)
    trackio.finish()
    rows = SQLiteStorage.get_logs(f"dates-{by}", "first")
    assert [set(row) >= NAMES for row in rows] == [True] * 3
    found = [(row["attention/step"], row[f"attention/entropy_lowest/{PATH}"]) for row in rows]
    assert found == [(step, pytest.approx(value)) for step, value in expected]


def test_a_figure_that_is_not_a_number_reaches_tensorboard_as_such(model, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[7] = math.nan  # of the queries of the second head
    with SummaryWriter(str(tmp_path)) as writer, watch(model, loggers=[writer], alarm=lambda _: None) as seen:
        model(torch.randn(2, 7, 24))
        seen.log(0)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for name in ("entropy_lowest", "max_score_highest"):
        (event,) = events.Scalars(f"attention/{name}/{PATH}")
        assert math.isnan(event.value)
