"""Sinusoidal positions (Vaswani et al. 2017, section 3.5)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.packing import Packing


def sinusoids(
    length: int, d_model: int, *, start: int = 0, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "{length} {d_model}"]:
    """Return sin(p / 10000^(2i/d_model)) for every i, then cos of the same, at p = start .. start + length - 1.

    The paper interleaves sine and cosine; here, as in the Marian layout, all sines come before all cosines, which
    is the same up to a permutation of the width.

    >>> sinusoids(2, 4)  # angles p and p / 100
    tensor([[0.0000, 0.0000, 1.0000, 1.0000],
            [0.8415, 0.0100, 0.5403, 0.9999]])
    """
    position = torch.arange(start, start + length, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position / 10000 ** (even / d_model)
    return torch.cat([angle.sin(), angle[:, : d_model // 2].cos()], dim=1).to(dtype)


class Positions(nn.Module):
    """Sinusoids to add. The first `ready` positions are kept as a buffer (not saved); later ones are computed."""

    table: Tensor

    def __init__(self, d_model: int, ready: int = 1024) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoids(ready, d_model), persistent=False)

    def add_packed(self, x: Float[Tensor, "1 row d_model"], packing: Packing) -> Float[Tensor, "1 row d_model"]:
        """Return x, sequences side by side, plus each token's position in its own sequence."""
        table = self.table
        if x.dtype == torch.float64 or packing.longest > len(table):
            table = sinusoids(packing.longest, self.d_model, dtype=torch.promote_types(x.dtype, torch.float32))
        return x + table.to(x)[packing.positions]

    def forward(
        self, x: Float[Tensor, "batch length d_model"], start: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """Return x plus positions start .. start + length - 1."""
        end = start + x.shape[1]
        if x.dtype == torch.float64:  # the table's float32 would be the least exact number of the model
            return x + sinusoids(x.shape[1], self.d_model, start=start, dtype=x.dtype).to(x.device)
        if end <= self.table.shape[0]:
            return x + self.table[start:end].to(x.dtype)
        return x + sinusoids(x.shape[1], self.d_model, start=start).to(x)
