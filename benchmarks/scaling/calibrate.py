"""The constants of this machine: costs of one process alone, and of messages and shared cores."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glassformer.data.corpus import Corpus
from glassformer.training.muon import POLYNOMIALS
from scaling.cases import BURDEN, LEARNED_FROM, Case, rows_of
from scaling.fit import fit
from scaling.local import wrapping
from scaling.work import count_optimizer_work, count_work
from scaling.worker import ask

UPDATES = 4
WRAPPED = (0, 4, 6, 8)
"""Which of the cases show what DDP and FSDP2 add in a process that is alone."""
REPLICATED, SHARDED = ("once", "weights"), ("once", "groups", "tensors", "weights")
"""Amounts of `wrapping` on which each depends."""


def measure_alone(folder: Path) -> dict[str, Any]:
    """Return the costs of one process with one thread, in seconds of its processor."""
    corpus = Corpus(folder / "pairs")

    def question(case: Case, updates: int, **settings: bool) -> tuple[str, dict[str, Any]]:
        return "updates", {"case": case.to_json(), "shard": False, "updates": updates, **settings}

    asked = list[tuple[str, dict[str, Any]]]()
    for place, case in enumerate(LEARNED_FROM):
        asked.append(question(case, UPDATES))
        if place in WRAPPED:
            asked += [question(case, UPDATES, wrapped=True, shard=shard) for shard in (False, True)]
    *answers, burdens = ask(folder, 1, [*asked, ("burdens", {})])
    plain, replicated, sharded = (
        [
            one
            for (_, settings), one in zip(asked, answers, strict=True)
            if (settings.get("wrapped"), settings["shard"]) == kind
        ]
        for kind in ((None, False), (True, False), (True, True))
    )
    update, noise = _learn_gradients(corpus, plain, burdens["products"])
    return {
        "update": update,
        "optimizer": _learn_optimizer(plain, burdens["products"]),
        "replicated": _learn_wrapping(plain, replicated, REPLICATED),
        "sharded": _learn_wrapping(plain, sharded, SHARDED),
        "noise": noise,
        "burdens": {"1": burdens},
        "cores": os.cpu_count(),
    }


def measure_together(folder: Path, counts: Sequence[int]) -> dict[str, Any]:
    """Return what messages, burdens and sharded updates of one case take in so many processes."""
    corpus = Corpus(folder / "pairs")
    found: dict[str, Any] = {"messages": {}, "burdens": {}, "interrupted": {}}
    for count in counts:
        sharded = {"case": BURDEN.to_json(), "shard": True, "updates": UPDATES}
        messages, burdens, updates = ask(folder, count, [("collectives", {}), ("burdens", {}), ("updates", sharded)])
        found["messages"][str(count)], found["burdens"][str(count)] = messages, burdens
        found["interrupted"][str(count)] = {
            "seconds": statistics.median(updates["seconds"]),
            "polynomials": len(POLYNOMIALS),
            "rows": [[list(asdict(one).values()) for one in rows_of(corpus, p, count)] for p in updates["pairs"]],
        }
    return found


def _learn_gradients(
    corpus: Corpus, found: Sequence[dict[str, Any]], operation: float
) -> tuple[dict[str, float], float]:
    """Return the cost of each amount of `Work`, and the relative deviation of single updates from what they explain.

    An operation of products costs what it does in large ones; what smaller ones lose counts for the numbers that they
    read and write.
    """
    works, seconds = list[dict[str, float]](), list[float]()
    for case, one in zip(LEARNED_FROM, found, strict=True):
        for pairs, whole, optimizer in zip(one["pairs"], one["busy"], one["optimizer"], strict=True):
            (rows,) = rows_of(corpus, pairs, 1)
            works.append(asdict(count_work(case.config, rows)))
            seconds.append(whole - optimizer)
    costs = _learn(works, seconds, operation)
    explained = [sum(costs[name] * amount for name, amount in work.items()) for work in works]
    ratios = [taken / expected for taken, expected in zip(seconds, explained, strict=True)]
    count = len(found[0]["busy"])
    within = [statistics.stdev(ratios[first : first + count]) for first in range(0, len(ratios), count)]
    return costs, statistics.median(within)


def _learn_optimizer(found: Sequence[dict[str, Any]], operation: float) -> dict[str, float]:
    """Return the cost of each amount of `OptimizerWork`."""
    works = [asdict(count_optimizer_work(case.config, "muon")) for case in LEARNED_FROM]
    return _learn(works, [statistics.median(one["optimizer"]) for one in found], operation)


def _learn(works: Sequence[dict[str, float]], seconds: Sequence[float], operation: float) -> dict[str, float]:
    """Return the cost of each amount, those of products as given."""
    names = [name for name in works[0] if name != "products"]
    left = [taken - operation * work["products"] for work, taken in zip(works, seconds, strict=True)]
    costs = fit([[work[name] for name in names] for work in works], left, seconds)
    return {"products": operation, **dict(zip(names, costs, strict=True))}


def _learn_wrapping(
    plain: Sequence[dict[str, Any]], wrapped: Sequence[dict[str, Any]], names: Sequence[str]
) -> dict[str, float]:
    """Return what wrapping adds for each of its amounts, from the same updates with it and without."""
    amounts, added, whole = list[list[float]](), list[float](), list[float]()
    for place, after in zip(WRAPPED, wrapped, strict=True):
        case, before = LEARNED_FROM[place], statistics.median(plain[place]["busy"])
        amounts.append([wrapping(case)[name] for name in names])
        added.append(statistics.median(after["busy"]) - before)
        whole.append(before)
    return dict(zip(names, fit(amounts, added, whole), strict=True))
