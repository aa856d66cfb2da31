"""Draws the BLEU lost by pruning over the share of heads that is left, beside Voita et al. 2019.

    python docs/make/pruning.py RUN... [--png docs/img/pruning.png]

Each RUN is a run folder that `glassformer prune` wrote, of one seed or several, with any share of the heads. The loss
is counted against the unpruned model after the same training.
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import tyro
from tyro.conf import Positional

from glassformer.pictures import new_figure, save_figure
from glassformer.run.names import PRUNED

PUBLISHED = {  # share of heads left, BLEU more than the unpruned model: arXiv:1905.09418, abstract and table 2
    "Voita et al. 2019, WMT English to Russian: 75 of all 144 heads": (75 / 144, 29.62 - 29.6),
    "the same: 10 of the encoder's 48": (10 / 48, -0.15),
}


def main(runs: Positional[tuple[Path, ...]], png: Path = Path("docs/img/pruning.png")) -> None:
    """Draw the curve.

    Args:
        runs: Pruned run folders.
        png: Where to write the picture.
    """
    differences = defaultdict[float, list[float]](list)
    for run in runs:
        report = json.loads((run / PRUNED).read_text(encoding="utf-8"))
        if report["metric"] != "bleu":
            sys.exit(f"pruning.py: error: {run} was scored by {report['metric']}, the picture is of BLEU")
        for whole, step in zip(report["unpruned"], report["rounds"], strict=True):
            differences[100 * step["heads"] / whole["heads"]].append(step["score"] - whole["score"])
    shares = sorted(differences, reverse=True)
    figure = new_figure("a pruning", figsize=(7, 4.2), dpi=130)
    axes = figure.subplots()
    axes.axhline(0, color="#777777", linestyle="--", linewidth=1)
    for left in shares:
        axes.plot([left] * len(differences[left]), differences[left], ".", color="#9db8dd")
    means = [statistics.mean(differences[left]) for left in shares]
    axes.plot([100, *shares], [0, *means], "o-", label="Multi30k English to German: seeds, and their mean")
    for (name, (left, lost)), marker in zip(PUBLISHED.items(), "s^", strict=True):
        axes.plot(100 * left, lost, marker, color="#c2410c", markerfacecolor="none", label=name)
    axes.invert_xaxis()
    axes.set_xlabel("heads left, %")
    axes.set_ylabel("BLEU more than the unpruned model\nafter the same training")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, png)
    for left, mean in zip(shares, means, strict=True):
        print(f"{left:5.1f} % of the heads: {mean:+.2f}, mean of {len(differences[left])}")


if __name__ == "__main__":
    tyro.cli(main)
