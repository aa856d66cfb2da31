"""Constants that explain measured times best: none negative, and each time counting by its relative error."""

from collections.abc import Sequence

import torch

ROUNDS = 20_000


def fit(
    amounts: Sequence[Sequence[float]], seconds: Sequence[float], whole: Sequence[float] | None = None
) -> list[float]:
    """Return the seconds that each kind of amount costs, at least 0, with the least squares of relative errors.

    A row of `amounts` belongs to each time. Errors are relative to the time, or to the `whole` that it is a part of.
    One cost after the other is set to its best value, given the rest (Lawson & Hanson 1974 solve the same problem
    exactly), until nothing moves.

    >>> [round(cost, 6) for cost in fit([[1, 10], [2, 10], [1, 30]], [12, 14, 32])]
    [2.0, 1.0]
    """
    wholes = torch.tensor(seconds if whole is None else whole, dtype=torch.float64)
    rows = torch.tensor(amounts, dtype=torch.float64) / wholes[:, None]
    target = torch.tensor(seconds, dtype=torch.float64) / wholes
    size = rows.norm(dim=0).clamp(min=1e-300)
    unit = rows / size
    products, wanted = (unit.mT @ unit).tolist(), (unit.mT @ target).tolist()
    costs = [0.0] * len(wanted)
    for _ in range(ROUNDS):
        moved = 0.0
        for k, row in enumerate(products):
            best = max(0.0, costs[k] + wanted[k] - sum(p * c for p, c in zip(row, costs, strict=True)))
            moved = max(moved, abs(best - costs[k]))
            costs[k] = best
        if moved < 1e-12:
            break
    return (torch.tensor(costs, dtype=torch.float64) / size).tolist()
