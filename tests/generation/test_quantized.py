import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from glassformer.generation.quantized import QuantizedLinear, can_quantize

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this processor or torch has no products of eight bits")
ROWS, IN, OUT = 5, 67, 131


@pytest.fixture
def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(ROWS, IN), torch.randn(OUT, IN) * torch.rand(OUT, 1).add(0.1), torch.randn(OUT)


def rounded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Both to 255 steps, by hand: the weight's rows each by their largest number, x over its range with zero in it."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    low, high = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
    step = (high - low) / 255
    zero = (-low / step).round()
    x = ((x / step + zero).round().clamp(0, 255) - zero) * step
    return F.linear(x, (weight / scales).round() * scales, bias)


def test_it_is_the_product_of_the_rounded_numbers(parts):
    x, weight, bias = parts
    assert_close(QuantizedLinear(weight, bias)(x), rounded(x, weight, bias), rtol=1e-4, atol=1e-3)


def test_it_is_near_the_product(parts):
    x, weight, bias = parts
    exact = F.linear(x, weight, bias)
    assert (QuantizedLinear(weight, bias)(x) - exact).std() < 0.02 * exact.std()


@pytest.mark.parametrize(("name", "function"), [("relu", F.relu), ("swish", F.silu), ("gelu", F.gelu)])
def test_activations_and_sums(parts, name, function):
    x, weight, bias = parts
    linear, to = QuantizedLinear(weight, bias), torch.randn(ROWS, OUT)
    before = to.clone()
    assert_close(linear.activated(x, name), function(linear(x)))
    assert_close(linear.added(x, to), linear(x) + to)
    assert torch.equal(to, before)


def test_a_class_that_is_never_chosen_and_a_row_of_zeros(parts):
    x, weight, bias = parts
    weight[2], weight[3], bias[3] = 0.0, 0.0, -torch.inf
    found = QuantizedLinear(weight, bias)(x)
    assert_close(found[:, 2], bias[2].expand(ROWS))
    assert (found[:, 3] == -torch.inf).all()
    assert found[:, 4:].isfinite().all()


def test_the_engine_is_as_before_and_nothing_warns(parts):
    before = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QuantizedLinear(*parts[1:])
    assert torch.backends.quantized.engine == before
