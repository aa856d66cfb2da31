"""The matrix of the probabilities of jumps between places, in blocks: a product with it is linear in the places."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

LONGEST_JUMP = 12
"""Jumps beyond this many places are as likely as this one."""
WHOLE, BLOCK = 256, 64
"""Most places that one plain product serves fastest, and most of a block beyond: at least twice LONGEST_JUMP, so that
all jumps from one block to the next but one are longest. Measured on an AMD Zen 4, torch 2.13, one thread."""


class JumpMatrix:
    """The matrix A of the probabilities of jumps from place s to place s', which depend on s' - s alone.

    A large one is cut into blocks. Those on the diagonal are all the same, and so are those above it and those below.
    In any other block each entry is the probability of the longest jump, so that only the sums of blocks matter there.

    >>> jumps = JumpMatrix(torch.arange(25.0), 3)  # 12 is no jump, 13 one place forward, 10 two back
    >>> jumps.multiply(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])).tolist()
    [[12.0, 13.0, 14.0], [10.0, 11.0, 12.0]]
    """

    def __init__(self, jumps: Float[Tensor, " widths"], places: int) -> None:
        """`jumps` has the probability of each jump, from the longest back to the longest forward."""
        self._jumps, self._places = jumps, places
        self._blocks = 1 if places <= WHOLE else -(-places // BLOCK)
        self._width = -(-places // self._blocks)
        place, block = (torch.arange(count, device=jumps.device) for count in (self._width, self._blocks))
        between, apart = place - place[:, None], block - block[:, None]
        self._kinds = {k: _kind(between + k * self._width) for k in ((1, 0, -1) if self._blocks > 1 else (0,))}
        self._near = torch.cat([jumps[kind] for kind in self._kinds.values()])
        self._far_kinds, self._is_far = _kind(apart * LONGEST_JUMP), apart.abs() > 1
        self._far = jumps[self._far_kinds] * self._is_far

    @property
    def mT(self) -> "JumpMatrix":
        """The transposed matrix."""
        return JumpMatrix(self._jumps.flip(0), self._places)

    def multiply(self, rows: Float[Tensor, "rows places"]) -> Float[Tensor, "rows places"]:
        """Return rows · A."""
        if self._blocks == 1:
            return rows @ self._near
        blocks = self._cut(rows)
        around = pad(blocks, (0, 0, 1, 1)).flatten(1).unfold(1, 3 * self._width, self._width)
        product = around @ self._near + (blocks.sum(2) @ self._far)[:, :, None]
        return product.flatten(1)[:, : self._places]

    def count(
        self, left: Float[Tensor, "rows places"], reached: Float[Tensor, "rows places"]
    ) -> Float[Tensor, " widths"]:
        """Return, for the jumps of each width, the sum over rows of left_s A_ss' reached_s'."""
        counts = torch.zeros_like(self._jumps)
        before, after = (self._cut(rows).transpose(0, 1) for rows in (left, reached))
        for k, kind in self._kinds.items():
            together = before[max(0, -k) : self._blocks - max(0, k)].mT @ after[max(0, k) : self._blocks - max(0, -k)]
            counts.index_add_(0, kind.flatten(), together.sum(0).flatten())
        together = (before.sum(2) @ after.sum(2).T) * self._is_far
        return counts.index_add_(0, self._far_kinds.flatten(), together.flatten()) * self._jumps

    def _cut(self, rows: Float[Tensor, "rows places"]) -> Float[Tensor, "rows blocks width"]:
        """Cut rows into blocks, filled up with zeros."""
        return pad(rows, (0, self._blocks * self._width - self._places)).unflatten(1, (self._blocks, self._width))


def _kind(widths: Tensor) -> Tensor:
    """Return the number of each jump among the probabilities."""
    return widths.clamp(-LONGEST_JUMP, LONGEST_JUMP) + LONGEST_JUMP
