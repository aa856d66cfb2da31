"""The picture of docs/scaling.md: predictions beside measurements, and speed by the number of devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.pictures import ACCENT, MAIN, MUTED, PEERS, SECOND, SMALL, new_figure, save_figure, style_axes
from scaling.cluster import DGX, H100, SIZES, Plan, fitted, powers, seconds_of_update
from scaling.tables import BATCH, LARGE, WITHIN, Recorded

COUNTS = (*powers(512), 1000)
MARKS = {"plain": ("o", MAIN), "ddp": ("s", PEERS[0]), "shard": ("^", ACCENT), "translate": ("D", PEERS[1])}
NAMES = {
    "plain": "training, alone",
    "ddp": "training, DDP",
    "shard": "training, --shard",
    "translate": "a line translated",
}


def draw(found: Sequence[Mapping[str, Any]], recorded: Recorded, png: Path) -> None:
    """Draw both parts side by side."""
    figure = new_figure("the scaling model", figsize=(10.4, 4.6), dpi=130)
    left, right = figure.subplots(1, 2)
    _draw_checks(left, found)
    _draw_speed(right, recorded)
    save_figure(figure, png)


def _draw_checks(axes: Any, found: Sequence[Mapping[str, Any]]) -> None:
    """Draw how far predictions are off, and the band in which the check passes."""
    ends = [0.5 * min(one["measured"] for one in found), 2 * max(one["measured"] for one in found)]
    axes.fill_between(ends, 1 - WITHIN, 1 + WITHIN, color=MUTED, alpha=0.18, linewidth=0)
    axes.axhline(1, color=MUTED, linewidth=1)
    for kind, (marker, color) in MARKS.items():
        ours = [one for one in found if (one["mode"] if one["what"] == "update" else "translate") == kind]
        ratios = [one["predicted"] / one["measured"] for one in ours]
        axes.plot(
            [one["measured"] for one in ours], ratios, marker=marker, color=color, linestyle="", label=NAMES[kind]
        )
        for one, ratio in zip(ours, ratios, strict=True):
            place: dict[str, Any] = dict(textcoords="offset points", xytext=(6, -3), color=color, fontsize=SMALL - 1)
            axes.annotate(str(one["processes"]), (one["measured"], ratio), **place)
    furthest = max(0.4, *(1.1 * abs(one["predicted"] / one["measured"] - 1) for one in found))
    axes.set(xscale="log", xlim=ends, ylim=(1 - furthest, 1 + furthest))
    axes.legend(loc="best", ncols=2)
    title = f"1, 2 and 4 processes on 2 cores (band: {WITHIN:.0%})"
    style_axes(axes, title=title, x="measured seconds of an update, or a line", y="predicted / measured")


def _draw_speed(axes: Any, recorded: Recorded) -> None:
    """Draw the tokens a second of base and big over the number of devices, for two sizes of batch."""
    lines = {
        "base, 400,000 tokens": ("base", MAIN, "-", lambda devices: recorded.plan(devices, BATCH)),
        "big, 400,000 tokens": ("big", SECOND, "-", lambda devices: recorded.plan(devices, BATCH)),
        "base, 65,536 a device": ("base", MAIN, "--", lambda devices: recorded.plan(devices, LARGE * devices)),
        "base, the same, recorded": ("base", ACCENT, "--", lambda devices: _helped(recorded, devices)),
    }
    for label, (size, color, style, plan) in lines.items():
        config = SIZES[size]
        plans = [fitted(H100, config, plan(devices)) for devices in COUNTS]
        rates = [one.tokens / seconds_of_update(H100, DGX, config, one) for one in plans]
        axes.plot(COUNTS, rates, color=color, linestyle=style, linewidth=1.8, label=label)
    first = fitted(H100, SIZES["base"], recorded.plan(1, BATCH))
    rate = BATCH / seconds_of_update(H100, DGX, SIZES["base"], first)
    axes.plot(
        COUNTS, [rate * count for count in COUNTS], color=MUTED, linewidth=1, linestyle=":", label="base, in proportion"
    )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([1, 8, 64, 1000], ["1", "8", "64", "1,000"])
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize=SMALL)
    style_axes(axes, title="H100s, predicted: nothing was run there", x="devices", y="target tokens per second")


def _helped(recorded: Recorded, devices: int) -> Plan:
    """Return a training with large batches, recorded operators, and hosts that agree every 20 updates."""
    plan = recorded.plan(devices, LARGE * devices, recorded=True)
    return replace(plan, agree=plan.agree / 20)
