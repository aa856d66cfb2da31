import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import partial

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


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_the_compiled_product_serves_where_it_is_faster(form, parts, monkeypatch):
    x, weight, bias = parts
    linear, many = QuantizedLinear(weight, bias), torch.randn(131, IN)
    for amx in (False, True):
        monkeypatch.setattr(torch.cpu, "get_capabilities", partial(dict, amx_int8=amx))
        assert linear.is_compiled_for(x) == (form == "codes")
        assert linear.is_compiled_for(many) == (form == "codes" and not amx)
    assert not linear.is_compiled_for(x.double())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("forbidden", [None, 77])
@pytest.mark.parametrize("classes", [256, 1152])
@pytest.mark.parametrize("count", [1, 7, 145, 301])
def test_the_best_classes_are_those_of_the_logits(form, parts, count, classes, forbidden, monkeypatch):
    if form != "codes":
        pytest.skip("the logits are computed first")
    monkeypatch.setattr(torch.cpu, "get_capabilities", partial(dict, amx_int8=False))
    bias = torch.randn(classes)
    bias[OUT:], bias[77] = -torch.inf, 100.0
    linear, x = QuantizedLinear(torch.randn(classes, IN), bias), torch.randn(count, IN)
    expected = passes.best_classes(linear(x), 3, forbidden)
    assert (expected[1] == 77).any() == (forbidden is None)
    for found, given in zip(linear.best_classes(x, 3, forbidden), expected, strict=True):
        assert torch.equal(found, given)


@pytest.mark.usefixtures("one_thread")
def test_the_forms_agree_to_the_last_bit_in_every_number_of_rows(form, parts, monkeypatch):
    _, weight, bias = parts
    x, to = torch.randn(301, IN), torch.randn(301, OUT)
    found = [QuantizedLinear(weight, bias).added(x[:n], to[:n]) for n in (0, 1, 6, 143, 144, 145, 301)]
    monkeypatch.setattr(passes, "compiled_codes", lambda: None)
    for given in found:
        assert torch.equal(QuantizedLinear(weight, bias).added(x[: len(given)], to[: len(given)]), given)


def test_numba_may_compile_for_another_processor():
    """LLVM ends the process if it lacks the instruction."""
    code = """
import torch
from glassformer.generation.kernels import passes
from glassformer.generation.kernels.quantized import QuantizedLinear
assert passes.compiled_codes() is None
assert QuantizedLinear(torch.ones(3, 4), torch.zeros(3))(torch.ones(1, 4)).tolist() == [[4.0, 4.0, 4.0]]
"""
    if passes.compiled() is None:
        pytest.skip("numba isn't installed")
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
