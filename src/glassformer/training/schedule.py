"""The learning rate over the updates (Vaswani et al. 2017, section 5.3)."""

import math


def inverse_square_root(update: int, *, peak: float, warmup: int) -> float:
    """Return a rate that rises linearly to `peak` over `warmup` updates, then falls with 1 / sqrt(update).

    Updates count from 1.
    """
    return peak * min(update / warmup, math.sqrt(warmup / update))


def cooled(done: float, share: float) -> float:
    """Return what the rate is multiplied by when this much of the training is done (Hägele et al. 2024).

    It is 1 until the last `share` of the training, over which it falls to 0 in a line.
    """
    return min(1.0, (1.0 - done) / share) if share else 1.0
