"""The short form against the definition in float64 and torch's own gradients of it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.attend import attend
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.short import attend_short

B, H, Q, K, D, V = 2, 3, 5, 7, 11, 13  # distinct primes: a swapped axis cannot pass
EXACT = dict(rtol=1e-10, atol=1e-10)


def heads(q_len: int = Q, k_len: int = K, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = [(q_len, D), (k_len, D), (k_len, V)]
    return [torch.randn(B, H, *shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def explicit(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    """e^score over the keys that may be looked at, divided by their sum; else zero."""
    exponentials = (torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(D)).exp()
    if keep is not None:
        exponentials = exponentials * keep
    total = exponentials.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bhqd", exponentials / total.where(total > 0, 1.0), v)


# Values and gradients


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_mask_and_lengths_are_the_definition_with_its_gradients(data):
    batch, q_len, k_len = (data.draw(st.integers(1, most)) for most in (5, 9, 35))
    shape = [data.draw(st.sampled_from((1, size))) for size in (batch, H, q_len)] + [2 * k_len]
    share, at_a_time = data.draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0))), data.draw(st.integers(1, 5))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    sizes = (H, q_len, D), (H, k_len, D), (H, k_len, V)
    inputs = [torch.randn(batch, *size, dtype=torch.float64) for size in sizes]
    towards = torch.randn(batch, H, q_len, V, dtype=torch.float64)
    if data.draw(st.booleans()):  # as projections leave them, and a gradient as a sum leaves it
        inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
        towards = towards[:, :, :1, :1].expand(-1, -1, q_len, V)
    keep = (torch.rand(shape) < share)[..., ::2] if data.draw(st.booleans()) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "SHORT_IN_CACHE", at_a_time * H * q_len * D)
        output = attend_short(*(x.requires_grad_() for x in inputs), keep)
        found = torch.autograd.grad(output, inputs, towards)
    expected = explicit(*inputs, keep)
    assert_close(output, expected, **EXACT)
    assert_close(found, torch.autograd.grad(expected, inputs, towards), **EXACT)


def test_inputs_mask_and_gradient_are_left_as_they_were():
    inputs, keep = heads(), torch.rand(B, 1, 1, K) < 0.5
    output = attend_short(*inputs, keep)
    towards = torch.randn_like(output)
    before = [x.detach().clone() for x in (*inputs, keep, output, towards)]
    output.backward(towards)
    assert all(torch.equal(x, y) for x, y in zip((*inputs, keep, output, towards), before, strict=True))


def test_large_scores_do_not_overflow():
    q, k, v = heads(dtype=torch.float32)
    output = attend_short(1e4 * q, k, v, None)
    best = (q @ k.mT).argmax(-1)
    assert_close(output, v.gather(2, best[..., None].expand(B, H, Q, V)))
    assert all(x.isfinite().all() for x in torch.autograd.grad(output.sum(), (q, k, v)))


def test_nothing_of_uninitialised_memory_comes_through(monkeypatch):
    # Whatever new memory happens to hold: here NaN.
    empty, new_empty = torch.empty, Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    keep = torch.rand(B, 1, Q, K) < 0.5
    keep[1, 0, 2] = False
    for dtype, exact in ((torch.float64, EXACT), (torch.bfloat16, dict(rtol=0.1, atol=0.1))):
        for mask in (None, keep):
            inputs = heads(dtype=dtype)
            output = attend_short(*inputs, mask)
            doubles = [x.detach().double() for x in inputs]
            assert_close(output.double(), explicit(*doubles, mask), **exact)
            assert all(x.isfinite().all() for x in torch.autograd.grad(output.sum(), inputs))


# Gradients of gradients


WAYS = {
    "apart": lambda x: (x[..., :D], x[..., D : 2 * D], x[..., 2 * D :]),
    "all the same": lambda x: (x[..., :D],) * 3,
    "keys made of queries": lambda x: (q := x[..., :D], q.sin(), x[..., 2 * D :] * q[..., :1]),
    "queries alone": lambda x: (x[..., :D], *(x.detach()[..., :D] for _ in range(2))),
    "values alone": lambda x: (*(x.detach()[..., :D] for _ in range(2)), x[..., :V]),
}


@pytest.mark.parametrize("way", WAYS)
def test_second_derivatives_are_those_of_the_definition_wherever_the_inputs_come_from(way):
    keep = torch.rand(B, 1, K, K) < 0.6
    x = torch.randn(B, H, K, 2 * D + V, dtype=torch.float64)
    seconds = []
    for function in (attend_short, explicit):
        leaf = x.clone().requires_grad_()
        output = function(*WAYS[way](leaf), keep)
        (first,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
        seconds.append((first, *torch.autograd.grad(first.square().sum(), leaf)))
    assert_close(*seconds, rtol=1e-9, atol=1e-9)


def test_many_gradients_at_once():
    q, k, v = heads()
    towards = torch.randn(3, B, H, Q, V, dtype=torch.float64)
    found = torch.autograd.grad(attend_short(q, k, v, None), (q, k, v), towards, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(explicit(q, k, v), (q, k, v), each) for each in towards]
    assert_close(found, [torch.stack(each) for each in zip(*one_by_one, strict=True)], **EXACT)


# Types


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_lower_precision_rounds_its_inputs_and_results_alone(dtype, autocast):
    # What is computed in between is float32's: the results differ from the exact ones by their own rounding.
    inputs = heads(17, 29, dtype)
    keep = torch.rand(B, 1, 17, 29) < 0.6
    exact = [x.detach().double().requires_grad_() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = attend_short(*inputs, keep)
    assert output.dtype == dtype
    towards = torch.randn(output.shape).to(dtype)
    expected = explicit(*exact, keep)
    found_grads = torch.autograd.grad(output, inputs, towards)
    expected_grads = torch.autograd.grad(expected, exact, towards.double())
    half_a_unit = torch.finfo(dtype).eps / 2
    for found, true in zip((output, *found_grads), (expected, *expected_grads), strict=True):
        assert found.dtype == dtype
        assert_close(found.double(), true, rtol=1.01 * half_a_unit + 1e-5, atol=2e-6)


def test_queries_keys_and_values_of_different_types():
    q, k, v = heads(dtype=torch.float32)
    output = attend_short(q, k, v.detach().bfloat16(), None)
    assert output.dtype == torch.bfloat16
    assert_close(output.float(), explicit(q, k, v), rtol=2e-2, atol=2e-2)


# Through attend


@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(0, Q, K), (B, 0, K), (B, Q, 0), (0, 0, 0)])
def test_nothing_to_attend_to_or_with(batch, q_len, k_len):
    q, k, v = (torch.randn(batch, H, n, w, requires_grad=True) for n, w in ((q_len, D), (k_len, D), (k_len, V)))
    output = attend(q, k, v)
    assert output.shape == (batch, H, q_len, V)
    assert (output == 0).all()
    output.sum().backward()
    assert all(x.grad is not None and (x.grad == 0).all() for x in (q, k, v))


def test_a_backward_pass_may_be_repeated():
    q, k, v = heads()
    output = attend_short(q, k, v, None)
    towards = torch.randn_like(output)
    first = torch.autograd.grad(output, (q, k, v), towards, retain_graph=True)
    again = torch.autograd.grad(output, (q, k, v), towards)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
