import torch
from torch.testing import assert_close

from glassformer.attention.kernels.compiled.chosen import ChosenRows
from glassformer.attention.want import Want

B, H, Q, K = 2, 3, 5, 7


def test_each_query_and_head_is_computed_once_and_given_as_often_as_wanted():
    chosen = ChosenRows.of(Want(rows=(4, 1, -1), row_heads=(2, 0, -1)), H, Q)
    assert chosen.row_of_query.tolist() == [-1, 0, -1, -1, 1]
    assert chosen.row_of_head.tolist() == [0, -1, 1]
    found = chosen.zeros(torch.empty(B, H, Q), K)
    assert found.shape == (B, 2, 2, K)
    found = torch.randn_like(found, dtype=torch.float64).requires_grad_()
    fact = chosen.fact(found)
    assert_close(fact, found[:, [1, 0, 1]][:, :, [1, 0, 1]])
    grad = torch.randn_like(fact)
    assert_close(chosen.gradient(grad), torch.autograd.grad(fact, found, grad)[0])


def test_nothing_is_chosen_where_no_rows_are_wanted():
    chosen = ChosenRows.of(Want(), H, Q)
    assert all(len(part) == 0 for part in chosen)
    assert chosen.zeros(torch.empty(B, H, Q), K).numel() == 0
