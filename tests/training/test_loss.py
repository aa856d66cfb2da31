"""The chunked loss against torch's own cross-entropy on the whole logits."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.training import loss as module
from glassformer.training.loss import smoothed_cross_entropy

T, C, D = 13, 11, 5  # tokens, classes, width: distinct primes


def inputs(dtype=torch.float64):
    states = torch.randn(T, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(C, D, dtype=dtype, requires_grad=True)
    return states, weight, torch.randint(C, (T,))


def explicit(states, weight, targets, smoothing):
    return F.cross_entropy(states @ weight.T, targets, label_smoothing=smoothing, reduction="sum")


@pytest.fixture(params=[1, 3 * C, T * C], ids=["a token a chunk", "3 tokens a chunk", "one chunk"], autouse=True)
def _chunk(request, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", request.param)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradients_equal_torch(smoothing):
    states, weight, targets = inputs()
    expected = explicit(states, weight, targets, smoothing)
    expected_grads = torch.autograd.grad(3 * expected, (states, weight))

    loss, nll = smoothed_cross_entropy(states, weight, targets, smoothing=smoothing)

    exact = dict(rtol=1e-10, atol=1e-10)
    assert_close(loss, expected, **exact)
    assert_close(nll, explicit(states, weight, targets, 0.0), **exact)
    for ours, theirs in zip(torch.autograd.grad(3 * loss, (states, weight)), expected_grads, strict=True):
        assert_close(ours, theirs, **exact)


def test_without_smoothing_loss_and_nll_are_the_same_number():
    loss, nll = smoothed_cross_entropy(*inputs(), smoothing=0.0)
    assert loss.item() == nll.item()


def test_gradient_through_a_slice_of_a_larger_matrix():
    # As in training: the output weight is the embedding matrix without its padding row.
    states, _, targets = inputs()
    embedding = torch.randn(C + 1, D, dtype=torch.float64, requires_grad=True)
    smoothed_cross_entropy(states, embedding[:C], targets, smoothing=0.1)[0].backward()
    (expected,) = torch.autograd.grad(explicit(states, embedding[:C], targets, 0.1), embedding)
    assert_close(embedding.grad, expected, rtol=1e-10, atol=1e-10)
    assert embedding.grad[C].abs().sum() == 0


def test_bfloat16_products_are_close():
    states, weight, targets = inputs(torch.float32)
    expected = explicit(states, weight, targets, 0.1)
    loss, nll = smoothed_cross_entropy(states, weight, targets, smoothing=0.1, dtype=torch.bfloat16)
    assert loss.dtype == nll.dtype == torch.float32
    assert loss.item() != expected.item()  # the products really are shorter
    assert_close(loss, expected, rtol=2e-2, atol=0.0)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (states, weight)), torch.autograd.grad(expected, (states, weight)), strict=True
    ):
        assert ours.dtype == torch.float32
        assert_close(ours, theirs, rtol=0.0, atol=0.03 * theirs.abs().max().item())


def test_autocast_around_it_changes_nothing():
    states, weight, targets = inputs(torch.float32)
    plain, _ = smoothed_cross_entropy(states, weight, targets, smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        inside, _ = smoothed_cross_entropy(states, weight, targets, smoothing=0.1)
    assert plain.item() == inside.item()


def test_large_logits_stay_finite():
    states, weight, targets = inputs()
    loss, _ = smoothed_cross_entropy(1e4 * states, weight, targets, smoothing=0.1)
    assert_close(loss, explicit(1e4 * states, weight, targets, 0.1))
    assert torch.autograd.grad(loss, states)[0].isfinite().all()


def test_without_grad():
    states, weight, targets = inputs()
    with torch.no_grad():
        loss, nll = smoothed_cross_entropy(states, weight, targets, smoothing=0.1)
    assert not loss.requires_grad
    assert_close(loss, explicit(states, weight, targets, 0.1).detach())
    assert_close(nll, explicit(states, weight, targets, 0.0).detach())


def test_only_the_loss_has_a_gradient():
    loss, nll = smoothed_cross_entropy(*inputs(), smoothing=0.1)
    assert loss.requires_grad
    assert not nll.requires_grad


def test_no_tokens_cost_nothing():
    states, weight, _ = inputs()
    loss, nll = smoothed_cross_entropy(states[:0], weight, torch.empty(0, dtype=torch.long), smoothing=0.1)
    assert loss.item() == nll.item() == 0.0


class _Largest(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return out


def test_never_holds_tokens_by_classes(monkeypatch):
    tokens, classes = 211, 101
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 10 * classes)
    states, weight = torch.randn(tokens, D, requires_grad=True), torch.randn(classes, D, requires_grad=True)
    with _Largest() as largest:
        smoothed_cross_entropy(states, weight, torch.randint(classes, (tokens,)), smoothing=0.1)[0].backward()
    assert 0 < largest.elements <= max(10 * classes, tokens * D)
