"""Pictures of a training, and of two over each other, along their updates. Needs matplotlib (extra `plots`)."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from glassformer.capture.heat import draw_heat
from glassformer.capture.sightings import Sighting, facts_of, read_sightings
from glassformer.errors import ArgumentError, RunError
from glassformer.meter import format_duration
from glassformer.pictures import ACCENT, MAIN, MUTED, TITLE, new_figure, save_figure, style_axes
from glassformer.run.config import read_config
from glassformer.run.metrics import Metrics, Report, read_metrics
from glassformer.run.names import METRICS, WATCHED
from glassformer.scoring.scores import LOWER_IS_BETTER

INCHES, DOTS_PER_INCH = (9.0, 9.5), 120  # 1080 x 1140 dots
HEAT = 3.0
"""Inches that a panel of all heads makes the picture higher."""
MOST_POINTS = 2000
FEW = 60
"""Most points of a curve that are marked one by one."""
SMOOTHED = 0.02
"""A point of the smoothed loss is the mean of this share of the reports."""
WIDE = 4
"""Losses that differ by a larger factor are drawn on a logarithmic axis."""

_TRAINING, _VALIDATION = MAIN, ACCENT
SCORE_NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact": "exact match, %",
    "wer": "word error rate, %",
    "ser": "symbol error rate, %",
}

Points = Sequence[tuple[int, float]]


def draw_curves(metrics: Path, png: Path) -> None:
    """Draw the figures of a metrics.jsonl into a PNG, which appears when it is complete. Safe in any thread."""
    save_figure(plot_curves(metrics), png)


def plot_curves(metrics: Path) -> Any:
    """Return the matplotlib Figure that `draw_curves` saves."""
    found = read_metrics(metrics)
    figure = new_figure("curves", figsize=INCHES, dpi=DOTS_PER_INCH, facecolor="white")
    seen = _seen(metrics.with_name(WATCHED))
    facts = [fact for fact in ("entropy", "max_score") if seen and fact in facts_of(seen)]
    width, height = INCHES
    figure.set_size_inches(width, height + HEAT * len(facts))
    panels = figure.subplots(3 + len(facts), sharex=True, height_ratios=[3, 2.4, 1.6, *[2.4] * len(facts)])
    _draw_loss(panels[0], found, _label_smoothing(metrics.parent))
    _draw_score(panels[1], found)
    _draw_rate(panels[2], found.reports)
    for axes in panels[:3]:
        style_axes(axes)
    for axes, fact in zip(panels[3:], facts, strict=True):
        draw_heat(axes, seen, fact)
    along = panels[-1]
    along.set_xlabel("updates")
    along.set_xlim(0, 1.02 * (found.updates or 1))
    along.xaxis.get_major_locator().set_params(integer=True)
    along.xaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle(_title(metrics.parent.resolve().name, found), parse_math=False)
    return figure


def draw_comparison(folders: Sequence[Path], png: Path) -> None:
    """Draw the losses and scores of two run folders over each other into a PNG, which appears when it is complete."""
    save_figure(plot_comparison(folders), png)


def plot_comparison(folders: Sequence[Path]) -> Any:
    """Return the matplotlib Figure that `draw_comparison` saves: training loss, validation loss and score."""
    found = [read_metrics(folder / METRICS) for folder in folders]
    figure = new_figure("curves", figsize=INCHES, dpi=DOTS_PER_INCH, facecolor="white")
    panels = figure.subplots(3, sharex=True, height_ratios=[1, 1, 1])
    for metrics, color in zip(found, (_TRAINING, _VALIDATION), strict=True):
        style = {"color": color}
        raw = [(report.update, report.loss) for report in metrics.reports if report.loss is not None]
        _draw(panels[0], _smooth(raw) if len(raw) > FEW else raw, **style)
        _draw(panels[1], [(one.update, one.loss) for one in metrics.validations], **style)
        _draw(panels[2], [(one.update, one.score) for one in metrics.validations], **style)
    _name_panels(panels, found)
    # Named here: of labels of its own a legend leaves out those that begin with an underscore.
    lines = panels[0].get_lines()
    for text in panels[0].legend(lines, list(map(str, folders)), loc="upper right").get_texts():
        text.set_parse_math(False)
    for axes in panels:
        style_axes(axes)
    panels[-1].set_xlabel("updates")
    panels[-1].set_xlim(0, 1.02 * max((metrics.updates or 1) for metrics in found))
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    return figure


def _name_panels(panels: Any, found: Sequence[Metrics]) -> None:
    """Give the panels of a comparison their titles; scores of two kinds are named as such."""
    losses = [(one.update, one.loss) for metrics in found for one in metrics.validations]
    reports = [(one.update, one.loss) for metrics in found for one in metrics.reports if one.loss is not None]
    _head(panels[0], "training loss", "nats per token", reports)
    _head(panels[1], "validation loss", "nats per token", losses)
    kinds = sorted({metrics.best.metric for metrics in found if metrics.best})
    name = " and ".join(SCORE_NAMES.get(kind, kind) for kind in kinds)
    lower = " (lower is better)" if kinds and set(kinds) <= set(LOWER_IS_BETTER) else ""
    title = f"{name}: two scores, not to be compared" if len(kinds) > 1 else f"{name.removesuffix(', %')}{lower}"
    _head(panels[2], title or "score", name, losses)
    for axes, points in ((panels[0], reports), (panels[1], losses)):
        if points:
            _widen(axes, points)


def _seen(path: Path) -> list[Sighting]:
    """Return what `--watch` saw; nothing if it isn't there, or can't be read: the picture needs only the metrics."""
    try:
        return read_sightings(path)
    except (OSError, ArgumentError):
        return []


def _draw_loss(axes: Any, found: Metrics, label_smoothing: float) -> None:
    raw = [(report.update, report.loss) for report in found.reports if report.loss is not None]
    smoothed = f", label smoothing {label_smoothing:g}" if label_smoothing else ""
    if len(raw) > FEW:
        _draw(axes, raw, color=_TRAINING, alpha=0.3, linewidth=0.8)
        _draw(axes, _smooth(raw), color=_TRAINING, label=f"training{smoothed}")
    else:
        _draw(axes, raw, color=_TRAINING, label=f"training{smoothed}")
    validations = [(one.update, one.loss) for one in found.validations]
    last = f" (last {validations[-1][1]:.3f})" if validations else ""
    _draw(axes, validations, color=_VALIDATION, label=f"validation{last}")
    points = raw + validations
    _head(axes, "loss", "nats per token", points)
    if points:
        axes.legend(loc="upper right")
        _widen(axes, points)


def _widen(axes: Any, points: Points) -> None:
    """Give losses that differ by a large factor a logarithmic axis."""
    low, high = (pick(value for _, value in points) for pick in (min, max))
    if low > 0 and high / low > WIDE:
        axes.set_yscale("log", subs=[])
        axes.yaxis.get_major_locator().set_params(subs=(1, 1.5, 2, 3, 4, 6, 8) if high / low < 30 else (1, 2, 5))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("nats per token, logarithmic")


def _draw_score(axes: Any, found: Metrics) -> None:
    best = found.best
    points = [(one.update, one.score) for one in found.validations]
    _draw(axes, points, color=_VALIDATION)
    title, unit = "score", ""
    if best is not None:
        unit = SCORE_NAMES.get(best.metric, best.metric)
        lower = " (lower is better)" if best.metric in LOWER_IS_BETTER else ""
        title = f"{unit.removesuffix(', %')}{lower}: best {best.score:.2f} at update {best.update:,}"
        axes.plot([best.update], [best.score], "o", color=_VALIDATION, markersize=9, markerfacecolor="white", zorder=3)
    _head(axes, title, unit, points)


def _draw_rate(axes: Any, reports: Sequence[Report]) -> None:
    points = [(report.update, report.learning_rate) for report in reports if report.learning_rate is not None]
    _draw(axes, points, color=_TRAINING)
    axes.set_ylim(bottom=0)
    now = f": highest {max(rate for _, rate in points):.2g}, now {points[-1][1]:.2g}" if points else ""
    _head(axes, f"learning rate{now}", "", points)
    axes.yaxis.set_major_formatter("{x:g}")


def _draw(axes: Any, points: Points, **style: Any) -> None:
    marker = "." if len(points) <= FEW else None
    x, y = zip(*_thin(points), strict=True) if points else ((), ())
    axes.plot(x, y, marker=marker, **style)


def _head(axes: Any, title: str, unit: str, points: Points) -> None:
    axes.set_title(title, loc="left", fontsize=TITLE)
    axes.set_ylabel(unit)
    if not points:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", color=MUTED)


def _title(name: str, found: Metrics) -> str:
    """Return the run's name, if the font has its letters, and how far it came."""
    last = found.reports[-1] if found.reports else None
    parts = [name] if all(letter < "\u0530" for letter in name) else []  # Latin, Greek, Cyrillic
    parts += [f"{found.updates:,} updates"] if found.updates else []
    parts += [f"epoch {last.epoch}"] if last and last.epoch is not None else []
    parts += [f"{format_duration(found.seconds)} of training"] if found.seconds is not None else []
    return "  ·  ".join(parts)


def _smooth(points: Points) -> Points:
    """Return the mean around each point: as many points before as after, so that it doesn't lag.

    At the beginning there are fewer, and at the end fewer after it: so one point there doesn't stand for all.
    """
    sums = [0.0, *accumulate(value for _, value in points)]
    reach = max(1, round(SMOOTHED * len(points) / 2))
    smoothed = []
    for n, (update, _) in enumerate(points):
        low, high = max(0, n - reach), min(n + min(n, reach) + 1, len(points))
        smoothed.append((update, (sums[high] - sums[low]) / (high - low)))
    return smoothed


def _thin(points: Points) -> Points:
    """At most `MOST_POINTS` of them: of each stretch the lowest and the highest, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return points
    each = -(-len(points) // (MOST_POINTS // 2))

    def extremes() -> Iterator[tuple[int, float]]:
        for first in range(0, len(points), each):
            stretch = points[first : first + each]
            ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
            yield from sorted(ends)

    return list(extremes())


def _label_smoothing(folder: Path) -> float:
    """Return the label smoothing of the run's training, or 0 if it isn't known: the picture needs only the metrics."""
    try:
        smoothing = (read_config(folder).training.settings or {}).get("label_smoothing")
    except (OSError, RunError):
        return 0.0
    return smoothing if isinstance(smoothing, float) else 0.0
