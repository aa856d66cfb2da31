"""A picture of what `watch` saw: heat maps of layers and heads over the steps. Needs matplotlib (extra `plots`)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from glassformer.capture.sightings import HIGHEST, Sighting, facts_of, heads_of, series
from glassformer.errors import ArgumentError, abridged
from glassformer.pictures import ACCENT, FRAME, SMALL, add_bar, color_map, new_figure, style_map

TITLES = {
    "entropy": ("entropy of each head", "share of the largest", (0.0, 1.0)),
    "max_score": ("largest score of each head", "score", None),
    "lse": ("largest log-sum-exp of the scores of each head", "nats", None),
    "sink": ("attention to the first keys", "share", (0.0, 1.0)),
    "distance": ("mean distance to the keys", "positions", None),
}
ROW, MOST_INCHES = 0.085, 12.0
"""Height of a head's row and the most of a panel, in inches."""


def plot_sightings(sightings: Sequence[Sighting]) -> Any:
    """Return a matplotlib Figure with a panel for each fact. A row is a head, a column a step that was looked at."""
    facts, heads = facts_of(sightings), heads_of(sightings)
    if not facts:
        raise ArgumentError("nothing was seen yet, so there is nothing to plot: call log(step) at the end of each step")
    height = min(MOST_INCHES, max(1.6, ROW * sum(heads.values()))) + 0.8
    figure = new_figure("heads over time", figsize=(9.0, height * len(facts)), dpi=120, facecolor="white")
    panels = figure.subplots(len(facts), sharex=True, squeeze=False)[:, 0]
    for axes, fact in zip(panels, facts, strict=True):
        draw_heat(axes, sightings, fact)
    panels[-1].set_xlabel("step")
    return figure


def draw_heat(axes: Any, sightings: Sequence[Sighting], fact: str) -> None:
    """Draw one fact of all heads into these axes, with marks at the heads that were warned of."""
    heads, (title, unit, limits) = heads_of(sightings), TITLES[fact]
    steps = [sighting.step for sighting in sightings]
    edges = _edges(steps)
    rows = [
        [values[head] if head < len(values) else float("nan") for values in series(sightings, layer, fact)]
        for layer, count in heads.items()
        for head in range(count)
    ]
    low, high = limits or _limits(rows)
    image = axes.pcolormesh(edges, range(len(rows) + 1), rows, cmap=color_map(), vmin=low, vmax=high)
    first = dict(zip(heads, _starts(list(heads.values())), strict=True))
    axes.set_yticks([first[layer] + count / 2 for layer, count in heads.items()])
    axes.set_yticklabels([abridged(layer, 40) for layer in heads], parse_math=False)
    for start in list(first.values())[1:]:
        axes.axhline(start, color=FRAME, linewidth=0.8)
    marks = [
        (sighting.step, first[alarm.layer] + alarm.head + 0.5)
        for sighting in sightings
        for alarm in sighting.alarms
        if alarm.layer in first and alarm.head < heads[alarm.layer]
        if alarm.kind == "nan" or (alarm.kind == "runaway") == (fact in HIGHEST)
    ]
    count = f": {len(marks)} warnings" if len(marks) > 1 else ": 1 warning" if marks else ""
    if marks:
        axes.plot(*zip(*marks, strict=True), "x", color=ACCENT, markersize=6, markeredgewidth=1.6)
    axes.set_ylim(len(rows), 0)
    axes.set_xlim(edges[0], edges[-1])
    style_map(axes, title=title + count)
    axes.yaxis.set_tick_params(labelsize=SMALL - 1)
    add_bar(image, axes, unit)


def _limits(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the least and the largest of the finite numbers, and zero between them."""
    finite = [x for row in rows for x in row if math.isfinite(x)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return min(low, 0.0), max(high, 0.0) or (0.0 if low < 0 else 1.0)


def _edges(steps: Sequence[int]) -> list[float]:
    """Return where the column of each step begins and ends: half way to its neighbours."""
    if len(steps) == 1:
        return [steps[0] - 0.5, steps[0] + 0.5]
    between = [(before + after) / 2 for before, after in pairwise(steps)]
    return [steps[0] - (between[0] - steps[0]), *between, steps[-1] + (steps[-1] - between[-1])]


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:n]) for n in range(len(counts))]
