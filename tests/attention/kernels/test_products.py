from functools import partial

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.products import PackedLinear, RightFactor, linear

B, M, N, K = 3, 37, 53, 71


@pytest.fixture(params=["MKL", "oneDNN"])
def library(request, monkeypatch) -> str:
    monkeypatch.setattr(choose, "onednn_beats_mkl", partial(bool, request.param == "oneDNN"))
    monkeypatch.setattr(choose, "ONEDNN_FROM_OPERATIONS", 0)
    return request.param


@pytest.fixture
def calls(monkeypatch) -> list[Tensor]:
    """What went through oneDNN's operator."""
    seen: list[Tensor] = []
    original = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *a: seen.append(a[0]) or original(*a))
    return seen


def test_torch_still_has_the_operators_we_name():
    """Each is private. If this fails, look for its successor."""
    assert torch._C._are_functorch_transforms_active() is False
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._get_tracing_state() is None
    assert forward_ad._current_level == -1
    assert torch._C._functorch.is_legacy_batchedtensor(torch.zeros(1)) is False
    # Without these two we are slower, not wrong.
    assert hasattr(torch, "_native_multi_head_attention")
    if torch.backends.mkldnn.is_available():
        assert torch.ops.mkldnn._linear_pointwise
        assert torch.ops.mkldnn._linear_pointwise.binary
        assert torch.ops.mkldnn._reorder_linear_weight
        assert isinstance(torch.ops.mkldnn._is_mkldnn_bf16_supported(), bool)
    assert torch.ops.aten._softmax_backward_data.out


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs(library, calls, bias):
    x, w = torch.randn(B, M, K, requires_grad=True), torch.randn(N, K, requires_grad=True)
    b = torch.randn(N, requires_grad=True) if bias else None
    with torch.no_grad():
        assert_close(linear(x, w, b), F.linear(x, w, b))
    assert len(calls) == (library == "oneDNN")
    learnt = [x, w] if b is None else [x, w, b]
    towards = torch.randn(B, M, N)
    found = torch.autograd.grad(linear(x, w, b), learnt, towards)
    expected = torch.autograd.grad(F.linear(x, w, b), learnt, towards)
    assert_close(found, expected, atol=1e-4, rtol=1e-5)
    assert len(calls) == (4 if library == "oneDNN" else 0)


@pytest.mark.usefixtures("library")
def test_linear_of_a_frozen_weight_has_the_gradient_of_its_input_alone():
    x, w = torch.randn(M, K, requires_grad=True), torch.randn(N, K)
    linear(x, w, None).sum().backward()
    assert_close(x.grad, w.sum(0).expand(M, K), atol=1e-4, rtol=1e-5)
    w.requires_grad_()
    linear(x.detach(), w, None).sum().backward()
    assert_close(w.grad, x.detach().sum(0).expand(N, K), atol=1e-4, rtol=1e-5)


@pytest.mark.usefixtures("library")
def test_linear_has_gradients_of_gradients():
    x, w = torch.randn(M, K, requires_grad=True), torch.randn(N, K, requires_grad=True)

    def penalty(function) -> Tensor:
        (grad,) = torch.autograd.grad(function(x, w, None).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.sum(), w)[0]

    assert_close(penalty(linear), penalty(F.linear), atol=1e-2, rtol=1e-4)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("transposed", [True, False])
def test_right_factor_multiplies_and_adds(transposed):
    a = torch.randn(B, K, M).mT if transposed else torch.randn(B, M, K)
    b = torch.randn(B, N, K).mT if transposed else torch.randn(B, K, N)
    out = torch.full((B, M, N), torch.nan)
    factor = RightFactor(b)
    factor.multiply(a, out=out)
    assert_close(out, a @ b, atol=1e-4, rtol=1e-5)
    factor.multiply(a, out=out, add=True)
    assert_close(out, 2 * (a @ b), atol=1e-4, rtol=1e-5)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("number", [1, 29, N])
def test_part_of_a_right_factor_is_one_too(number, transposed):
    b = torch.randn(B, N, K).mT if transposed else torch.randn(B, K, N)
    whole = RightFactor(b)
    a = torch.randn(B, M, K)
    out = torch.empty(B, M, number)
    whole.columns(number).multiply(a, out=out)
    assert_close(out, a @ b[..., :number], atol=1e-4, rtol=1e-5)
    out = torch.empty(B, M, N)
    whole.inner(number).multiply(a[..., :number], out=out)
    assert_close(out, a[..., :number] @ b[:, :number], atol=1e-4, rtol=1e-5)
    whole.multiply(a, out=out)  # it is as it was
    assert_close(out, a @ b, atol=1e-4, rtol=1e-5)


def test_onednn_is_for_float32_of_some_size_where_torch_computes_eagerly(calls, monkeypatch):
    monkeypatch.setattr(choose, "onednn_beats_mkl", partial(bool, True))
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    linear(x, w, None)
    assert len(calls) == 1
    linear(x[:8], w, None)  # small
    linear(x.double(), w.double(), None)
    linear(x.bfloat16(), w.bfloat16(), None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, w, None).dtype == torch.bfloat16
    torch.vmap(lambda y: linear(y, w, None))(x[None])
    with FlopCounterMode(display=False) as counter:
        linear(x, w, None)
    assert counter.get_total_flops() == 2 * 64**3
    torch._C._set_mkldnn_enabled(False)  # as torch.backends.mkldnn.flags, which warns of TF32
    try:
        linear(x, w, None)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert len(calls) == 1


def test_is_eager_sees_what_is_not():
    x = torch.randn(3)
    assert choose.is_eager(x, torch.nn.Parameter(x), None)
    assert not choose.is_eager(x.as_subclass(type("Subclass", (Tensor,), {})))
    assert torch.vmap(lambda y: torch.tensor(not choose.is_eager(y)))(x).all()
    with forward_ad.dual_level():
        assert not choose.is_eager(x)
    with pytest.warns(DeprecationWarning, match="torch.jit.trace"):
        traced = torch.jit.trace(lambda y: y + (5 if choose.is_eager(y) else 0), x, check_trace=False)
    assert torch.equal(traced(x), x)


@pytest.fixture(params=["packed", "plain"])
def packing(request, monkeypatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(choose, "packing_is_faster", lambda weight: False)
    elif not choose.packing_is_faster(torch.zeros(1)):
        pytest.skip("this torch has no oneDNN")
    return request.param


CLOSE = {
    torch.float32: dict(atol=1e-4, rtol=1e-5),
    torch.bfloat16: dict(atol=0.1, rtol=2e-2),
    torch.float64: dict(atol=1e-12, rtol=1e-12),
    torch.float16: dict(atol=2e-2, rtol=4e-3),
}
ACTIVATIONS = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (M,), (B, 7)], ids=str)
def test_packed_linear_is_torchs_linear_with_an_activation_or_a_sum(rows, bias, dtype):
    x, w, to = (torch.randn(*shape).to(dtype) for shape in ((*rows, K), (N, K), (*rows, N)))
    b = torch.randn(N).to(dtype) if bias else None
    given = [None if tensor is None else tensor.clone() for tensor in (x, w, b, to)]
    packed = PackedLinear(w, b)
    expected = F.linear(x.double(), w.double(), None if b is None else b.double())
    found = {"": packed(x), "added": packed.added(x, to)}
    found |= {name: packed.activated(x, name) for name in ACTIVATIONS}
    wanted = {"": expected, "added": to.double() + expected}
    wanted |= {name: activation(expected) for name, activation in ACTIVATIONS.items()}
    for name, value in found.items():
        assert (value.dtype, value.shape) == (dtype, (*rows, N))
        assert_close(value.double(), wanted[name], **CLOSE[dtype])
    assert_close([x, w, to], [given[0], given[1], given[3]], rtol=0, atol=0)


@pytest.mark.usefixtures("packing")
def test_packed_linear_takes_strided_inputs_and_part_of_a_weight():
    x, w, b = torch.randn(K, M).mT, torch.randn(3 * N, K), torch.randn(3 * N)
    packed = PackedLinear(w[N : 2 * N], b[N : 2 * N])
    expected = x @ w[N : 2 * N].mT + b[N : 2 * N]
    assert_close(packed(x), expected, atol=1e-4, rtol=1e-5)
    to = torch.randn(N, M).mT
    assert_close(packed.added(x, to), to + expected, atol=1e-4, rtol=1e-5)


@pytest.mark.usefixtures("packing")
def test_a_bias_of_minus_infinity_stays_what_it_is():
    b = torch.randn(N).index_fill_(0, torch.tensor([5, N - 1]), -torch.inf)
    found = PackedLinear(torch.randn(N, K), b)(torch.randn(M, K))
    assert torch.equal(found == -torch.inf, (b == -torch.inf).expand(M, N))
    assert not found.isnan().any()


def test_what_onednn_multiplies_at_full_speed_is_packed(monkeypatch):
    weight = torch.zeros(N, K)
    if not torch.backends.mkldnn.is_available():
        assert not choose.packing_is_faster(weight)
        return
    assert choose.packing_is_faster(weight)
    for supported in (True, False):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda supported=supported: supported)
        assert choose.packing_is_faster(weight.bfloat16()) is supported
    assert not choose.packing_is_faster(weight.double())
    assert not choose.packing_is_faster(weight.half())
    assert not choose.packing_is_faster(weight.to("meta"))
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not choose.packing_is_faster(weight)
    finally:
        torch._C._set_mkldnn_enabled(True)
