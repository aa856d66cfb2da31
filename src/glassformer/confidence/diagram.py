"""A reliability diagram: what was said of words beside what is so. It needs the extra `plots`."""

from pathlib import Path
from typing import Any

from glassformer.confidence.calibration import BINS, calibration_error
from glassformer.confidence.estimate import Measured
from glassformer.pictures import ACCENT, MAIN, MUTED, SMALL, new_figure, save_figure, style_axes

DOTS_PER_INCH = 130


def draw_reliability(measured: Measured, png: Path) -> None:
    """Draw a reliability diagram into a PNG file, which appears when it is complete."""
    save_figure(plot_reliability(measured), png)


def plot_reliability(measured: Measured) -> Any:
    """Return a matplotlib Figure of the share of right words over their probability, calibrated and the model's own.

    Points are on the diagonal where probabilities are honest. Below are the words of each bin. Example:
    docs/howto/confidence.md.
    """
    figure = new_figure("a reliability diagram", figsize=(5.2, 5.6), dpi=DOTS_PER_INCH)
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    axes.plot([0, 1], [0, 1], "--", color=MUTED, linewidth=1, label="honest")
    for name, bins, line, color in (
        ("the model's own", measured.model, "s:", ACCENT),
        ("calibrated", measured.words, "o-", MAIN),
    ):
        x, y = [one.probability for one in bins], [one.right for one in bins]
        axes.plot(x, y, line, color=color, markersize=5, label=f"{name}, ECE {calibration_error(bins):.3f}")
        counts.plot(x, [one.size for one in bins], line, color=color, markersize=3)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    counts.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=SMALL)
    style_axes(axes, y="share of the words that is right")
    style_axes(counts, x=f"probability of a word ({BINS} bins)", y="words")
    return figure
