"""The softmax of attention, when some scores are blocked."""

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, blocked: Tensor | None, dim: int) -> Tensor:
    """w_j = exp(s_j) / Σ exp(s) over the open positions along `dim`; exactly 0 at blocked ones.

    `blocked` is boolean and broadcasts to `scores`. Where all positions are blocked all weights are 0, with finite
    gradients: the fill value is the lowest finite number of the dtype, whichever that is, so nothing overflows and no
    infinity is subtracted from another.
    """
    if blocked is None:
        return scores.softmax(dim)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(blocked, lowest).softmax(dim).masked_fill(blocked, 0.0)
