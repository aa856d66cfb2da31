"""Updates that would do harm. The device itself tells them: asking after every update would make a GPU wait."""

import torch
from jaxtyping import Float
from torch import Tensor

_DECAY = 0.98  # of the running mean and variance: they look back over some 50 updates
_KNOWN_AFTER = 100  # updates from which a jump is told from the course of the loss
_DEVIATIONS, _NATS = 10.0, 1.0  # how far a jump is above the running mean: both


class OutlierDetector:
    """The course of the loss, by which harmful updates are told and left out.

    An update is left out if its loss or its gradient's norm is not finite, or if its loss jumps: above the running
    mean by more than 10 standard deviations and more than 1 nat per token, once 100 updates were taken.
    """

    def __init__(self, device: torch.device) -> None:
        # Running mean and variance of the loss, updates taken, updates left out: the last ones in a row, and in all.
        self.state: Float[Tensor, " 5"] = torch.zeros(5, device=device)

    def judge(self, loss: Float[Tensor, ""], norm: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return 1 if the update with this loss (nats per token) and gradient's norm must be left out, else 0.

        Either way the update is noted in the state.
        """
        mean, variance, taken, in_row, in_all = self.state
        jumps = (taken >= _KNOWN_AFTER) & (loss - mean > (_DEVIATIONS * variance.sqrt()).clamp(min=_NATS))
        harmful = ~(loss.isfinite() & norm.isfinite()) | jumps
        gain = torch.where(taken == 0, 1.0, 1 - _DECAY)
        away = loss.float() - mean
        zero = torch.zeros_like(in_row)
        after = torch.stack(
            [mean + gain * away, (1 - gain) * (variance + gain * away.square()), taken + 1, zero, in_all]
        )
        left_out = torch.stack([mean, variance, taken, in_row + 1, in_all + 1])
        self.state = torch.where(harmful, left_out, after)
        return harmful.float()

    def left_out(self) -> tuple[int, int]:
        """Return how many updates were left out: the last ones in a row, and in all."""
        in_row, in_all = self.state[3:].tolist()
        return int(in_row), int(in_all)
