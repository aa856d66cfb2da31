import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from glassformer.generation.kernels import passes
from glassformer.generation.kernels.quantized import QuantizedLinear, can_quantize

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this processor or torch has no products of eight bits")
ROWS, IN, OUT = 5, 67, 131


@pytest.fixture(params=["codes", "compiled", "plain"], autouse=True)
def form(request, monkeypatch) -> str:
    if request.param != "plain" and passes.compiled() is None:
        pytest.skip("numba isn't installed")
    if request.param == "codes" and passes.compiled_codes() is None:
        pytest.skip("this processor has no such instructions")
    if request.param != "codes":
        monkeypatch.setattr(passes, "compiled_codes", lambda: None)
    if request.param == "plain":
        monkeypatch.setattr(passes, "compiled", lambda: None)
    return request.param


@pytest.fixture
def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(ROWS, IN), torch.randn(OUT, IN) * torch.rand(OUT, 1).add(0.1), torch.randn(OUT)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Round each row to 255 steps, by hand."""
    steps = x.abs().amax(1, keepdim=True).double() / 127
    return (x / steps).round() * steps


def test_torch_still_has_the_operators_we_name():
    """Each is private. If this fails, look for its successor."""
    assert torch.ops.onednn.qlinear_prepack
    assert torch.ops.onednn.qlinear_pointwise


def test_it_is_the_product_of_the_rounded_numbers(parts):
    x, weight, bias = parts
    expected = F.linear(rounded(x), rounded(weight), bias.double())
    assert_close(QuantizedLinear(weight, bias)(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_it_is_near_the_product(parts):
    x, weight, bias = parts
    exact = F.linear(x, weight, bias)
    assert (QuantizedLinear(weight, bias)(x) - exact).std() < 0.01 * exact.std()


@pytest.mark.parametrize(("name", "function"), [("relu", F.relu), ("swish", F.silu), ("gelu", F.gelu)])
def test_activations_and_sums(parts, name, function):
    x, weight, bias = parts
    linear, to = QuantizedLinear(weight, bias), torch.randn(ROWS, OUT)
    before = to.clone()
    assert_close(linear.activated(x, name), function(linear(x)), rtol=1e-6, atol=2e-6)
    assert_close(linear.added(x, to), linear(x) + to)
    assert torch.equal(to, before)


def test_a_row_is_the_same_whatever_else_there_is(parts):
    _, weight, bias = parts
    x = torch.randn(131, IN) * torch.logspace(-3, 3, 131)[:, None]
    linear, threads = QuantizedLinear(weight, bias), torch.get_num_threads()
    whole = linear(x)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for size in (1, 3, 8, 32, 131):
                assert torch.equal(torch.cat([linear(part) for part in x.split(size)]), whole)
    finally:
        torch.set_num_threads(threads)


def test_more_axes_and_strided_inputs(parts):
    x, weight, bias = parts
    linear, expected = QuantizedLinear(weight, bias), QuantizedLinear(weight, bias)(x)
    assert torch.equal(linear(x.mT.contiguous().mT), expected)
    assert torch.equal(linear(x[:, None]), expected[:, None])
    assert torch.equal(linear.added(x[:, None], expected[:, None]), (expected + expected)[:, None])
    assert linear.activated(x[None], "relu").shape == (1, ROWS, OUT)


def test_a_class_that_is_never_chosen_and_rows_of_zeros(parts):
    x, weight, bias = parts
    weight[2], weight[3], bias[3], x[1] = 0.0, 0.0, -torch.inf, 0.0
    found = QuantizedLinear(weight, bias)(x)
    assert_close(found[:, 2], bias[2].expand(ROWS))
    assert (found[:, 3] == -torch.inf).all()
    assert_close(found[1], bias)
    assert found[:, 4:].isfinite().all()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_stays_so_and_is_alone(parts, number):
    x, weight, bias = parts
    linear = QuantizedLinear(weight, bias)
    expected = linear(x)
    x[1, 4] = number
    found = linear(x)
    assert not found[1].isfinite().any()
    assert torch.equal(found[2:], expected[2:])


@pytest.mark.parametrize("copied", [deepcopy, lambda linear: pickle.loads(pickle.dumps(linear))])
def test_a_copy_is_the_same(parts, copied):
    x, weight, bias = parts
    linear = QuantizedLinear(weight, bias)
    assert torch.equal(copied(linear)(x), linear(x))


@pytest.mark.parametrize("forbidden", [None, 77])
@pytest.mark.parametrize("count", [1, 5, 7, 131])
def test_the_best_classes_are_those_of_the_logits(form, parts, count, forbidden):
    _, weight, bias = parts
    weight, bias = F.pad(weight, (0, 0, 0, 256 - OUT)), F.pad(bias, (0, 256 - OUT), value=-torch.inf)
    bias[77] = 100.0
    linear, x = QuantizedLinear(weight, bias), torch.randn(count, IN)
    expected = passes.best_classes(linear(x), 3, forbidden)
    assert (expected[1] == 77).any() == (forbidden is None)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert linear.is_compiled_for(x) == (form == "codes")
        if form == "codes":
            for found, given in zip(linear.best_classes(x, 3, forbidden), expected, strict=True):
                assert torch.equal(found, given)
    finally:
        torch.set_num_threads(threads)
