import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from glassformer.errors import ConfigError, RunError
from glassformer.generation.precision import Precision, QuantizedLinear, can_quantize, pick_generation_precision

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, Precision(torch.float32)),
        ({"avx512_vnni": True}, Precision(torch.float32)),
        ({"avx512_bf16": True}, Precision(torch.bfloat16)),
        ({"avx512_bf16": True, "avx512_vnni": True}, Precision(torch.bfloat16, int8=True)),
        ({"amx_bf16": True, "amx_int8": True}, Precision(torch.bfloat16, int8=True)),
    ],
)
def test_auto_is_what_the_processor_has_instructions_for(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert pick_generation_precision("auto", CPU, torch.float32) == expected


@pytest.mark.parametrize("engines", [["qnnpack"], ["onednn", "x86"]])
def test_auto_without_the_products_of_eight_bits(monkeypatch, engines):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx512_vnni": True})
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", engines)
    assert pick_generation_precision("auto", CPU, torch.float32) == Precision(torch.bfloat16)


@pytest.mark.parametrize(("supported", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_on_a_gpu(monkeypatch, supported, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert pick_generation_precision("auto", CUDA, torch.float32) == Precision(expected)


def test_auto_elsewhere_and_of_a_float64_model():
    assert pick_generation_precision("auto", MPS, torch.float32) == Precision(torch.float32)
    assert pick_generation_precision("auto", CPU, torch.float64) == Precision(torch.float64)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("own", [torch.float32, torch.float64])
def test_a_named_precision_is_that_alone(name, own):
    assert pick_generation_precision(name, CPU, own) == Precision(getattr(torch, name))


@pytest.mark.parametrize("name", ["int8", "fp16", "", "AUTO"])
def test_an_unknown_precision_says_which_there_are(name):
    with pytest.raises(ConfigError, match=f"precision must be one of auto, float32, bfloat16, float16, got '{name}'"):
        pick_generation_precision(name, CPU, torch.float32)


def test_it_says_what_it_is():
    assert str(Precision(torch.float32)) == "float32"
    assert str(Precision(torch.bfloat16, int8=True)) == "bfloat16 and int8"


# Weights of eight bits

needs_int8 = pytest.mark.skipif(not can_quantize(), reason="this processor or torch has no products of eight bits")
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


@needs_int8
def test_it_is_the_product_of_the_rounded_numbers(parts):
    x, weight, bias = parts
    assert_close(QuantizedLinear(weight, bias)(x), rounded(x, weight, bias), rtol=1e-4, atol=1e-3)


@needs_int8
def test_it_is_near_the_product(parts):
    x, weight, bias = parts
    exact = F.linear(x, weight, bias)
    assert (QuantizedLinear(weight, bias)(x) - exact).std() < 0.02 * exact.std()


@needs_int8
@pytest.mark.parametrize(("name", "function"), [("relu", F.relu), ("swish", F.silu), ("gelu", F.gelu)])
def test_activations_and_sums(parts, name, function):
    x, weight, bias = parts
    linear, to = QuantizedLinear(weight, bias), torch.randn(ROWS, OUT)
    before = to.clone()
    assert_close(linear.activated(x, name), function(linear(x)))
    assert_close(linear.added(x, to), linear(x) + to)
    assert torch.equal(to, before)


@needs_int8
def test_a_class_that_is_never_chosen_and_a_row_of_zeros(parts):
    x, weight, bias = parts
    weight[2], weight[3], bias[3] = 0.0, 0.0, -torch.inf
    found = QuantizedLinear(weight, bias)(x)
    assert_close(found[:, 2], bias[2].expand(ROWS))
    assert (found[:, 3] == -torch.inf).all()
    assert found[:, 4:].isfinite().all()


@needs_int8
def test_the_engine_is_as_before_and_nothing_warns(parts):
    before = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QuantizedLinear(*parts[1:])
    assert torch.backends.quantized.engine == before


@needs_int8
def test_numbers_that_are_not_finite_are_refused(parts):
    x, weight, bias = parts
    x.fill_(float("nan"))
    with pytest.raises(RunError, match="the model's numbers are not finite while it translates"):
        QuantizedLinear(weight, bias)(x)
