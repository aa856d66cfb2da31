"""metrics.jsonl, written and read: also where it was cut off, went back or makes no sense."""

import json
from pathlib import Path

import pytest

from glassformer.run.metrics import (
    Averaged,
    Metrics,
    Report,
    Validation,
    append_metrics,
    drop_metrics_after,
    read_metrics,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def report(update: int, loss: float | None = 3.5) -> str:
    figures = {"update": update, "epoch": 2, "loss": loss, "tokens_per_second": 7.0}
    return json.dumps(figures | {"seconds": update / 2, "learning_rate": update / 1000}) + "\n"


def validation(update: int, score: float = 11.0, loss: float = 2.5, metric: str = "bleu") -> str:
    return json.dumps({"update": update, "valid_loss": loss, "metric": metric, "score": score}) + "\n"


def updates(metrics: Metrics) -> tuple[list[int], list[int]]:
    return [one.update for one in metrics.reports], [one.update for one in metrics.validations]


def test_what_is_written_is_read(path):
    reports = [Report(20, 3.5, 0.02, 10.0, 2, 7.0), Report(40, None, 0.04, 20.0, 2, 7.0, left_out=3)]
    validations = [Validation(20, 2.5, "bleu", 11.0, 12.0), Validation(50, 2.5, "bleu", 11.0)]
    for line in (reports[0], validations[0], reports[1], validations[1]):
        append_metrics(path, line)
    assert path.read_text().splitlines()[:2] == [
        '{"update": 20, "epoch": 2, "loss": 3.5, "tokens_per_second": 7.0, "seconds": 10.0, "learning_rate": 0.02}',
        '{"update": 20, "valid_loss": 2.5, "metric": "bleu", "score": 11.0, "seconds": 12.0}',
    ]
    metrics = read_metrics(path)
    assert (metrics.reports, metrics.validations) == (reports, validations)
    assert (metrics.updates, metrics.seconds) == (50, 20.0)


def test_lines_after_an_update_are_dropped_and_one_that_was_cut_off(path):
    drop_metrics_after(path, 20, 20)
    assert not path.exists()
    path.write_text(report(20) + validation(20) + report(40) + validation(50)[:-9])
    drop_metrics_after(path, 50, 50)
    assert path.read_text() == report(20) + validation(20) + report(40)
    drop_metrics_after(path, 20, 20)
    assert path.read_text() == report(20) + validation(20)


@pytest.mark.parametrize(
    "damaged", ["{\n", "\n", report(20)[:-9] + "\n", report(20)[:-9] + report(20), "\0" * 99 + "\n"]
)
def test_the_lines_after_a_damaged_one_stay(path, damaged):
    path.write_text(report(20) + damaged + report(40) + validation(50) + report(60))
    drop_metrics_after(path, 50, 50)
    assert path.read_text() == report(20) + report(40) + validation(50)


def test_a_validation_that_a_continued_run_makes_once_more_is_dropped(path):
    """The last one, after the last checkpoint of the same update, or one of the weights that training begins with."""
    path.write_text(validation(0) + report(20) + validation(20) + report(25) + validation(25))
    drop_metrics_after(path, 25, 20)
    assert path.read_text() == validation(0) + report(20) + validation(20) + report(25)
    drop_metrics_after(path, 0, -1)
    assert path.read_text() == ""


def test_a_line_whose_end_was_cut_off_gets_it(path):
    path.write_text(report(20) + report(40)[:-1])
    drop_metrics_after(path, 40, -1)
    assert path.read_text() == report(20) + report(40)


def test_the_time_of_a_validation_counts_where_it_is_recorded(path):
    timed = json.loads(validation(40)) | {"seconds": 33.5}
    path.write_text(report(40) + json.dumps(timed) + "\n" + validation(50))
    assert read_metrics(path).seconds == 33.5


def test_before_the_first_line(path):
    nothing = read_metrics(path)
    assert nothing == Metrics([], [])
    assert (nothing.best, nothing.updates, nothing.seconds) == (None, None, None)
    path.touch()
    assert read_metrics(path) == nothing


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_a_line_that_was_cut_off_is_left_out(path, cut):
    path.write_text(report(20) + report(40)[:-cut])
    assert updates(read_metrics(path)) == ([20, 40] if cut == 1 else [20], [])  # 1: only the line's end


@pytest.mark.parametrize(
    "line",
    [
        *("", "[]", "null", "7", "{}", "\udcff\udcfe", '{"update": 30}', '{"loss": 1.0}'),
        '{"update": "30", "loss": 1.0}',
        '{"update": 30.5, "loss": 1.0}',
        '{"update": 30, "valid_loss": NaN, "metric": "bleu", "score": 1.0}',
        '{"update": 30, "valid_loss": 1.0, "metric": "bleu", "score": "high"}',
        '{"update": 30, "valid_loss": 1.0, "metric": 7, "score": 1.0}',
        '{"update": 30, "valid_loss": 1.0}',
        '{"update": 30, "tokens": 1.0}',
    ],
)
def test_a_line_that_makes_no_sense_is_left_out(path, line):
    path.write_text(report(20) + line + "\n" + report(40), errors="surrogateescape")
    assert updates(read_metrics(path)) == ([20, 40], [])


@pytest.mark.parametrize("wrong", ['"loss": Infinity', '"loss": 1, "learning_rate": "high"', '"loss": 1, "epoch": 1.5'])
def test_a_line_with_a_figure_that_makes_no_sense_is_left_out(path, wrong):
    path.write_text(f'{{"update": 20, {wrong}}}\n{{"update": 40, "loss": 1.5, "seconds": null}}\n')
    assert read_metrics(path).reports == [Report(40, 1.5, None, None, None)]


def test_a_run_that_went_on_from_an_earlier_update_has_none_twice(path):
    first = report(20) + validation(30) + report(40) + report(60, 9.0) + validation(60, 99.0) + report(80, 9.0)
    path.write_text(first + report(60, 1.0) + validation(60, 5.0) + report(80, 1.0))
    found = read_metrics(path)
    assert updates(found) == ([20, 40, 60, 80], [30, 60])
    assert [one.loss for one in found.reports] == [3.5, 3.5, 1.0, 1.0]
    assert [one.score for one in found.validations] == [11.0, 5.0]


def test_the_mean_of_weights_that_became_the_model_is_no_validation_of_the_course(path):
    """`runs`, the model card and pruning told the best validation's score where the model had another."""
    path.write_text(report(20) + validation(20) + report(40) + validation(40, 9.0))
    best = read_metrics(path).kept
    mean = Averaged(40, 2.25, "bleu", 10.5, 30.0, validations=2)
    append_metrics(path, mean)
    found = read_metrics(path)
    assert updates(found) == ([20, 40], [20, 40])
    assert (best, found.best, found.kept, found.seconds) == (found.validations[0], best, mean, 30.0)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"update": 40, "averaged": 2, "averaged_loss": 2.0, "metric": "bleu"}\n')  # no score: no line
    assert read_metrics(path) == found
    drop_metrics_after(path, 40, 40)  # it was killed before its end, and comes to it again
    assert read_metrics(path).kept == best
    append_metrics(path, mean)
    append_metrics(path, Report(60, 3.5, None, None, None))
    assert read_metrics(path).kept == best


def test_a_run_that_went_back_to_before_a_validation(path):
    path.write_text(report(20) + report(40) + validation(30))  # 30 again: what 40 said is of another time
    assert updates(read_metrics(path)) == ([20], [30])
    path.write_text(report(20) + validation(20) + report(20))
    assert updates(read_metrics(path)) == ([20], [])
    path.write_text(validation(5) + validation(10) + validation(15) + validation(10, 7.0))
    assert [(one.update, one.score) for one in read_metrics(path).validations] == [(5, 11.0), (10, 7.0)]


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        ([(10, 5.0, 2.0), (20, 7.0, 2.0), (30, 6.0, 2.0)], 20),
        ([(10, 7.0, 2.0), (20, 7.0, 1.5), (30, 7.0, 1.5)], 20),
    ],
    ids=["score", "loss, then the first"],
)
@pytest.mark.parametrize("metric", ["bleu", "wer"])
def test_the_best_validation(path, lines, best, metric):
    sign = -1 if metric == "wer" else 1
    path.write_text("".join(validation(update, sign * score, loss, metric) for update, score, loss in lines))
    found = read_metrics(path).best
    assert found is not None
    assert found.update == best
