import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.reference.self_attention import SelfAttention

B, L, X, D, V = 2, 5, 11, 7, 3  # batch, length, dim_q, dim_k, dim_v: distinct primes, a swapped axis cannot pass


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_attention_worked_by_hand():
    # Keys are 4 wide: scores are halved, sqrt(4). Values, not inputs, are what the weights multiply.
    attention = SelfAttention(dim_q=2, dim_k=4, dim_v=1).double()
    attention.linear_q.weight.data = tensor([2, 0], [0, 0], [0, 2], [0, 0])
    attention.linear_k.weight.data = tensor([math.log(3), 0], [0, 7], [0, math.log(4)], [7, 0])
    attention.linear_v.weight.data = tensor([40, 80])
    attended, weights = attention(tensor([1, 0], [0, 1])[None])
    # q = (2, 0, 0, 0), (0, 0, 2, 0); k = (log 3, 0, 0, 7), (0, 7, log 4, 0); v = 40, 80. Halved, the first query's
    # scores are log 3 and 0: weights 3 : 1. The second's are 0 and log 4: 1 : 4.
    assert_close(weights, tensor([3 / 4, 1 / 4], [1 / 5, 4 / 5])[None])
    assert_close(attended, tensor([50], [72])[None])


@pytest.mark.parametrize("shape", [(), (1,), (L,), (L, L), (L, 1), (1, L), (B, 1, 1), (B, L, 1), (1, L, L)])
def test_a_mask_may_have_any_shape_that_broadcasts(shape):
    mask = torch.rand(shape) < 0.5
    _, weights = SelfAttention(X, D, V)(torch.randn(B, L, X), mask)
    assert torch.equal(weights > 0, mask.expand(B, L, L))
