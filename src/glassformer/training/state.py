"""The progress of a training: all that the loop keeps from update to update, and what a checkpoint holds of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor

from glassformer.decoding import Natural
from glassformer.training.step import UpdateSums

TwoNumbers = Annotated[list[float], Meta(min_length=2, max_length=2)]


@dataclass
class TrainingState:
    """The numbers that a checkpoint holds beside the tensors. Batches and dropout follow from them and the seed."""

    update: Natural = 0
    """Updates done."""
    epoch: Natural = 0
    """Epochs done."""
    batch: Natural = 0
    """Batches done of this epoch."""
    batches: Natural = 0
    """Batches of this epoch in all."""
    seconds: float = 0.0
    """Time spent training and validating."""
    best: TwoNumbers | None = None
    """Rank of the best validation so far: score (its sign such that higher is better) and minus the loss."""
    best_update: Natural = 0
    """Update of the best validation, 0 if there was none."""
    best_checksum: str = ""
    """Checksum of the file of the best weights."""
    reported: TwoNumbers = field(default_factory=lambda: [0.0, 0.0])
    """Loss and tokens of the updates since the last report, summed."""
    validated: Natural = 0
    """Update of the last validation."""
    since_best: Natural = 0
    """Validations since the best one."""
    ends_at: Natural | None = None
    """Update to end at, once patience is over."""
    planned: Natural = 0
    """Updates that the limits allow, as estimated at the beginning (`Limits.plan`); 0 until then."""
    interval: Natural = 0
    """Updates between validations; 0 until the updates are planned, and again when a limit changes."""
    patience: Natural | None = None
    """The setting that `ends_at` follows from; None in checkpoints of older versions."""
    ends: list[float | None] | None = None
    """The limits that `interval` follows from, in the order of `ENDS`; None in checkpoints of older versions."""

    def enter_epoch(self, batches: int) -> None:
        """Take up an epoch of so many batches; the same share of them counts as done if they were fewer or more."""
        if self.batch and self.batches != batches:  # continued with batches of another size
            self.batch = self.batch * batches // self.batches
        self.batches = batches

    def finish_epoch(self) -> None:
        """Count an epoch."""
        self.epoch, self.batch = self.epoch + 1, 0

    def count_update(self, batches: int) -> None:
        """Count an update on so many batches."""
        self.batch += batches
        self.update += 1

    def count_validation(self, rank: list[float]) -> bool:
        """Count a validation of this rank, and return whether it is the best so far."""
        self.validated = self.update
        best = self.best is None or rank > self.best
        if best:
            self.best, self.best_update, self.since_best = rank, self.update, 0
        else:
            self.since_best += 1
        return best

    def forget_best(self) -> None:
        """Count the next validation as the best so far: the weights of the best one are lost."""
        self.best, self.best_update, self.best_checksum, self.validated = None, 0, "", 0

    def forget_patience(self) -> None:
        """Count from now on how long there was no better validation."""
        self.ends_at, self.since_best = None, 0


class Tally:
    """Loss, tokens and time of the updates since the last report. The loss stays on the device: reading takes time."""

    def __init__(self, reported: list[float], device: torch.device) -> None:
        """`reported` are loss and tokens of the updates before a checkpoint (see `TrainingState`)."""
        self.sums: Float[Tensor, " 2"] = torch.tensor(reported, device=device)
        """Loss and tokens of the updates that weren't left out."""
        self._tokens = 0
        self._since = time.monotonic()

    def add(self, sums: UpdateSums, tokens: int) -> None:
        """Add an update, which has so many tokens even if it was left out."""
        self.sums += torch.stack(sums)
        self._tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time inside, in which no update is made."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began

    def close(self) -> tuple[Float[Tensor, " 2"], float]:
        """Return loss and tokens, and tokens per second, and begin anew."""
        now = time.monotonic()
        closed = self.sums, self._tokens / (now - self._since)
        self.sums, self._tokens, self._since = torch.zeros_like(self.sums), 0, now
        return closed
