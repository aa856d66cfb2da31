"""Draws the BLEU lost by pruning over the share of heads that is left, beside Voita et al. 2019.

    python docs/make/pruning.py [RUN...] [--png docs/img/pruning.png]

Each RUN is a run folder that `glassformer prune` wrote, of one seed or several, with any share of the heads. Its scores
are added to benchmarks/results/pruning.jsonl, and the picture shows all that stand there: of a seed and a number of
heads the latest. The loss is counted against the unpruned model after the same training.
"""

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

from glassformer.pictures import INK, MAIN, MUTED, PEERS, SMALL, new_figure, save_figure, style_axes
from glassformer.run.names import CONFIG, PRUNED

PUBLISHED = {  # share of heads left, BLEU more than the unpruned model: arXiv:1905.09418, abstract and table 2
    "Voita et al. 2019, WMT English to Russian: 75 of all 144 heads": (75 / 144, 29.62 - 29.6),
    "the same: 10 of the encoder's 48 heads": (10 / 48, -0.15),
}
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "pruning.jsonl"


def main(runs: Positional[tuple[Path, ...]] = (), png: Path = ROOT / "docs" / "img" / "pruning.png") -> None:
    """Draw the curve.

    Args:
        runs: Pruned run folders, whose scores are recorded first.
        png: Where to write the picture.
    """
    new = [json.dumps(record) + "\n" for run in runs for record in read_scores(run)]
    with RESULTS.open("a", encoding="utf-8") as file:
        file.writelines(new)
    records = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    lost = differences({(one["seed"], one["heads"], one["of"]): one for one in records}.values())
    save_figure(plot(lost), png)
    for left, by_seed in lost.items():
        print(f"{left:5.1f} % of the heads: {statistics.mean(by_seed):+.2f}, {seeds(by_seed)}")


def read_scores(run: Path) -> Iterator[dict[str, Any]]:
    """Yield a record of each round of a pruning."""
    report = json.loads((run / PRUNED).read_text(encoding="utf-8"))
    if report["metric"] != "bleu":
        sys.exit(f"pruning.py: error: {run} was scored by {report['metric']}, the picture is of BLEU")
    seed = json.loads((run / CONFIG).read_text(encoding="utf-8"))["training"]["settings"]["seed"]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    for whole, step in zip(report["unpruned"], report["rounds"], strict=True):
        scores = dict(whole=round(whole["score"], 2), score=round(step["score"], 2), metric="bleu")
        yield dict(seed=seed, heads=step["heads"], of=whole["heads"], **scores, commit=commit)


def differences(records: Any) -> dict[float, list[float]]:
    """Return the BLEU more than the unpruned model's, of each seed, by the percentage of heads left, most first."""
    found = defaultdict[float, list[float]](list)
    for one in records:
        found[100 * one["heads"] / one["of"]].append(one["score"] - one["whole"])
    return dict(sorted(found.items(), reverse=True))


def plot(lost: dict[float, list[float]]) -> Any:
    """Return the figure: a point for each seed, a line through their means, and what is published."""
    figure = new_figure("a pruning", figsize=(7.2, 4.6), dpi=130)
    axes = figure.subplots()
    axes.axhline(0, color=MUTED, linestyle="--", linewidth=1, label="all heads, trained as long")
    means = [statistics.mean(by_seed) for by_seed in lost.values()]
    axes.plot([100, *lost], [0, *means], "-", color=MAIN, linewidth=1.8, label="mean of the seeds")
    points = [(left, one) for left, by_seed in lost.items() for one in by_seed]
    axes.plot(*zip(*points, strict=True), "o", color=MAIN, markersize=8, markeredgecolor="white", label="one seed")
    for (left, by_seed), mean in zip(lost.items(), means, strict=True):
        right = dict(textcoords="offset points", xytext=(9, 9), fontsize=SMALL, color=INK)
        axes.annotate(f"{mean:+.2f}, {seeds(by_seed)}", (left, mean), **right)
    for (name, (left, more)), marker, color in zip(PUBLISHED.items(), "s^", PEERS, strict=True):
        axes.plot(100 * left, more, marker, color=color, markersize=8, markerfacecolor="none", label=name)
    axes.invert_xaxis()
    axes.margins(x=0.1, y=0.1)
    axes.legend(loc="lower left")
    title = "Multi30k, English to German: greedy translations of the validation pairs"
    style_axes(axes, title=title, x="heads left, %", y="BLEU, minus that of all heads trained as long")
    return figure


def seeds(by_seed: list[float]) -> str:
    return "1 seed" if len(by_seed) == 1 else f"{len(by_seed)} seeds"


if __name__ == "__main__":
    tyro.cli(main)
