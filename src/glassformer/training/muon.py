"""Muon: steps of matrices along the orthogonal matrix nearest to their momentum (Jordan et al. 2024).

Source: https://kellerjordan.github.io/posts/muon. `orthogonal` takes four better polynomials (Amsel et al. 2025,
"The Polar Express") in place of five times the same.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.training.distributed import first_row, join_rows, local_rows

MOMENTUM = 0.95
POLYNOMIALS = (
    (8.3007, -24.0375, 17.4661),
    (4.0059, -2.9253, 0.5424),
    (3.4840, -2.5614, 0.5024),
    (2.4904, -1.8068, 0.4211),
)
"""a, b, c of each x -> a x + b (x xᵀ) x + c (x xᵀ)² x in turn. Together they move singular values towards 1.

The polynomials before one bring the values from 0.003 to 1 into an interval. There that one stays as near to 1 as such
a polynomial can, at its farthest point (Amsel et al. 2025, section 4). The coefficients hold a division of x by 1.01:
past its interval a polynomial is steep, and rounding takes values there.
"""
TOGETHER = 1 << 22
"""Most numbers, in matrices of one shape, that are worked on at once."""


class Muon:
    """Momentum for matrices, whose steps change all directions alike.

    Gradients mostly point in few directions; a step here is U Vᵀ of the singular value decomposition U S Vᵀ of their
    running mean (with Nesterov's look ahead), to within a few tenths. Its numbers are as large as Adam's mostly are
    (0.2 in the quadratic mean: Liu et al. 2025, section 2.2), so that one learning rate suits both.
    """

    def __init__(self, matrices: Mapping[nn.Parameter, int], dtype: torch.dtype, weight_decay: float = 0.0) -> None:
        """Take charge of `matrices`: each parameter, and how many matrices lie in it one below the other.

        Products are in `dtype`. Each step first takes the share rate * `weight_decay` off the matrices.
        """
        self.momentum: dict[nn.Parameter, Tensor] = {p: torch.zeros_like(p, requires_grad=False) for p in matrices}
        self._parts = matrices
        self._dtype = dtype
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self, rate: float, harmful: Float[Tensor, ""]) -> None:
        """Step along the gradients; where `harmful` is 1 neither weights nor momentum change."""
        left = 1 - rate * self._weight_decay * (1 - harmful)
        alike = defaultdict[tuple[torch.Size, int], list[nn.Parameter]](list)
        for parameter, parts in self._parts.items():
            if parameter.grad is not None:
                alike[parameter.shape, parts].append(parameter)
        for (shape, parts), parameters in alike.items():
            size = 0.2 * max(shape[0] // parts, shape[1]) ** 0.5
            count = max(1, TOGETHER // shape.numel())
            for first in range(0, len(parameters), count):
                some = parameters[first : first + count]
                ahead = torch.cat([join_rows(self._ahead(parameter, harmful), parameter) for parameter in some])
                steps = orthogonal(ahead.unflatten(0, (parts * len(some), -1)), self._dtype)
                for parameter, step in zip(some, steps.flatten(0, 1).chunk(len(some)), strict=True):
                    rows = local_rows(parameter)
                    if self._weight_decay:
                        rows.mul_(left)
                    rows.add_(step.narrow(0, first_row(parameter), len(rows)), alpha=-rate * size)

    def _ahead(self, parameter: nn.Parameter, harmful: Float[Tensor, ""]) -> Tensor:
        """Return the momentum with Nesterov's look ahead, for this process's rows; zeros for a harmful gradient."""
        assert parameter.grad is not None
        grad, momentum = local_rows(parameter.grad), local_rows(self.momentum[parameter])
        mean = momentum.lerp(grad, 1 - MOMENTUM)
        momentum.copy_(torch.where(harmful > 0, momentum, mean))
        return torch.where(harmful > 0, 0.0, grad.lerp(mean, MOMENTUM))


def orthogonal(matrices: Float[Tensor, "many rows columns"], dtype: torch.dtype) -> Float[Tensor, "many rows columns"]:
    """Return about U Vᵀ for each matrix U S Vᵀ.

    Singular values become 0.78 to 1.21, those below 0.003 of the matrix's Frobenius norm less. Products are in `dtype`;
    in bfloat16 the bounds are a little wider. A matrix of zeros stays one. A matrix of numbers so small that their
    squares underflow is only scaled.
    """
    flat = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    size = torch.linalg.matrix_norm(flat, keepdim=True)  # no singular value is above it
    least = torch.finfo(flat.dtype).tiny ** 0.4  # below its root the size is 0, and what is divided by that explodes
    x = (flat / size.clamp(min=least)).to(dtype)
    for a, b, c in POLYNOMIALS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if flat is not matrices else x).to(matrices.dtype)
