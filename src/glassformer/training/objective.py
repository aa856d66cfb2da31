"""The loss that training makes smaller, as a module, so that torch can spread it over processes."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.text.batching import Batch
from glassformer.training.guide import Guide
from glassformer.training.loss import consistent_cross_entropy, smoothed_cross_entropy
from glassformer.transformer.model import Transformer


class Objective(nn.Module):
    """The loss of `model` on a batch. Products are done in `dtype`.

    With `r_drop` above 0 the model reads the batch twice, and the two predictions, which dropout makes differ, are
    pulled together by that much (see `consistent_cross_entropy`). A `guide` adds its loss.
    """

    def __init__(
        self,
        model: Transformer,
        dtype: torch.dtype,
        label_smoothing: float,
        r_drop: float = 0.0,
        guide: Guide | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype
        self._smoothing = label_smoothing
        self._r_drop = r_drop
        self._guide = guide

    def forward(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return smoothed loss and plain negative log-likelihood, in nats, summed over the batch's tokens."""
        if self._guide is None:
            return self._losses(batch)
        with self._guide.guiding(self.model, batch) as losses:
            loss, nll = self._losses(batch)
        return loss + torch.stack(losses).mean(), nll

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return both without the guide's loss."""
        states = self._states(batch)
        weight, target, bias = self.model.output_weight, batch.target_out, self.model.output_bias
        if bias is not None:
            weight = torch.cat([weight, bias[:, None]], dim=1)
        if not self._r_drop:
            return smoothed_cross_entropy(states, weight, target, smoothing=self._smoothing, dtype=self._dtype)
        return consistent_cross_entropy(
            states,
            self._states(batch),
            weight,
            target,
            smoothing=self._smoothing,
            consistency=self._r_drop,
            dtype=self._dtype,
        )

    def _states(self, batch: Batch) -> Float[Tensor, "rows width"]:
        """Return the decoder's states, from which the batch's tokens are predicted; with a bias, a 1 ends each."""
        model, dtype = self.model, self._dtype
        with torch.autocast(batch.source.device.type, dtype, enabled=dtype in (torch.bfloat16, torch.float16)):
            start = model.start(model.encode(batch.source, packing=batch.sources), packing=batch.sources)
            states, _ = model.decode(batch.target_in, start, batch.targets)
        if model.output_bias is None:
            return states[0]
        return F.pad(states[0], (0, 1), value=1.0)  # the bias is the weight of a number that is always 1
