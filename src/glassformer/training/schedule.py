"""The learning rate over the updates (Vaswani et al. 2017, section 5.3)."""

import math


def inverse_square_root(update: int, *, peak: float, warmup: int) -> float:
    """Rises linearly to `peak` over `warmup` updates, then falls with 1 / sqrt(update). Updates count from 1."""
    return peak * min(update / warmup, math.sqrt(warmup / update))
