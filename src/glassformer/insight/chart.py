"""A picture of a model's heads: layers x heads, coloured by importance, labelled by role. Needs the extra `plots`."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.files import replacing
from glassformer.insight.heads import Head

STACKS = {
    "encoder": ("encoder.", ".self_attention", "encoder"),
    "decoder": ("decoder.", ".self_attention", "decoder, its own text"),
    "source": ("decoder.", ".source_attention", "decoder, the source"),
}
_WORDS = {"positional": "{offset:+d}", "rare words": "rare", "end": "end"}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw_heads(heads: Sequence[Head], png: Path) -> None:
    """Draw the heads into a PNG, which appears when it is complete."""
    figure = plot_heads(heads)
    with replacing(png) as file:
        figure.savefig(file, format="png", dpi=130)


def plot_heads(heads: Sequence[Head]) -> Any:
    """A matplotlib Figure with a panel for each kind of attention. Importance is the rise of the loss when the head is
    switched off; the colours' scale is that of all panels."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing heads needs matplotlib: pip install 'glassformer[plots]'") from error
    panels = {name: _rows(heads, *ends) for name, (*ends, _) in STACKS.items()}
    panels = {name: rows for name, rows in panels.items() if rows}
    layers, most = (max(map(len, panels.values())), max(len(row) for rows in panels.values() for row in rows))
    figure = Figure(figsize=(1.2 + len(panels) * (0.62 * most + 0.9), 1.6 + 0.62 * layers), layout="constrained")
    FigureCanvasAgg(figure)
    norm = PowerNorm(0.5, vmin=0.0, vmax=max(1e-9, *(head.without for head in heads)))
    drawn: Any = None
    for axes, (name, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        values = [[max(0.0, head.without) for head in row] + [float("nan")] * (most - len(row)) for row in rows]
        drawn = axes.imshow(values, cmap="viridis", norm=norm)
        for y, row in enumerate(rows):
            for x, head in enumerate(row):
                word = _WORDS.get(head.role, "").format(offset=head.offset)
                light = norm(max(0.0, head.without)) < 0.6
                axes.text(x, y, word, ha="center", va="center", fontsize=8, color="white" if light else "black")
        axes.set_title(STACKS[name][2], fontsize=10)
        axes.set_xticks(range(most))
        axes.set_yticks(range(len(rows)))
        axes.set_xlabel("head")
        axes.tick_params(length=0)
    figure.axes[0].set_ylabel("layer")
    figure.colorbar(drawn, ax=figure.axes, shrink=0.8, label="loss without the head, nats a token more")
    return figure


def _rows(heads: Sequence[Head], begin: str, end: str) -> list[list[Head]]:
    """The heads of a kind of attention, layer by layer."""
    layers: dict[str, list[Head]] = {}
    for head in heads:
        if head.attention.startswith(begin) and head.attention.endswith(end):
            layers.setdefault(head.attention, []).append(head)
    return list(layers.values())
