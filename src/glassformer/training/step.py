"""One update of the weights: gradients of the loss, then a step of the optimizer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from glassformer.seeds import derive_seed
from glassformer.text.batching import Batch
from glassformer.training.distributed import ALONE, Processes, adding_up, replicated, sharded, whole
from glassformer.training.guide import Guide
from glassformer.training.objective import Objective
from glassformer.training.optimizer import Optimizer
from glassformer.training.watch import Watch
from glassformer.transformer.model import Transformer


class Taken(NamedTuple):
    """What an update saw, in all processes together; zeros if it was left out."""

    loss: Float[Tensor, ""]
    """Smoothed, in nats, summed over the tokens."""
    tokens: Float[Tensor, ""]


class Step:
    """Computes losses and takes steps. Products are done in `dtype`; weights and the optimizer's state are the model's.

    With several `processes` each takes its part of every batch; with `shard` each also keeps its part of the weights
    alone. Where they are sharded `model` must be on the CPU, and moves to `device`.
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
        """Of a batch: smoothed loss and plain negative log-likelihood, in nats, summed over its tokens."""
        if processes.size > 1:
            self.loss = sharded(self.loss, self.device) if shard else replicated(self.loss)
        self.optimizer = Optimizer(model, optimizer, dtype, weight_decay)
        self.watch = Watch(self.device)
        self._clip_norm = clip_norm
        self._processes = processes
        self._seed = seed

    def update(self, batches: Sequence[Batch], *, rate: float, number: int, tokens: int | None = None) -> Taken:
        """One step with this learning rate on these batches, unless it would do harm (see `Watch`).

        Dropout follows from the seed and the `number` of the update: torch's global seed is set from them. `tokens` is
        the number of target tokens in the batches of all processes; left out, it is that of these.
        """
        processes = self._processes
        torch.manual_seed(derive_seed(self._seed, number, rank=processes.rank))
        tokens = tokens or sum(batch.tokens for batch in batches)
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            with adding_up(self.loss, last=number == len(batches)):
                loss, _ = self.loss(batch)
                loss = loss if batch.counted else 0 * loss
                (loss / (tokens / processes.size)).backward()  # the processes' mean will be taken
            total += loss.detach()
        processes.sum(total)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = self._norm(parameters)
        harmful = self.watch.harmful(total / tokens, norm)
        self._clip(parameters, norm)
        self.optimizer.step(rate, harmful)
        kept = 1 - harmful
        return Taken(torch.where(harmful > 0, 0.0, total), kept * tokens)

    def _norm(self, parameters: list[torch.nn.Parameter]) -> Float[Tensor, ""]:
        """Of all gradients together."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.device.type != "cpu" or isinstance(self.loss, FSDPModule):
            return whole(torch.nn.utils.get_total_norm(gradients))
        # Twice as fast as torch's norms.
        flat = [gradient.flatten() for gradient in gradients]
        return torch.stack([gradient.dot(gradient) for gradient in flat]).sum().sqrt()

    def _clip(self, parameters: list[torch.nn.Parameter], norm: Float[Tensor, ""]) -> None:
        # On a CPU no pass over gradients that are short enough; what the norm is, other devices must not be asked.
        if self._clip_norm and (self.device.type != "cpu" or norm > self._clip_norm):
            torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
