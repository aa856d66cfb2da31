"""Times lost to others: the slowest of many, failures, and the checkpoints that failures ask for."""

import math
from statistics import NormalDist

STEPS = 4000


def largest_of(count: int) -> float:
    """Return the mean of the largest of so many standard normal numbers.

    It is the integral of x over the distribution of the largest, n Φ(x)^(n - 1) φ(x), and grows as sqrt(2 ln n).

    >>> round(largest_of(2), 4), round(largest_of(1000), 2)
    (0.5642, 3.24)
    """
    if count == 1:
        return 0.0
    normal, low, high = NormalDist(), -9.0, 9.0
    width = (high - low) / STEPS
    places = (low + (step + 0.5) * width for step in range(STEPS))
    return sum(x * count * normal.cdf(x) ** (count - 1) * normal.pdf(x) * width for x in places)


def checkpoint_interval(cost: float, mtbf: float) -> float:
    """Return the seconds of work between checkpoints that lose least, each of which costs so many seconds.

    Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", equation 37; its first
    term is that of Young 1974, sqrt(2 cost mtbf).
    """
    if cost >= 2 * mtbf:
        return mtbf
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def lost_share(interval: float, cost: float, restart: float, mtbf: float) -> float:
    """Return the share by which failures and checkpoints lengthen the work.

    Daly 2006, equation 20: with failures that come at any time alike, the wall-clock time of a second of work is
    mtbf / interval * exp(restart / mtbf) * (exp((interval + cost) / mtbf) - 1).
    """
    return mtbf / interval * math.exp(restart / mtbf) * math.expm1((interval + cost) / mtbf) - 1
