"""One update of the weights: gradients of the loss, then Adam (Vaswani et al. 2017, section 5.3)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.text.batching import Batch
from glassformer.training.loss import smoothed_cross_entropy
from glassformer.transformer.model import Transformer


class Step:
    """Computes losses and takes steps. Products are done in `dtype`; weights and Adam's state are the model's own."""

    def __init__(self, model: Transformer, *, dtype: torch.dtype, label_smoothing: float, clip_norm: float) -> None:
        self.model = model
        self.dtype = dtype
        self.optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
        self._smoothing = label_smoothing
        self._clip_norm = clip_norm
        self._device = model.target_embedding.weight.device

    def take(self, batches: Sequence[Batch], *, rate: float, seed: int) -> Float[Tensor, ""]:
        """One step with this learning rate on these batches; returns their summed loss, in nats.

        `seed` is that of dropout, and becomes torch's global one.
        """
        torch.manual_seed(seed)
        tokens = sum(batch.tokens for batch in batches)
        total = torch.zeros((), device=self._device)
        for batch in batches:
            loss, _ = self.loss(batch)
            (loss / tokens).backward()
            total += loss.detach()
        if self._clip_norm:
            self._clip()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _clip(self) -> None:
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        if self._device.type != "cpu":  # what the norm is, it must not be asked: that would wait for it
            torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm)
            return
        # Twice as fast as torch's norms, and no pass over gradients that are short enough.
        gradients = [parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]
        norm = torch.stack([gradient.dot(gradient) for gradient in gradients]).sum().sqrt()
        if norm > self._clip_norm:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)

    def loss(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Smoothed loss and plain negative log-likelihood, in nats, summed over the batch's tokens."""
        model = self.model
        with torch.autocast(self._device.type, self.dtype, enabled=self.dtype in (torch.bfloat16, torch.float16)):
            start = model.start(model.encode(batch.source, packing=batch.sources), packing=batch.sources)
            states, _ = model.decode(batch.target_in, start, batch.targets)
        return smoothed_cross_entropy(
            states[0],
            model.output_weight,
            batch.target_out,
            smoothing=self._smoothing,
            dtype=self.dtype,
        )
