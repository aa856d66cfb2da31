"""Sequences of different lengths side by side, without padding: what training computes on.

Everything but attention treats tokens one by one, so a batch is one long row of them: padding would only be work. For
attention the row is spread out into a grid, a sequence a line, and gathered again.

The row is filled up to one of eight lengths an octave: a library that compiles a product for each shape (oneDNN takes 1
to 3 ms for one in bfloat16, as long as ten products of 4,096 rows) then meets the same shapes again and again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from glassformer.errors import ArgumentError

Row = Shaped[Tensor, "1 row width"]
Grid = Shaped[Tensor, "batch length width"]


@dataclass(frozen=True, eq=False)
class Packing:
    """The place of each token of a row in the grid, and the other way round."""

    positions: Int[Tensor, " row"]
    """Each token's place in its sequence, from 0; 0 for the row's filling."""
    keep: Bool[Tensor, "batch 1 1 length"]
    """True on the cells that hold a token."""
    _cells: Int[Tensor, " tokens"]
    """The cell of each token, counted line by line."""
    _tokens: Int[Tensor, " cells"]
    """The token of each cell; the first one's for the empty cells."""
    _empty: Int[Tensor, " empty"]
    """The cells without a token."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Packing":
        """Return the packing of sequences of these lengths, one after the other."""
        if not lengths:
            raise ArgumentError("lengths must be those of at least one sequence, got none")
        batch, longest = len(lengths), max(lengths)
        numbers = torch.tensor(lengths)
        inside = torch.arange(longest) < numbers[:, None]
        cells = inside.flatten().nonzero().squeeze(1)
        tokens = torch.zeros(batch * longest, dtype=torch.long)
        tokens[cells] = torch.arange(len(cells))
        positions = torch.zeros(row_length(len(cells)), dtype=torch.long)
        positions[: len(cells)] = cells % longest
        empty = (~inside.flatten()).nonzero().squeeze(1)
        return cls(positions, inside[:, None, None, :], cells, tokens, empty)

    @property
    def tokens(self) -> int:
        """Return how many tokens there are."""
        return len(self._cells)

    @property
    def longest(self) -> int:
        """Return the length of the longest sequence."""
        return self.keep.shape[3]

    def to(self, device: torch.device) -> "Packing":
        """Return the same packing on another device."""
        tensors = (self.positions, self.keep, self._cells, self._tokens, self._empty)
        return Packing(*(send(tensor, device) for tensor in tensors))

    def fill(self, ids: Int[Tensor, " tokens"], filling: int) -> Int[Tensor, "1 row"]:
        """Return the ids of all sequences as a row, filled up."""
        row = torch.full((1, len(self.positions)), filling, dtype=torch.long)
        row[0, : self.tokens] = ids
        return row

    def spread(self, row: Row) -> Grid:
        """Return the row as a grid, zero in its empty cells."""
        return _Spread.apply(row, self)

    def gather(self, grid: Grid) -> Row:
        """Return the grid as a row, zero in its filling."""
        return _Gather.apply(grid, self)

    def _spread(self, row: Tensor) -> Tensor:
        if not len(self._empty):  # all are equally long: they lie as they should
            return row[0, : self.tokens].unflatten(0, (self.keep.shape[0], self.longest))
        grid = row[0].index_select(0, self._tokens).index_fill_(0, self._empty, 0)
        return grid.unflatten(0, (self.keep.shape[0], self.longest))

    def _gather(self, grid: Tensor) -> Tensor:
        row = grid.new_empty(len(self.positions), grid.shape[2])
        torch.index_select(grid.flatten(0, 1), 0, self._cells, out=row[: self.tokens])
        row[self.tokens :] = 0
        return row[None]


class _Spread(torch.autograd.Function):
    """A row spread over a grid. The gradient is gathered, since each token has one cell: faster than torch's sums."""

    @staticmethod
    def forward(ctx: Any, row: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return packing._spread(row)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grads[0], ctx.packing), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return packing._gather(grid)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(grads[0], ctx.packing), None


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on another device; a GPU reads it from pinned memory, so that nobody waits."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def row_length(tokens: int) -> int:
    """Round a number of tokens up to one of eight lengths an octave."""
    step = max(1, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step
