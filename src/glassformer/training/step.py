"""One update of the weights: gradients of the loss, then a step of the optimizer."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from glassformer.seeds import derive_seed
from glassformer.text.batching import Batch
from glassformer.training.clipping import QKClip
from glassformer.training.distributed import (
    ALONE,
    Processes,
    accumulating,
    gather_rows,
    replicate_weights,
    shard_weights,
)
from glassformer.training.guide import Guide
from glassformer.training.objective import Objective
from glassformer.training.optimizer import Optimizer
from glassformer.training.outliers import OutlierDetector
from glassformer.transformer.model import Transformer


class UpdateSums(NamedTuple):
    """Loss and tokens of an update, in all processes together; zeros if it was left out."""

    loss: Float[Tensor, ""]
    """Smoothed loss in nats, summed over the tokens."""
    tokens: Float[Tensor, ""]
    """Number of target tokens."""


class Step:
    """The model with its loss and its optimizer. Products are done in `dtype`, the optimizer's state in the weights'.

    With several `processes` each works on its part of every batch; with `shard` each also keeps only its part of the
    weights. A model that is to be sharded must be on the CPU, and moves to `device`. Dropout follows from `seed`.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        dtype: torch.dtype,
        label_smoothing: float,
        r_drop: float = 0.0,
        guide: Guide | None = None,
        clip_norm: float,
        qk_clip: float = 0.0,
        optimizer: str,
        weight_decay: float = 0.0,
        processes: Processes = ALONE,
        shard: bool = False,
        device: torch.device | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.device = device or model.target_embedding.weight.device
        self.loss = Objective(model, dtype, label_smoothing, r_drop, guide)
        """Gives smoothed loss and plain negative log-likelihood of a batch, in nats, summed over its tokens."""
        if processes.size > 1:
            self.loss = shard_weights(self.loss, self.device, dtype) if shard else replicate_weights(self.loss)
        self.optimizer = Optimizer(model, optimizer, dtype, weight_decay)
        self.outliers = OutlierDetector(self.device)
        self._clip_norm = clip_norm
        self._qk_clip = QKClip(model, qk_clip, processes, self.device) if qk_clip else None
        self._processes = processes
        self._seed = seed

    def update(self, batches: Sequence[Batch], *, rate: float, number: int, tokens: int | None = None) -> UpdateSums:
        """Step with this learning rate along the gradient of these batches, unless that does harm (`OutlierDetector`).

        Dropout follows from the seed and the `number` of the update: torch's own generator is seeded with them.
        `tokens` is the number of target tokens in the batches of all processes; left out, it is that of these.
        """
        processes = self._processes
        # torch.manual_seed, which sets the seeds of all kinds of devices, takes 0.7 ms (Zen 3).
        set_seed = torch.default_generator.manual_seed if self.device.type == "cpu" else torch.manual_seed
        set_seed(derive_seed(self._seed, number, rank=processes.rank))
        tokens = tokens or sum(batch.tokens for batch in batches)
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            with accumulating(self.loss, last=number == len(batches)):
                with self._measuring(batch):
                    loss, _ = self.loss(batch)
                loss = loss if batch.counted else 0 * loss
                (loss / (tokens / processes.size)).backward()  # the processes' mean will be taken
            total += loss.detach()
        processes.sum(total)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = self._norm(parameters)
        harmful = self.outliers.judge(total / tokens, norm)
        self._clip(parameters, norm)
        self.optimizer.step(rate, harmful)
        if self._qk_clip is not None:
            self._qk_clip.clip()
        kept = 1 - harmful
        return UpdateSums(torch.where(harmful > 0, 0.0, total), kept * tokens)

    def _measuring(self, batch: Batch) -> AbstractContextManager[None]:
        """Return a context for the passes of a batch, in which scores are measured if they are to be clipped."""
        return self._qk_clip.measuring() if self._qk_clip is not None and batch.counted else nullcontext()

    def _norm(self, parameters: list[torch.nn.Parameter]) -> Float[Tensor, ""]:
        """Return the norm of all gradients together."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.device.type != "cpu" or isinstance(self.loss, FSDPModule):
            return gather_rows(torch.nn.utils.get_total_norm(gradients))
        # Twice as fast as torch's norms.
        flat = [gradient.flatten() for gradient in gradients]
        return torch.stack([gradient.dot(gradient) for gradient in flat]).sum().sqrt()

    def _clip(self, parameters: list[torch.nn.Parameter], norm: Float[Tensor, ""]) -> None:
        """Scale gradients down whose norm is above the limit."""
        # A CPU needs no pass over short gradients; another device would have to wait to be asked whether they are.
        if self._clip_norm and (self.device.type != "cpu" or norm > self._clip_norm):
            torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
