"""The function that returns output and weights, against torch's fused one and against numbers by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from glassformer.reference import InputError, scaled_dot_product_attention

B, Q, K, D, V = 2, 5, 7, 11, 3  # distinct primes: a swapped axis cannot pass
INF = math.inf


def test_three_words_worked_by_hand():
    words = torch.tensor([[[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]])
    query = torch.tensor([[[math.log(3.0) / math.sqrt(2.0), 0.0]]])  # scores 0, log 3, 0
    attended, weights = scaled_dot_product_attention(query, words, words)
    assert_close(weights, torch.tensor([[[1 / 5, 3 / 5, 1 / 5]]]))
    assert_close(attended, torch.tensor([[[6 / 5, 2 / 5]]]))


@pytest.mark.parametrize("shape", [None, (Q, K), (B, Q, K)])
def test_it_is_torchs_fused_function_and_its_gradients(shape):
    q, k, v = (torch.randn(B, n, d, dtype=torch.float64, requires_grad=True) for n, d in ((Q, D), (K, D), (K, V)))
    mask = None if shape is None else torch.randn(shape, dtype=torch.float64).where(torch.rand(shape) < 0.8, -INF)
    if mask is not None:
        mask[..., 0] = 0.0  # every query sees one key
    attended, weights = scaled_dot_product_attention(q, k, v, mask)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert_close(attended, expected)
    assert_close(weights @ v, expected)
    up = torch.randn(B, Q, V, dtype=torch.float64)
    for ours, theirs in zip(*(torch.autograd.grad(x, (q, k, v), up) for x in (attended, expected)), strict=True):
        assert_close(ours, theirs)


def test_a_query_with_every_key_blocked_gets_zeros():
    q = torch.randn(1, 2, D, requires_grad=True)
    attended, weights = scaled_dot_product_attention(q, q, q, torch.tensor([[-INF, -INF], [0.0, 0.0]]))
    assert (attended[0, 0] == 0).all()
    assert weights[0, 0].tolist() == [0.0, 0.0]
    attended.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


def test_dropout_acts_on_the_weights_that_are_returned():
    x = torch.randn(B, K, D)
    attended, weights = scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    assert 0.2 < (weights == 0).float().mean() < 0.8
    assert_close(attended, weights @ x)


@pytest.mark.parametrize(
    ("shapes", "mask", "message"),
    [
        ([(B, Q, D), (B, K, 13), (B, K, V)], None, r"q, k and v must be \(batch, q_len, d\), .* got \(2, 5, 11\), "),
        ([(B, Q, D), (B, K, D), (B, Q, V)], None, "q, k and v must be"),
        ([(B, Q, D), (3, K, D), (3, K, V)], None, "q, k and v must be"),
        ([(Q, D), (K, D), (K, V)], None, "q, k and v must be"),
        ([(B, Q, D), (B, K, D), (B, K, V)], torch.zeros(K, Q), r"attn_mask must be \(q_len, k_len\) = \(5, 7\) or"),
        ([(B, Q, D), (B, K, D), (B, K, V)], torch.zeros(Q, K, dtype=torch.bool), "attn_mask must be floats.*bool"),
    ],
)
def test_what_does_not_fit_is_refused(shapes, mask, message):
    with pytest.raises(InputError, match=message):
        scaled_dot_product_attention(*(torch.zeros(shape) for shape in shapes), mask)
