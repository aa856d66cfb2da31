"""Steps of generation: the form for few queries is that of blocks, and keys that several heads share are not copied."""

import pytest
import torch
from torch.testing import assert_close

from glassformer import Want, observe
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.weigh import multiply_by_head

EVERYTHING = Want(
    **dict.fromkeys(("entropy", "received", "distance", "lse", "max_score", "weights", "head_mean"), True),
    **{"sink": 3, "top": 5, "rows": (0,), "pooled": 4, "pooled_heads": 6},
)


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_a_step_is_as_in_blocks(queries, masked, monkeypatch):
    q, k, v = (torch.randn(2, heads, n, 16) for heads, n in ((6, queries), (2, 5471), (2, 5471)))
    keep = torch.rand(2, 1, 1, 5471) > 0.3 if masked else None
    assert choose.step_is_faster_plainly(q, k)
    output, seen = observe(q, k, v, keep=keep, causal=True, want=EVERYTHING)
    monkeypatch.setattr(choose, "STEP_UP_TO_QUERIES", 0)
    expected, in_blocks = observe(q, k, v, keep=keep, causal=True, want=EVERYTHING)
    assert_close(output, expected, rtol=1e-5, atol=1e-6)
    for name, fact in in_blocks.tensors().items():
        assert_close(seen.tensors()[name], fact, rtol=1e-4, atol=1e-5)


def test_heads_that_share_keys_are_multiplied_without_copies_of_them():
    x, y = torch.randn(2, 6, 5, 7, requires_grad=True), torch.randn(2, 3, 7, 11, requires_grad=True)
    product, expected = multiply_by_head(x, y), x @ y.repeat_interleave(2, 1)
    assert_close(product, expected)
    towards = torch.randn_like(product)
    found = torch.autograd.grad(product, (x, y), towards)
    assert_close(found, torch.autograd.grad(expected, (x, y), towards))
