"""The picture of docs/scaling.md: predictions beside measurements, and speed by the number of devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.pictures import ACCENT, MAIN, MUTED, PEERS, SECOND, SMALL, new_figure, save_figure, style_axes
from scaling.cluster import DGX, H100, SIZES, Plan, fitted, powers, seconds_of_update
from scaling.tables import BATCH, LARGE, WITHIN, Recorded

MOST = 1024
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
    """Draw what was predicted over what was measured, with the band in which the check passes."""
    ends = [0.5 * min(one["measured"] for one in found), 2 * max(one["measured"] for one in found)]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    axes.fill_between(
        ends, [end * (1 - WITHIN) for end in ends], [end * (1 + WITHIN) for end in ends], color=MUTED, alpha=0.18
    )
    for kind, (marker, color) in MARKS.items():
        ours = [one for one in found if (one["mode"] if one["what"] == "update" else "translate") == kind]
        places = [[one[name] for one in ours] for name in ("measured", "predicted")]
        axes.plot(*places, marker=marker, color=color, linestyle="", label=NAMES[kind])
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.legend(loc="upper left")
    title = f"1, 2 and 4 processes on 2 cores (band: {WITHIN:.0%})"
    style_axes(axes, title=title, x="measured, seconds", y="predicted, seconds")


def _draw_speed(axes: Any, recorded: Recorded) -> None:
    """Draw the tokens a second of base and big over the number of devices, for two sizes of batch."""
    lines = {
        "base, 400,000 tokens": ("base", MAIN, "-", lambda devices: recorded.plan(devices, BATCH)),
        "big, 400,000 tokens": ("big", SECOND, "-", lambda devices: recorded.plan(devices, BATCH)),
        "base, 65,536 a device": ("base", MAIN, "--", lambda devices: recorded.plan(devices, LARGE * devices)),
        "base, the same, recorded": ("base", ACCENT, "--", lambda devices: _helped(recorded, devices)),
    }
    counts = powers(MOST)
    for label, (size, color, style, plan) in lines.items():
        config = SIZES[size]
        plans = [fitted(H100, config, plan(devices)) for devices in counts]
        rates = [one.tokens / seconds_of_update(H100, DGX, config, one) for one in plans]
        axes.plot(counts, rates, color=color, linestyle=style, linewidth=1.8, label=label)
    first = fitted(H100, SIZES["base"], recorded.plan(1, BATCH))
    rate = BATCH / seconds_of_update(H100, DGX, SIZES["base"], first)
    axes.plot(
        counts, [rate * count for count in counts], color=MUTED, linewidth=1, linestyle=":", label="base, in proportion"
    )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize=SMALL)
    style_axes(axes, title="H100s, predicted: nothing was run there", x="devices", y="target tokens per second")


def _helped(recorded: Recorded, devices: int) -> Plan:
    """Return a training with large batches, recorded operators, and hosts that agree every 20 updates."""
    plan = recorded.plan(devices, LARGE * devices, recorded=True)
    return replace(plan, agree=plan.agree / 20)
