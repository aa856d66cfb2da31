"""The tables of docs/scaling.md, from recorded constants."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scaling.cluster import (
    DGX,
    H100,
    RESTART,
    SIZES,
    Plan,
    checkpoint_seconds,
    enough_tokens,
    fitted,
    peak_bytes,
    predict,
    seconds_of_update,
    speed_up,
    widest,
)
from scaling.local import Constants
from scaling.translation import TOKENS, Fleet, predict_line
from scaling.waiting import checkpoint_interval, lost_share
from scaling.work import count_weights

DEVICES = (8, 64, 1000)
BATCH = 400_000
"""Target tokens of an update, the largest that Ott et al. 2018, "Scaling Neural Machine Translation", train with."""
LARGE = 65_536
"""Target tokens of a device and update, where all that counts is what the devices can do."""
TRAINED = 1e9
"""Target tokens whose training is priced."""
LINES = 1e9
"""Lines whose translation is priced."""
BLOCK = 10_000
"""Lines that a worker takes at a time."""
PREPARING = 16
"""Worker processes that prepare a corpus, at the most."""
MODES = {"plain": "", "ddp": "DDP", "shard": "`--shard`"}
WITHIN = 0.15
"""Largest relative error that the check allows."""


@dataclass(frozen=True)
class Recorded:
    """Measurements that the tables stand on, by this benchmark and by others."""

    constants: Constants
    lines: Mapping[str, Mapping[str, float]]
    """Seconds and processor seconds in which one worker translates a line, by preset."""
    gpu_tokens: float
    """Tokens a second that our GPU translates into with base (benchmarks/generation.py)."""
    prepared: float
    """Lines a second that one core prepares (benchmarks/preparation.py)."""
    planned: Mapping[int, Mapping[str, float]]
    """Seconds and MiB for the plan of an epoch, by the number of pairs (benchmarks/planning.py)."""

    def plan(self, devices: int, tokens: int, **settings: Any) -> Plan:
        """Return a training as noisy as a process here, whose hosts take as long for a step of their ring."""
        step = self.constants.message("reduce", 8, 2) / 2
        return Plan(devices, tokens, agree=step, noise=self.constants.noise, **settings)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [" | ".join(row) for row in (heads, *rows)]
    return "\n".join([f"| {lines[0]} |", f"|{'---|' * len(heads)}", *(f"| {line} |" for line in lines[1:])])


def checks(found: Sequence[Mapping[str, Any]]) -> str:
    """Return predicted and measured times of updates and of translated lines, a row for each model and mode."""
    counts = sorted({one["processes"] for one in found})
    rows = dict[tuple[str, str, str], dict[int, str]]()
    for one in found:
        key = one["what"], one["model"], MODES[one["mode"]]
        predicted, measured = (
            format(1e3 * one[name], ",.0f" if one["what"] == "update" else ",.1f") for name in ("predicted", "measured")
        )
        rows.setdefault(key, {})[one["processes"]] = (
            f"{predicted} / {measured} ({one['predicted'] / one['measured'] - 1:+.0%})"
        )
    heads = ["", "", *(f"{count} process{'es' * (count > 1)}" for count in counts)]
    return table(
        heads,
        [
            [f"{model}, {what}", mode, *(cells.get(count, "") for count in counts)]
            for (what, model, mode), cells in rows.items()
        ],
    )


def memories(found: Sequence[Mapping[str, Any]]) -> str:
    """Return predicted and measured memory of the processes that were checked."""
    rows = [
        [
            one["model"],
            str(one["processes"]),
            MODES[one["mode"]] or "alone",
            f"{one['predicted_bytes'] / 2**20:,.0f}",
            f"{one['measured_bytes'] / 2**20:,.0f}",
        ]
        for one in found
        if one["what"] == "update"
    ]
    return table(["model", "processes", "", "predicted, MiB", "measured, MiB"], rows)


def training(recorded: Recorded) -> str:
    """Return what updates of one batch cost on ever more devices."""
    rows = []
    for name, config in SIZES.items():
        for devices in (1, *DEVICES):
            plan = fitted(H100, config, recorded.plan(devices, BATCH))
            parts = predict(H100, DGX, config, plan)
            seconds = seconds_of_update(H100, DGX, config, plan)
            hours = seconds * TRAINED / BATCH / 3600
            rows.append(
                [
                    name,
                    f"{devices:,}",
                    f"{BATCH / devices:,.0f}" + (f" in {plan.accumulate}" if plan.accumulate > 1 else ""),
                    *(f"{1e3 * part:,.1f}" for part in asdict(parts).values()),
                    f"{BATCH / seconds / 1e6:,.2f}",
                    f"{speed_up(H100, DGX, config, plan):,.1f}",
                    f"{hours:,.2f}",
                    f"{hours * devices:,.1f}",
                    f"{peak_bytes(config, plan) / 1e9:,.1f}",
                ]
            )
    heads = ["model", "devices", "tokens a device", *asdict(parts)]
    heads += ["million tokens/s", "times one", "hours", "device-hours", "GB a device"]
    return table(heads, rows)


def settings(recorded: Recorded) -> str:
    """Return the speed with each setting changed, in million tokens a second."""
    changes: dict[str, dict[str, Any]] = {
        f"DDP, Muon, {BATCH:,} tokens": {},
        "`--shard`": dict(shard=True),
        "`--optimizer adam`": dict(optimizer="adam"),
        "`--shard --optimizer adam`": dict(shard=True, optimizer="adam"),
        "gradients summed in bfloat16 (not built)": dict(gradient_bytes=2),
        "hosts agree every 20 updates (not built)": dict(rarely=20),
        "operators recorded as one (not built)": dict(recorded=True),
        "the two before together": dict(recorded=True, rarely=20),
        f"{LARGE:,} tokens a device": dict(large=1),
        "the same, operators recorded, hosts agree every 20": dict(large=1, recorded=True, rarely=20),
        f"{LARGE:,} tokens a device, `--shard`": dict(large=1, shard=True),
        f"4 x {LARGE:,} tokens a device, `--accumulate 4`": dict(large=4, accumulate=4),
    }
    rows = []
    for label, change in changes.items():
        cells = [label]
        for config in SIZES.values():
            for devices in DEVICES:
                kept = dict(change)
                tokens = kept.pop("large", 0) * LARGE * devices or BATCH
                rarely = kept.pop("rarely", 1)
                plan = recorded.plan(devices, tokens, **kept)
                plan = replace(plan, agree=plan.agree / rarely)
                plan = plan if plan.accumulate > 1 else fitted(H100, config, plan)
                cells.append(f"{tokens / seconds_of_update(H100, DGX, config, plan) / 1e6:,.2f}")
        rows.append(cells)
    return table(["", *(f"{name}, {devices:,}" for name in SIZES for devices in DEVICES)], rows)


def limits(recorded: Recorded) -> str:
    """Return how much keeps a device busy, and how large models may be."""
    rows = []
    for name, config in SIZES.items():
        tokens = enough_tokens(H100, config)
        rows.append([f"{name}: tokens a device for as long as their starts take", f"{tokens:,.0f}"])
        rows.append([f"{name}: devices that {BATCH:,} tokens keep busy", f"{BATCH / tokens:,.1f}"])
    for devices, shard in ((64, False), (8, True), (64, True), (1000, True)):
        plan = recorded.plan(devices, 4096 * devices, shard=shard)
        weights = count_weights(widest(H100, plan)) / 1e9
        kind = f"`--shard` on {devices:,} devices" if shard else "DDP"
        rows.append([f"largest model, {kind}, 4,096 tokens each", f"{weights:,.1f} billion weights"])
    return table(["", ""], rows)


def failures(recorded: Recorded) -> str:
    """Return how often clusters fail, and what the best interval between checkpoints loses."""
    rows = []
    for devices in (*DEVICES, 16_384):
        plan, config = recorded.plan(devices, BATCH), SIZES["big"]
        cost, mtbf = checkpoint_seconds(H100, config, plan), H100.mtbf / devices
        interval = checkpoint_interval(cost, mtbf)
        lost = lost_share(interval, cost, RESTART, mtbf)
        rows.append([f"{devices:,}", f"{mtbf / 3600:,.0f}", f"{1e3 * cost:.0f}", f"{interval:,.0f}", f"{lost:.2%}"])
    return table(["devices", "hours between failures", "a checkpoint, ms", "best interval, s", "lost"], rows)


def corpora(recorded: Recorded) -> str:
    """Return what depends on the corpus and not on the devices: time grows with it, memory no further than measured."""
    rows = []
    for pairs in (10**7, 10**8, 10**9):
        measured = max(count for count in recorded.planned if count <= pairs)
        planned, times = recorded.planned[measured], pairs / measured
        rows.append(
            [
                f"{pairs:,}",
                f"{2 * pairs / recorded.prepared / PREPARING / 60:,.1f}",
                f"{times * planned['counted']:,.1f}",
                f"{times * planned['seconds']:,.0f}",
                f"{planned['mib'] / 1024:,.1f}",
            ]
        )
    heads = [
        "pairs",
        f"preparing, minutes ({PREPARING} cores)",
        "planning before an epoch, s",
        "with its windows, s",
        "GiB of the plan, each process",
    ]
    return table(heads, rows)


def fleets(recorded: Recorded) -> dict[str, dict[str, Fleet]]:
    """Return the workers whose translation is priced, by preset and by what they are."""
    alone = recorded.lines["base"]["busy"]
    found = dict[str, dict[str, Fleet]]()
    for preset in SIZES:
        slower = recorded.lines[preset]["busy"] / alone
        core = 1 / predict_line(recorded.constants, recorded.lines, preset, 2)
        gpu = recorded.gpu_tokens / TOKENS / slower
        found[preset] = {
            **{f"{count:,} cores": Fleet(count, core, BLOCK // 100, 10.0, H100.mtbf) for count in (2, 64, 1000)},
            **{f"{count:,} H100": Fleet(count, gpu, BLOCK, 20.0, H100.mtbf) for count in DEVICES},
        }
    return found


def translation(recorded: Recorded) -> str:
    """Return what it costs to translate `LINES` lines."""
    rows = []
    for preset, kinds in fleets(recorded).items():
        for kind, fleet in kinds.items():
            hours = fleet.seconds(LINES) / 3600
            rows.append(
                [
                    preset,
                    kind,
                    f"{fleet.rate:,.1f}",
                    f"{hours:,.1f}",
                    f"{hours * fleet.workers:,.0f}",
                    f"{fleet.useful(LINES):.1%}",
                ]
            )
    return table(["model", "workers", "lines/s of one", "hours", "worker-hours", "at work"], rows)


TABLES = {
    "settings": settings,
    "training": training,
    "limits": limits,
    "failures": failures,
    "corpora": corpora,
    "translation": translation,
}
"""The tables that follow from the constants, by their names in the docs."""
