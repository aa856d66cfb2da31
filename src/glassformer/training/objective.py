"""What training makes smaller: the loss of a batch, as a module, so that torch can spread it over processes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.text.batching import Batch
from glassformer.training.loss import smoothed_cross_entropy
from glassformer.transformer.model import Transformer


class Objective(nn.Module):
    """The loss of `model` on a batch. Products are done in `dtype`."""

    def __init__(self, model: Transformer, dtype: torch.dtype, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype
        self._smoothing = label_smoothing

    def forward(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Smoothed loss and plain negative log-likelihood, in nats, summed over the batch's tokens."""
        model, dtype = self.model, self._dtype
        with torch.autocast(batch.source.device.type, dtype, enabled=dtype in (torch.bfloat16, torch.float16)):
            start = model.start(model.encode(batch.source, packing=batch.sources), packing=batch.sources)
            states, _ = model.decode(batch.target_in, start, batch.targets)
        return smoothed_cross_entropy(
            states[0], model.output_weight, batch.target_out, smoothing=self._smoothing, dtype=dtype
        )
