"""The picture of a training: what is in it, for runs of any length, and that nothing but matplotlib is needed."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from glassformer.pictures import can_draw
from glassformer.run import curves
from glassformer.run.curves import draw_comparison, draw_curves, plot_comparison, plot_curves

pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")

from matplotlib.figure import Figure
from matplotlib.image import imread


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "metrics.jsonl"


def write(path: Path, reports: int, *, every: int = 5, metric: str = "bleu") -> None:
    """Appends reports 20 updates apart, and a validation after some."""
    with path.open("a") as file:
        for n in range(1, reports + 1):
            update = 20 * n
            line: dict[str, Any] = {"update": update, "epoch": 1 + n // 9, "loss": 2 + 1 / n, "seconds": 0.5 * update}
            file.write(json.dumps(line | {"learning_rate": min(update, 100) / 1e5}) + "\n")
            if n % every == 0:
                line = {"update": update, "valid_loss": 1.5 + 1 / n, "metric": metric, "score": 30 - abs(n - 10)}
                file.write(json.dumps(line) + "\n")


def lines(axes: Any) -> list[list[tuple[float, float]]]:
    """What is drawn in a panel, without marks of single points."""
    drawn = (list(zip(*line.get_data(), strict=True)) for line in axes.lines if line.get_linestyle() != "None")
    return [points for points in drawn if points]


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_png_of_this_size_with_something_in_it(path):
    write(path, 20)
    png = path.with_name("curves.png")
    png.write_bytes(b"of an earlier day")
    draw_curves(path, png)
    image = imread(png)
    assert image.shape[:2] == (1140, 1080)
    assert (image[..., :3] == 1).all(-1).mean() > 0.5  # mostly white
    for rows in (slice(80, 480), slice(510, 820), slice(870, 1070)):  # a coloured line in each panel
        pixels = image[rows, 120:, :3]
        assert ((pixels.max(-1) - pixels.min(-1)) > 0.2).any(-1).sum() > 20
    assert [file.name for file in path.parent.iterdir() if file != path] == ["curves.png"]


def test_what_the_panels_show(path):
    write(path, 20)
    figure = plot_curves(path)
    loss, score, rate = figure.axes
    training, validation = lines(loss)
    assert training == [(20 * n, 2 + 1 / n) for n in range(1, 21)]
    assert validation == [(20 * n, 1.5 + 1 / n) for n in (5, 10, 15, 20)]
    assert legend(loss) == ["training", "validation (last 1.550)"]
    assert lines(score) == [[(100, 25), (200, 30), (300, 25), (400, 20)]]
    assert score.get_title(loc="left") == "BLEU: best 30.00 at update 200"
    assert [tuple(line.get_xydata()[0]) for line in score.lines if line.get_marker() == "o"] == [(200, 30)]
    assert lines(rate) == [[(20 * n, min(20 * n, 100) / 1e5) for n in range(1, 21)]]
    assert rate.get_title(loc="left") == "learning rate: highest 0.001, now 0.001"
    assert [axes.get_ylabel() for axes in figure.axes] == ["nats per token", "BLEU", ""]
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 408)}
    assert rate.get_xlabel() == "updates"
    assert figure.get_suptitle() == "run  ·  400 updates  ·  epoch 3  ·  3:20 of training"


def test_an_error_rate_is_best_where_it_is_lowest(path):
    write(path, 20, metric="wer")
    score = plot_curves(path).axes[1]
    assert score.get_title(loc="left") == "word error rate (lower is better): best 20.00 at update 400"
    assert score.get_ylabel() == "word error rate, %"


def test_label_smoothing_is_said_since_the_loss_of_training_is_higher_for_it(path):
    write(path, 3)
    rest = '{"format": 1, "model": {}, "source_tokenizer": "s.spm", "target_tokenizer": "t.spm", "training": TRAINING}'
    for training, title in (
        ('{"settings": {"label_smoothing": 0.25}}', "training, label smoothing 0.25"),
        ('{"settings": {"label_smoothing": "0.25"}}', "training"),
        ("{}", "training"),
    ):
        path.with_name("config.json").write_text(rest.replace("TRAINING", training))
        assert legend(plot_curves(path).axes[0]) == [title, "validation"]


@pytest.mark.parametrize(("reports", "every"), [(0, 1), (1, 1), (1, 2), (2, 2)])
def test_a_run_that_has_just_begun(path, reports, every):
    if reports:
        write(path, reports, every=every)
    figure = plot_curves(path)
    draw_curves(path, path.with_name("curves.png"))
    empty = [not lines(axes) for axes in figure.axes]
    assert empty == [reports == 0, reports < every, reports == 0]
    assert ["nothing yet" in {text.get_text() for text in axes.texts} for axes in figure.axes] == empty
    for axes in figure.axes:
        assert all(line.get_marker() in (".", "o") for line in axes.lines)  # a line of one point can't be seen


def test_a_long_run_is_thinned_out_and_keeps_its_peaks(path):
    write(path, 10_000, every=3)
    with path.open("a") as file:
        for update, loss in ((200_020, 77.0), (200_040, 1.25), (200_060, 2.0)):
            file.write(json.dumps({"update": update, "loss": loss}) + "\n")
    figure = plot_curves(path)
    raw, smoothed, _ = lines(figure.axes[0])
    losses = [loss for _, loss in raw]
    assert (min(losses), max(losses)) == (1.25, 77)
    assert min(loss for _, loss in smoothed) > 1.99
    assert max(loss for update, loss in smoothed if update > 100_000) < 3  # 75 more, shared by a hundred
    for axes in figure.axes:
        for points in lines(axes):
            assert len(points) <= 2000
            updates = [update for update, _ in points]
            assert all(a < b for a, b in pairwise(updates))
            assert updates[0] <= 400
            assert updates[-1] >= 199_600


def test_smoothing_keeps_a_straight_line_and_takes_the_noise():
    straight = curves._smooth([(n, 100.0 - n) for n in range(500)])
    assert [update for update, _ in straight] == list(range(500))
    assert [value for _, value in straight[:495]] == pytest.approx([100.0 - n for n in range(495)])
    noisy = curves._smooth([(n, 5.0 + (-1) ** n) for n in range(500)])
    assert all(abs(value - 5) < 0.2 for _, value in noisy[10:])
    assert curves._smooth([(1, 2.0)]) == [(1, 2.0)]


def test_thinning_takes_the_lowest_and_the_highest_of_each_stretch(monkeypatch):
    monkeypatch.setattr(curves, "MOST_POINTS", 4)
    points = [(1, 5.0), (2, 9.0), (3, 1.0), (4, 5.0), (5, 5.0), (6, 5.0), (7, 0.0)]
    assert curves._thin(points) == [(2, 9.0), (3, 1.0), (5, 5.0), (7, 0.0)]
    assert curves._thin(points[:4]) == points[:4]


def test_losses_that_fall_far_are_drawn_logarithmically(path):
    losses = [9.0 / n if n != 2 else None for n in range(1, 9)]  # all updates of the second were left out
    path.write_text("".join(json.dumps({"update": 20 * n, "loss": loss}) + "\n" for n, loss in enumerate(losses, 1)))
    loss = plot_curves(path).axes[0]
    assert lines(loss) == [[(20 * n, loss) for n, loss in enumerate(losses, 1) if loss is not None]]
    assert (loss.get_yscale(), loss.get_ylabel()) == ("log", "nats per token, logarithmic")
    path.write_text("".join(json.dumps({"update": 20 * n, "loss": 9.0 * (n - 1)}) + "\n" for n in range(1, 9)))
    assert plot_curves(path).axes[0].get_yscale() == "linear"  # a loss of 0 has no logarithm


@pytest.mark.parametrize("name", ["no $_{$ formula", "語彙", "Größe_1"])
def test_any_name_of_a_run(tmp_path, name):
    (tmp_path / name).mkdir()
    path = tmp_path / name / "metrics.jsonl"
    write(path, 1)
    draw_curves(path, path.with_name("curves.png"))  # a letter that the font lacks would warn
    assert plot_curves(path).get_suptitle().startswith("20 updates" if name == "語彙" else f"{name}  ·  20 updates")


def test_in_several_threads_without_pyplot(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    write(path, 80)
    pictures = [path.with_name(f"{n}.png") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(draw_curves, [path] * 4, pictures))
    assert len({picture.read_bytes() for picture in pictures}) == 1


def test_a_picture_that_fails_leaves_the_old_one(path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    png = path.with_name("curves.png")
    write(path, 1)
    png.write_bytes(b"of an earlier day")
    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw_curves(path, png)
    assert png.read_bytes() == b"of an earlier day"
    assert sorted(file.name for file in path.parent.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_without_matplotlib(path, monkeypatch):
    assert can_draw()
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert not can_draw()
    with pytest.raises(ImportError, match=r"drawing curves needs matplotlib: pip install 'glassformer\[plots\]'"):
        draw_curves(path, path.with_name("curves.png"))
    assert not path.with_name("curves.png").exists()


def test_two_runs_are_drawn_over_each_other(tmp_path):
    folders = [tmp_path / name for name in ("one", "_o$t$her")]
    for folder, reports in zip(folders, (20, 10), strict=True):
        folder.mkdir()
        write(folder / "metrics.jsonl", reports)
    figure = plot_comparison(folders)
    training, validation, score = figure.axes
    assert [len(points) for points in lines(training)] == [20, 10]
    assert [len(points) for points in lines(validation)] == [4, 2]
    assert lines(score)[1] == [(100, 25), (200, 30)]
    assert legend(training) == [str(folder) for folder in folders]
    assert score.get_title(loc="left") == "BLEU"
    write(folders[1] / "metrics.jsonl", 10, metric="wer")
    title = plot_comparison(folders).axes[2].get_title(loc="left")
    assert title == "BLEU and word error rate, %: two scores, not to be compared"
    draw_comparison(folders, tmp_path / "compared.png")
    assert imread(tmp_path / "compared.png").shape[:2] == (1140, 1080)
