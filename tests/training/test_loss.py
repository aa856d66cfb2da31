"""The chunked loss against torch's own cross-entropy on the whole logits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.errors import ArgumentError
from glassformer.training import loss as module
from glassformer.training.loss import consistent_cross_entropy, smoothed_cross_entropy

T, C, D = 13, 11, 5  # tokens, classes, width: distinct primes
EXACT = dict(rtol=1e-10, atol=1e-10)


def inputs(dtype=torch.float64):
    states = torch.randn(T, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(C, D, dtype=dtype, requires_grad=True)
    return states, weight, torch.randint(C, (T,))


def explicit(states, weight, targets, smoothing):
    return F.cross_entropy(states @ weight.T, targets, label_smoothing=smoothing, reduction="sum")


@pytest.fixture(params=[1, 3 * C, T * C], ids=["a token a chunk", "3 tokens a chunk", "one chunk"], autouse=True)
def _chunk(request, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", {"cpu": request.param})


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradients_equal_torch(smoothing):
    states, weight, targets = inputs()
    expected = explicit(states, weight, targets, smoothing)
    expected_grads = torch.autograd.grad(3 * expected, (states, weight))

    loss, nll = smoothed_cross_entropy(states, weight, targets, smoothing=smoothing)

    assert_close(loss, expected, **EXACT)
    assert_close(nll, explicit(states, weight, targets, 0.0), **EXACT)
    assert (loss.requires_grad, nll.requires_grad) == (True, False)
    with torch.no_grad():
        both = smoothed_cross_entropy(states, weight, targets, smoothing=smoothing)
    assert not both[0].requires_grad
    assert_close(both, (loss.detach(), nll), **EXACT)
    assert_close(torch.autograd.grad(3 * loss, (states, weight)), expected_grads, **EXACT)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 0.03), (torch.bfloat16, 0.05)], ids=str)
def test_in_bfloat16_it_is_near_and_gradients_have_the_types_of_what_they_are_of(dtype, tolerance):
    # Under autocast states are in bfloat16, weights in float32.
    states, weight, targets = inputs(torch.float32)
    given = states.detach().to(dtype).requires_grad_()
    expected = explicit(states, weight, targets, 0.1)
    loss, nll = smoothed_cross_entropy(given, weight, targets, smoothing=0.1, dtype=torch.bfloat16)
    assert loss.dtype == nll.dtype == torch.float32
    assert loss.item() != expected.item()  # the products really are shorter
    assert_close(loss, expected, rtol=2e-2, atol=0.0)
    found, true = torch.autograd.grad(loss, (given, weight)), torch.autograd.grad(expected, (states, weight))
    assert [grad.dtype for grad in found] == [dtype, torch.float32]
    for ours, theirs in zip(found, true, strict=True):
        assert_close(ours.float(), theirs, rtol=0.0, atol=tolerance * theirs.abs().max().item())


# A row's filling


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("filling", [1, 3, 17])
def test_states_past_the_targets_have_no_loss_and_no_gradient(filling, dtype):
    states, weight, targets = inputs(torch.float64 if dtype is None else torch.float32)
    filled = torch.cat([states.detach(), 100 * torch.randn(filling, D, dtype=states.dtype)]).requires_grad_()
    found = smoothed_cross_entropy(filled, weight, targets, smoothing=0.1, dtype=dtype)
    expected = smoothed_cross_entropy(states, weight, targets, smoothing=0.1, dtype=dtype)
    exact = dict(rtol=1e-12, atol=1e-12) if dtype is None else dict(rtol=1e-2, atol=1e-2)
    assert_close(found, expected, **exact)
    to_filled, to_weight = torch.autograd.grad(found[0], (filled, weight))
    to_states, expected_to_weight = torch.autograd.grad(expected[0], (states, weight))
    assert_close(to_filled[:T], to_states, **exact)
    assert_close(to_weight, expected_to_weight, **exact)
    assert (to_filled[T:] == 0).all()
    with torch.no_grad():
        found = smoothed_cross_entropy(filled, weight, targets, smoothing=0.1)
    assert_close(found[0].double(), explicit(states, weight, targets, 0.1).detach().double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, T])
def test_nothing_but_filling_costs_nothing(rows):
    states, weight, _ = inputs()
    loss, nll = smoothed_cross_entropy(states[:rows], weight, torch.empty(0, dtype=torch.long), smoothing=0.1)
    assert loss.item() == nll.item() == 0.0
    assert not any(grad.any() for grad in torch.autograd.grad(loss, (states, weight)))


@given(classes=st.integers(1, 1 << 20))
def test_a_chunk_is_a_power_of_two_of_rows(classes):
    rows = module._chunk_rows(classes, "cpu")
    assert rows.bit_count() == 1
    assert rows * classes <= module._CHUNK_ELEMENTS["cpu"] or rows == 1
    assert 2 * rows * classes > module._CHUNK_ELEMENTS["cpu"]


# Half precision


def exact_in_half(tokens: int = T) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States and weights whose products bfloat16 holds exactly: all that is rounded is what the loss itself rounds."""
    states = torch.randint(-3, 4, (tokens, D)).float().requires_grad_()
    weight = (torch.randint(-3, 4, (C, D)) / 2).requires_grad_()
    return states, weight, torch.randint(C, (tokens,))


def test_where_only_the_loss_is_wanted_half_precision_costs_its_products_alone():
    states, weight, targets = exact_in_half()
    with torch.no_grad():
        found = smoothed_cross_entropy(states, weight, targets, smoothing=0.1, dtype=torch.bfloat16)
    expected = (explicit(states.double(), weight.double(), targets, smoothing) for smoothing in (0.1, 0.0))
    for one, other in zip(found, expected, strict=True):
        assert_close(one.double(), other.detach(), rtol=1e-6, atol=0.0)


def test_with_gradients_a_log_probability_in_bfloat16_is_that_of_a_rounded_number():
    states, weight, targets = exact_in_half(101)
    for state, target in zip(states, targets, strict=True):
        one = state[None], weight, target[None]
        loss, nll = smoothed_cross_entropy(*one, smoothing=0.1, dtype=torch.bfloat16)
        expected = [explicit(*one, smoothing).item() for smoothing in (0.1, 0.0)]
        # Half a unit in the last of bfloat16's 8 digits, relative to the probability.
        assert nll.item() == pytest.approx(expected[1], abs=1.01 * 2**-8)
        assert loss.item() == pytest.approx(expected[0], abs=1.01 * 2**-8)


def test_an_impossible_target_costs_a_finite_loss_and_is_learnt():
    # Its logit is 200 below the other's: a probability that no bfloat16 holds.
    states = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[-100.0], [100.0]], requires_grad=True)
    target = torch.tensor([0])
    loss, nll = smoothed_cross_entropy(states, weight, target, smoothing=0.0, dtype=torch.bfloat16)
    assert 85 < nll.item() < 93
    assert_close(torch.autograd.grad(loss, weight)[0], torch.tensor([[-1.0], [1.0]]))
    with torch.no_grad():
        assert smoothed_cross_entropy(states, weight, target, smoothing=0.0, dtype=torch.bfloat16)[1] == 200


def test_the_gradient_of_a_part_of_it():
    # Of its states alone or of its weight alone: what is frozen gets none.
    for learnt in range(2):
        tensors = inputs()
        expected = torch.autograd.grad(explicit(*tensors, 0.1), tensors[learnt])[0]
        tensors[1 - learnt].requires_grad_(False)
        smoothed_cross_entropy(*tensors, smoothing=0.1)[0].backward()
        assert_close(tensors[learnt].grad, expected, **EXACT)
        assert tensors[1 - learnt].grad is None


# Its surroundings


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
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", {"cpu": 10 * classes})
    states, weight = torch.randn(tokens, D, requires_grad=True), torch.randn(classes, D, requires_grad=True)
    with _Largest() as largest:
        smoothed_cross_entropy(states, weight, torch.randint(classes, (tokens,)), smoothing=0.1)[0].backward()
    assert 0 < largest.elements <= max(10 * classes, tokens * D)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [4.0, 6.0, 9.0])
def test_bfloat16_is_as_near_as_torchs_on_tokens_that_are_known_almost_for_sure(smoothing, scale):
    # A probability of 0.999 is 1 in bfloat16: the loss was a third of what it is, its gradient pointed elsewhere.
    tokens, classes, width = 101, 1009, 64
    weight = torch.randn(classes, width).bfloat16().float().requires_grad_()
    targets = torch.randint(classes, (tokens,))
    states = (scale * weight.detach()[targets] / width).bfloat16().float().requires_grad_()
    expected = explicit(states.double(), weight.double(), targets, smoothing)
    expected_grads = torch.autograd.grad(expected, (states, weight))
    rounded = F.cross_entropy(
        (states.bfloat16() @ weight.bfloat16().T).float(), targets, label_smoothing=smoothing, reduction="sum"
    )
    loss, _ = smoothed_cross_entropy(states, weight, targets, smoothing=smoothing, dtype=torch.bfloat16)
    assert_close(loss, rounded, rtol=0.02, atol=0.0)
    found, usual = (torch.autograd.grad(of, (states, weight)) for of in (loss, rounded))
    for ours, torchs, exact in zip(found, usual, expected_grads, strict=True):
        error, least = ((x - exact).norm() / exact.norm() for x in (ours, torchs))
        assert error < max(2 * least, 0.01)


def test_more_targets_than_states_are_refused():
    states, weight, targets = inputs()
    with pytest.raises(ArgumentError, match=r"targets must be at most as many as states, 12, got 13"):
        smoothed_cross_entropy(states[:-1], weight, targets, smoothing=0.1)


# Two passes that are pulled together


def two_passes(dtype=torch.float64):
    first, weight, targets = inputs(dtype)
    return first, (first + 0.3 * torch.randn_like(first)).detach().requires_grad_(), weight, targets


def explicitly_consistent(first, second, weight, targets, smoothing, consistency):
    """Liang et al. 2021, equations 1 to 3, halved."""
    p, q = ((states[: len(targets)] @ weight.T).log_softmax(1) for states in (first, second))
    losses = (explicit(states[: len(targets)], weight, targets, smoothing) for states in (first, second))
    apart = F.kl_div(q, p, log_target=True, reduction="sum") + F.kl_div(p, q, log_target=True, reduction="sum")
    return (sum(losses) + consistency * apart / 2) / 2


@pytest.mark.parametrize("filling", [0, 3])
@pytest.mark.parametrize(("smoothing", "consistency"), [(0.1, 5.0), (0.0, 0.7), (0.1, 0.0)])
def test_r_drop_equals_the_paper(smoothing, consistency, filling):
    first, second, weight, targets = two_passes()
    targets = targets[: T - filling]
    expected = explicitly_consistent(first, second, weight, targets, smoothing, consistency)
    expected_grads = torch.autograd.grad(3 * expected, (first, second, weight))

    loss, nll = consistent_cross_entropy(first, second, weight, targets, smoothing=smoothing, consistency=consistency)

    assert_close(loss, expected, **EXACT)
    assert_close(nll, explicitly_consistent(first, second, weight, targets, 0.0, 0.0).detach(), **EXACT)
    with torch.no_grad():
        settings = dict(smoothing=smoothing, consistency=consistency)
        assert_close(consistent_cross_entropy(first, second, weight, targets, **settings)[0], loss.detach(), **EXACT)
    assert_close(torch.autograd.grad(3 * loss, (first, second, weight)), expected_grads, **EXACT)


def test_r_drop_in_bfloat16_is_close():
    first, second, weight, targets = two_passes(torch.float32)
    expected = explicitly_consistent(first, second, weight, targets, 0.1, 5.0)
    found, _ = consistent_cross_entropy(
        first, second, weight, targets, smoothing=0.1, consistency=5.0, dtype=torch.bfloat16
    )
    assert found.item() != expected.item()  # the products really are shorter
    assert_close(found, expected, rtol=3e-2, atol=0.0)
    grads = (torch.autograd.grad(loss, (first, second, weight)) for loss in (found, expected))
    for ours, theirs in zip(*grads, strict=True):
        assert_close(ours, theirs, rtol=0.0, atol=0.04 * theirs.abs().max().item())
