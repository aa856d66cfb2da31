import pytest
import torch

from glassformer.errors import ConfigError
from glassformer.generation.engines.precision import Precision, pick_generation_precision

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


INT8 = Precision(torch.float32, int8=True)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, Precision(torch.float32)),
        ({"avx512_bf16": True}, Precision(torch.bfloat16)),
        ({"avx512_vnni": True}, INT8),
        ({"avx_vnni": True}, INT8),
        ({"avx512_bf16": True, "avx512_vnni": True}, INT8),
        ({"amx_bf16": True, "amx_int8": True}, INT8),
    ],
)
def test_auto_is_what_the_processor_has_instructions_for(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert pick_generation_precision("auto", CPU, torch.float32) == expected


@pytest.mark.parametrize(("available", "expected"), [(True, INT8), (False, Precision(torch.bfloat16))])
def test_auto_without_the_products_of_eight_bits(monkeypatch, available, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx512_vnni": True})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: available)
    assert pick_generation_precision("auto", CPU, torch.float32) == expected


def test_int8_by_name(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": True})
    assert pick_generation_precision("int8", CPU, torch.float32) == INT8
    with pytest.raises(ConfigError, match="precision int8 is for a CPU, got the device cuda: take the precision auto"):
        pick_generation_precision("int8", CUDA, torch.float32)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {})
    with pytest.raises(ConfigError, match="take the precision auto"):
        pick_generation_precision("int8", CPU, torch.float32)


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


@pytest.mark.parametrize("name", ["int4", "fp16", "", "AUTO"])
def test_an_unknown_precision_says_which_there_are(name):
    with pytest.raises(
        ConfigError, match=f"precision must be one of auto, float32, bfloat16, float16, int8, got '{name}'"
    ):
        pick_generation_precision(name, CPU, torch.float32)


def test_it_says_what_it_is():
    assert str(Precision(torch.float32)) == "float32"
    assert str(INT8) == "int8"
