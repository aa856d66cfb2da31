"""Pictures of a model's heads by importance and role or by an alignment, and of a pruning's scores over the heads left.

They need the extra `plots`.
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from glassformer.errors import ArgumentError
from glassformer.insight.alignment import AlignedHead
from glassformer.insight.heads import Head
from glassformer.insight.prune import Pruning
from glassformer.pictures import (
    ACCENT,
    FRAME,
    INK,
    MAIN,
    MUTED,
    SMALL,
    add_bar,
    color_map,
    ink_on,
    load_matplotlib,
    new_figure,
    save_figure,
    style_axes,
    style_map,
)
from glassformer.run.curves import SCORE_NAMES

DOTS_PER_INCH = 130
PANELS = {
    "encoder": ("encoder.", ".self_attention", "Encoder"),
    "decoder": ("decoder.", ".self_attention", "Decoder → itself"),
    "source": ("decoder.", ".source_attention", "Decoder → source"),
}
WIDEST, TALLEST, LARGEST_CELL = 12.0, 60.0, 0.72
"""Inches of all cells side by side and one below the other, if they are many, and of one if they are few."""
LARGEST_ALIGNED_CELL = 0.5
"""Inches of a cell that holds one number."""
SMALLEST_TEXT_CELL = 0.44
"""In smaller cells nothing is written."""
_ROLE_LABELS = {"positional": "{offset:+d}", "syntactic": "{syntax.relation}", "rare words": "rare", "end": "end"}
_ROLES_EXPLAINED = {
    "positional": "-1, +1, ... so many tokens away",
    "syntactic": "nsubj, obj, ... along this relation",
    "rare words": "rare words",
    "end": "the sentence's end",
}


def draw_heads(heads: Sequence[Head], png: Path) -> None:
    """Draw the heads into a PNG file, which appears when it is complete."""
    save_figure(plot_heads(heads), png)


def plot_heads(heads: Sequence[Head]) -> Any:
    """Return a matplotlib Figure of layers x heads, with a panel for each kind of attention.

    Colour and number are the rise of the loss when the head is switched off, on one scale for all panels; below the
    number stands the role. Cells that are too small for that have only their colour.
    """
    panels = {name: _rows(heads, *ends) for name, (*ends, _) in PANELS.items()}
    panels = {name: rows for name, rows in panels.items() if rows}
    layers = max(_layer(rows[-1]) for rows in panels.values()) + 1
    most = max(head.head for head in heads) + 1
    cell = min(LARGEST_CELL, WIDEST / (len(panels) * most), TALLEST / layers)
    size = max(8.0, 0.9 + len(panels) * (cell * most + 0.45)), 2.1 + cell * layers
    figure = new_figure("heads", figsize=size, dpi=DOTS_PER_INCH)
    norm = load_matplotlib("heads").colors.PowerNorm(0.5, vmin=0.0, vmax=max(1e-9, *(head.without for head in heads)))
    colors, drawn = color_map(blank="white"), None
    for axes, (name, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        drawn = _draw_panel(axes, rows, (layers, most), colors, norm)
        if cell >= SMALLEST_TEXT_CELL:
            _write_numbers(axes, rows, colors, norm)
        style_map(axes, title=PANELS[name][2], x="head")
        axes.xaxis.set_label_position("top")
        axes.xaxis.tick_top()
        axes.set_xticks(range(0, most, 1 if cell >= 0.2 else 4))
        axes.set_yticks([_layer(row) for row in rows])  # a layer without heads has no row
    figure.axes[0].set_ylabel("layer")
    label = "loss without the head, minus loss with it, nats per token\n(darker: the model needs this head more)"
    if roles := [_ROLES_EXPLAINED[role] for role in _ROLES_EXPLAINED if role in {head.role for head in heads}]:
        label += f"\nbelow the number, where the head looks: {', '.join(roles)}" if cell >= SMALLEST_TEXT_CELL else ""
    add_bar(drawn, figure.axes, label, location="bottom", shrink=min(1.0, 7 / size[0]), aspect=45)
    return figure


def _draw_panel(axes: Any, rows: Sequence[Sequence[Head]], size: tuple[int, int], colors: Any, norm: Any) -> Any:
    """Draw the heads of one kind of attention on a grid of `size` layers and heads, which is the same in all panels.

    So cells are equally large, and a layer stands at the same height in each. Places without a head stay blank.
    """
    rectangle = load_matplotlib("heads").patches.Rectangle
    values = [[float("nan")] * size[1] for _ in range(size[0])]
    for row in rows:
        for head in row:
            values[_layer(row)][head.head] = max(0.0, head.without)
            corner = head.head - 0.5, _layer(row) - 0.5
            axes.add_patch(rectangle(corner, 1, 1, fill=False, edgecolor=FRAME, linewidth=0.6))
    drawn = axes.imshow(values, cmap=colors, norm=norm)
    axes.set(xlim=(-0.55, size[1] - 0.45), ylim=(size[0] - 0.45, -0.55))
    return drawn


def _write_numbers(axes: Any, rows: Sequence[Sequence[Head]], colors: Any, norm: Any) -> None:
    """Write the rise of the loss into each cell, and below it the role."""
    for row in rows:
        for head in row:
            role = _ROLE_LABELS.get(head.role, "").format(offset=head.offset, syntax=head.syntax)
            style: dict[str, Any] = dict(ha="center", va="center", color=ink_on(colors(norm(max(0.0, head.without)))))
            x, y = head.head, _layer(row)
            axes.text(x, y - 0.12 if role else y, f"{round(head.without, 3) + 0.0:.3f}", fontsize=SMALL, **style)
            if role:
                axes.text(x, y + 0.24, role, fontsize=SMALL - 2, **style)


def plot_alignment(heads: Sequence[AlignedHead]) -> Any:
    """Return a matplotlib Figure of attentions x heads, coloured by how often each head finds the aligned key.

    `heads` are those of `study_alignment`. Cells that are too small for a number have only their colour.

    >>> from glassformer.insight.alignment import AlignedHead
    >>> shares = dict(by_position=0.2, weight=0.5)
    >>> heads = [AlignedHead(attention="0", head=n, found=found, **shares) for n, found in enumerate((0.1, 0.9))]
    >>> plot_alignment(heads).savefig("heads.png")  # doctest: +SKIP
    """
    if not heads:
        raise ArgumentError("heads must be those of study_alignment, got none")
    rows: dict[str, list[AlignedHead]] = {}
    for head in heads:
        rows.setdefault(head.attention, []).append(head)
    most = max(head.head for head in heads) + 1
    cell = min(LARGEST_ALIGNED_CELL, WIDEST / most, TALLEST / len(rows))
    names, path = _short_names(list(rows))
    size = max(6.0, 2.2 + cell * most + 0.09 * max(map(len, names))), 1.2 + cell * len(rows)
    figure = new_figure("heads", figsize=size, dpi=DOTS_PER_INCH)
    axes, colors = figure.subplots(), color_map(blank="white")
    values = [[float("nan")] * most for _ in rows]
    for values_of_row, row in zip(values, rows.values(), strict=True):
        for head in row:
            values_of_row[head.head] = head.found
    drawn = axes.imshow(values, cmap=colors, vmin=0.0, vmax=1.0)
    if cell >= SMALLEST_TEXT_CELL:
        for y, row in enumerate(rows.values()):
            for head in row:
                style: dict[str, Any] = dict(ha="center", va="center", color=ink_on(colors(head.found)), fontsize=SMALL)
                axes.text(head.head, y, f"{head.found:.0%}", **style)
    style_map(axes, x="head", y="layer" if path else "")
    axes.set_title(path, loc="left", fontsize=SMALL, color=MUTED)
    axes.set_xticks(range(0, most, 1 if cell >= 0.2 else 4))
    axes.set_yticks(range(len(rows)), names)
    add_bar(drawn, axes, "queries whose largest weight is on their key", format="{x:.0%}", shrink=0.8)
    return figure


def _short_names(attentions: Sequence[str]) -> tuple[list[str], str]:
    """Return what differs in the paths of attentions, and what they share, with an asterisk in its place."""
    begin = _shared_start(attentions).rstrip("0123456789")
    rests = [name[len(begin) :] for name in attentions]
    end = _shared_start([rest[::-1] for rest in rests])[::-1].lstrip("0123456789")
    names = [rest.removesuffix(end) for rest in rests]
    if len(attentions) == 1 or not all(names) or not any(map(str.isalnum, begin + end)):
        return list(attentions), ""
    return names, f"{begin}*{end}"


def _shared_start(names: Sequence[str]) -> str:
    """Return the letters with which all names begin."""
    together = zip(*names, strict=False)  # which ends with the shortest
    return "".join(letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, together))


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
    axes.plot([100, *kept], whole, "s--", color=MUTED, markersize=5, label=f"all {heads} heads, trained as long")
    axes.plot([100, *kept], pruned, "o-", color=MAIN, label="fewer heads, trained on")
    untrained = [one.before for one in report.rounds]
    axes.plot(kept, untrained, "x:", color=ACCENT, label="fewer heads, before training on")
    for share, one in zip(kept, report.rounds, strict=True):
        below: dict[str, Any] = dict(textcoords="offset points", xytext=(0, -15), ha="center", fontsize=SMALL)
        axes.annotate(f"{one.heads} heads", (share, one.score), color=INK, **below)
    axes.invert_xaxis()
    axes.margins(x=0.08, y=0.12)
    axes.legend()
    style_axes(axes, x=f"heads left, % of {heads}", y=SCORE_NAMES.get(report.metric, report.metric))
    return figure


def _rows(heads: Sequence[Head], prefix: str, suffix: str) -> list[list[Head]]:
    """Return the heads of one kind of attention, layer by layer."""
    layers: dict[str, list[Head]] = {}
    for head in heads:
        if head.attention.startswith(prefix) and head.attention.endswith(suffix):
            layers.setdefault(head.attention, []).append(head)
    return list(layers.values())


def _layer(row: Sequence[Head]) -> int:
    return int(row[0].attention.split(".")[1])
