"""The queries and heads whose weights are wanted one by one, each once, and where they stand in the fact `rows`."""

from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.attention.want import Want


class ChosenRows(NamedTuple):
    """Tell where each query and head has its weights, -1 if unwanted, and which of these each wanted one takes."""

    row_of_query: Tensor
    row_of_head: Tensor
    rows: Tensor
    heads: Tensor

    @classmethod
    def of(cls, want: Want, heads: int, q_len: int) -> "ChosenRows":
        if not want.rows:
            return cls(*torch.empty(4, 0, dtype=torch.int64, device="cpu").unbind())
        chosen_heads = range(heads) if want.row_heads is None else want.row_heads
        row_of_query, rows = _numbered([query % q_len for query in want.rows], q_len)
        row_of_head, of_heads = _numbered([head % heads for head in chosen_heads], heads)
        return cls(row_of_query, row_of_head, rows, of_heads)

    def zeros(self, like: Tensor, k_len: int) -> Tensor:
        """Return room for the weights of each chosen head and query: (batch, heads, queries, k_len)."""
        if not len(self.rows):
            return like.new_zeros(like.shape[0], 1, 0, 0)
        return like.new_zeros(like.shape[0], int(self.heads.max()) + 1, int(self.rows.max()) + 1, k_len)

    def fact(self, found: Tensor) -> Tensor:
        """Return the weights in the order in which they were wanted."""
        return found[:, self.heads[:, None], self.rows]

    def gradient(self, grad: Tensor) -> Tensor:
        """Return the gradient of `found`, from that of the fact."""
        by_query = grad.new_zeros(*grad.shape[:2], int(self.rows.max()) + 1, grad.shape[3])
        by_query.index_add_(2, self.rows, grad)
        return self.zeros(grad, grad.shape[3]).index_add_(1, self.heads, by_query)


def _numbered(chosen: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Return the place of each of `length` among those chosen, -1 for others, and the places of the chosen ones."""
    once, places = torch.tensor(chosen, device="cpu").unique(return_inverse=True)
    place_of = torch.full((length,), -1, device="cpu")
    place_of[once] = torch.arange(len(once), device="cpu")
    return place_of, places
