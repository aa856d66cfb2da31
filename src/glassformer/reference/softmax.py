"""The softmax of attention, when some scores are blocked."""

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, blocked: Tensor | None, dim: int) -> Tensor:
    """Return w_j = exp(s_j) / Σ exp(s) over the open positions along `dim`, and exactly 0 at the blocked ones.

    `blocked` is boolean and broadcasts to `scores`. A row with every position blocked has weights of 0 and finite
    gradients: blocked scores become the lowest finite number of their dtype, so nothing overflows and no infinity is
    subtracted from another.
    """
    if blocked is None:
        return scores.softmax(dim)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(blocked, lowest).softmax(dim).masked_fill(blocked, 0.0)
