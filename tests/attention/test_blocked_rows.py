"""A query that may look nowhere: exact zeros and finite gradients, in every mode, dtype and kind of mask."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.kernels import choose
from glassformer.attention.multihead import MultiheadAttention

B, H, Q, K, D = 2, 3, 5, 7, 4
E = H * D
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
MASKS = ["padding", "float padding", "mask", "float mask", "mask per head", "float mask per head", "two together"]


def masks(kind: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], Tensor]:
    """Masks that block every key of some rows, and which these rows are: (batch, heads, q_len)."""
    blocked = torch.zeros(B, H, Q, K, dtype=torch.bool)
    given: dict[str, Tensor] = {}

    def additive(mask: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -torch.inf)

    if kind.endswith("padding"):
        padding = torch.zeros(B, K, dtype=torch.bool)
        padding[1] = True
        blocked[1] = True
        given["key_padding_mask"] = additive(padding) if kind.startswith("float") else padding
    elif kind == "two together":  # neither blocks a row by itself
        padding = torch.arange(K).expand(B, K) > 2
        mask = torch.zeros(Q, K, dtype=torch.bool)
        mask[3, :3] = True
        blocked[:, :, 3] = True
        given = {"key_padding_mask": padding, "attn_mask": additive(mask)}
    else:
        mask = torch.zeros(B * H if kind.endswith("head") else 1, Q, K, dtype=torch.bool)
        mask[-1, 2] = True
        if kind.endswith("head"):
            blocked[-1, -1, 2] = True
        else:
            mask = mask[0]
            blocked[:, :, 2] = True
        given["attn_mask"] = additive(mask) if kind.startswith("float") else mask
    return given, blocked.all(-1)


@pytest.fixture(params=["plain operations", "blocks", "products", "short"])
def _way(request, monkeypatch) -> None:
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0 if request.param == "blocks" else 10**9)
    monkeypatch.setattr(choose, "products_are_faster", lambda q, k: request.param == "products")
    monkeypatch.setattr(choose, "short_is_faster", lambda q, k, v: request.param == "short")


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_zeros_and_finite_gradients(kind, dtype):
    given, nowhere = masks(kind, dtype)
    modes: Any = itertools.product([True, False], [0.0, 0.4], [True, False], [True, False], [True, False])
    for training, dropout, need_weights, batch_first, grad in modes:
        module = MultiheadAttention(E, H, dropout=dropout, batch_first=batch_first, dtype=dtype).train(training)
        # An output projection that shows the heads as they are.
        torch.nn.init.eye_(module.out_proj.weight)
        torch.nn.init.ones_(module.out_proj.bias)
        shape = (B, Q, E) if batch_first else (Q, B, E)
        key_shape = (B, K, E) if batch_first else (K, B, E)
        query = torch.randn(shape, dtype=dtype, requires_grad=grad)
        key = torch.randn(key_shape, dtype=dtype, requires_grad=grad)
        with torch.set_grad_enabled(grad):
            output, weights = module(query, key, key, need_weights=need_weights, average_attn_weights=False, **given)
        by_batch = output if batch_first else output.transpose(0, 1)
        heads = by_batch.view(B, Q, H, D).transpose(1, 2)
        assert output.isfinite().all()
        assert (heads[nowhere] == 1).all()
        if weights is not None:
            assert weights.isfinite().all()
            assert (weights[nowhere] == 0).all()
        if grad:
            loss = output.sum() + (0 if weights is None else weights.pow(2).sum())
            for found in torch.autograd.grad(loss, [query, key, *module.parameters()]):
                assert found.isfinite().all()


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_zeros_under_autocast(kind, dtype):
    given, nowhere = masks(kind, torch.float32)
    module = MultiheadAttention(E, H, batch_first=True)
    query, key = torch.randn(B, Q, E, requires_grad=True), torch.randn(B, K, E)
    for need_weights in (True, False):
        with torch.autocast("cpu", dtype=dtype):
            output, weights = module(query, key, key, need_weights=need_weights, average_attn_weights=False, **given)
        assert output.dtype == dtype
        assert output.isfinite().all()
        if weights is not None:
            assert (weights[nowhere] == 0).all()
        (found,) = torch.autograd.grad(output.sum(), query)
        assert found.isfinite().all()


def test_only_minus_infinity_blocks():
    # A large negative number on every key shifts all scores alike, so the weights stay as they are.
    module = MultiheadAttention(E, H, batch_first=True)
    x = torch.randn(B, K, E)
    for dtype in (torch.float32, torch.bfloat16):
        module, x = module.to(dtype), x.to(dtype)
        lowered = torch.full((K, K), -1e4, dtype=dtype)
        _, weights = module(x, x, x, attn_mask=lowered)
        assert_close(weights.sum(-1), torch.ones(B, K, dtype=dtype), atol=2e-2, rtol=0)


@pytest.mark.parametrize("added", ["add_bias_kv", "add_zero_attn"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_an_added_key_is_something_to_look_at(added, need_weights):
    module = MultiheadAttention(E, H, batch_first=True, **{added: True})
    x = torch.randn(B, K, E)
    output, weights = module(x, x, x, key_padding_mask=torch.ones(B, K, dtype=torch.bool), need_weights=need_weights)
    assert output.isfinite().all()
    if need_weights:
        assert_close(weights[..., -1], torch.ones(B, K))
        assert (weights[..., :-1] == 0).all()


def test_small_inference_with_everything_padded():
    # torch's one operator for small inputs gives NaN here; ours doesn't reach it.
    module = MultiheadAttention(E, H, batch_first=True).eval()
    x = torch.randn(B, K, E)
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[0] = True
    with torch.inference_mode():
        output, weights = module(x, x, x, key_padding_mask=padding)
    assert (weights[0] == 0).all()
    assert_close(weights[1].sum(-1), torch.ones(K))
    assert_close(output[0], module.out_proj.bias.expand(K, E))
