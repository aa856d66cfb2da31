"""Pictures of a model's heads by importance and role, and of a pruning's scores over the heads that are left.

They need the extra `plots`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.insight.heads import Head
from glassformer.insight.prune import Pruning
from glassformer.pictures import load_matplotlib, new_figure, save_figure

DOTS_PER_INCH = 130
PANELS = {
    "encoder": ("encoder.", ".self_attention", "encoder"),
    "decoder": ("decoder.", ".self_attention", "decoder, its own text"),
    "source": ("decoder.", ".source_attention", "decoder, the source"),
}
_ROLE_LABELS = {"positional": "{offset:+d}", "syntactic": "{syntax.relation}", "rare words": "rare", "end": "end"}


def draw_heads(heads: Sequence[Head], png: Path) -> None:
    """Draw the heads into a PNG file, which appears when it is complete."""
    save_figure(plot_heads(heads), png)


def plot_heads(heads: Sequence[Head]) -> Any:
    """Return a matplotlib Figure of layers x heads, with a panel for each kind of attention.

    Colour is the rise of the loss when the head is switched off, on one scale for all panels; the label is the role.
    """
    panels = {name: _rows(heads, *ends) for name, (*ends, _) in PANELS.items()}
    panels = {name: rows for name, rows in panels.items() if rows}
    layers, most = (max(map(len, panels.values())), max(len(row) for rows in panels.values() for row in rows))
    size = 1.2 + len(panels) * (0.62 * most + 0.9), 1.6 + 0.62 * layers
    figure = new_figure("heads", figsize=size, dpi=DOTS_PER_INCH)
    norm = load_matplotlib("heads").colors.PowerNorm(0.5, vmin=0.0, vmax=max(1e-9, *(head.without for head in heads)))
    drawn: Any = None
    for axes, (name, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        values = [[max(0.0, head.without) for head in row] + [float("nan")] * (most - len(row)) for row in rows]
        drawn = axes.imshow(values, cmap="viridis", norm=norm)
        for y, row in enumerate(rows):
            for x, head in enumerate(row):
                word = _ROLE_LABELS.get(head.role, "").format(offset=head.offset, syntax=head.syntax)
                light = norm(max(0.0, head.without)) < 0.6
                axes.text(x, y, word, ha="center", va="center", fontsize=8, color="white" if light else "black")
        axes.set_title(PANELS[name][2], fontsize=10)
        axes.set_xticks(range(most))
        axes.set_yticks(
            range(len(rows)), [row[0].attention.split(".")[1] for row in rows]
        )  # a layer without heads has no row
        axes.set_xlabel("head")
        axes.tick_params(length=0)
    figure.axes[0].set_ylabel("layer")
    figure.colorbar(drawn, ax=figure.axes, shrink=0.8, label="rise of the loss without the head, nats per token")
    return figure


def draw_pruning(report: Pruning, png: Path) -> None:
    """Draw the scores of a pruning into a PNG file, which appears when it is complete."""
    save_figure(plot_pruning(report), png)


def plot_pruning(report: Pruning) -> Any:
    """Return a matplotlib Figure of the score over the share of heads that is left.

    It has a line for the score right after heads were removed, one for that after training on, and one for the unpruned
    model after the same trainings.
    """
    figure = new_figure("a pruning", figsize=(6.4, 4.2), dpi=DOTS_PER_INCH)
    axes = figure.subplots()
    heads, first = report.unpruned[0].heads, report.unpruned[0].before
    kept = [100 * one.heads / heads for one in report.rounds]
    whole, pruned = ([first, *(one.score for one in steps)] for steps in (report.unpruned, report.rounds))
    axes.plot([100, *kept], whole, ".--", color="#777777", label=f"all {heads} heads, trained as long")
    axes.plot([100, *kept], pruned, "o-", color="#3b6fb6", label="trained on")
    axes.plot(kept, [one.before for one in report.rounds], "x:", color="#d1622b", label="right after removing heads")
    for share, one in zip(kept, report.rounds, strict=True):
        below: dict[str, Any] = dict(textcoords="offset points", xytext=(0, -15), ha="center", fontsize=8)
        axes.annotate(f"{one.heads}", (share, one.score), **below)
    axes.invert_xaxis()
    axes.set_xlabel("heads left, %")
    axes.set_ylabel(report.metric)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _rows(heads: Sequence[Head], prefix: str, suffix: str) -> list[list[Head]]:
    """Return the heads of one kind of attention, layer by layer."""
    layers: dict[str, list[Head]] = {}
    for head in heads:
        if head.attention.startswith(prefix) and head.attention.endswith(suffix):
            layers.setdefault(head.attention, []).append(head)
    return list(layers.values())
