import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention import multihead
from glassformer.attention.kernels import choose
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.small import attend_small

B, H, Q, K, E = 2, 3, 5, 7, 33
MASKS = ("none", "bool", "float", "hint")


@pytest.fixture
def taken(monkeypatch) -> list[bool]:
    """Return a list that gets, for each call, whether `attend_small` computed it."""
    calls: list[bool] = []

    def watched(*args, **settings):
        found = attend_small(*args, **settings)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(multihead, "attend_small", watched)
    monkeypatch.setattr(multihead, "small_self_attention", lambda *args, **settings: None)
    return calls


def arguments(mask: str, padded: bool, q_len: int, k_len: int, dtype: torch.dtype) -> dict:
    given: dict = {}
    if mask == "float":
        given["attn_mask"] = torch.randn(q_len, k_len, dtype=dtype)
    elif mask != "none":
        given |= {"attn_mask": torch.ones(q_len, k_len, dtype=torch.bool).triu(1), "is_causal": mask == "hint"}
    if padded:
        given["key_padding_mask"] = torch.arange(k_len).expand(B, k_len) >= torch.tensor([[k_len], [3]])
    return given


def gradients(module: nn.Module, inputs: list[Tensor], call: dict) -> list[Tensor]:
    output, weights = module(*inputs, **call)
    loss = output.square().sum() + (0 if weights is None else weights.square().sum())
    leaves = list(dict.fromkeys(inputs)) + list(module.parameters())
    return [output, *([] if weights is None else [weights]), *torch.autograd.grad(loss, leaves)]


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # of torch's
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize("want", ["averaged", "per head", "none"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_small_attention_is_torchs(taken, mask, padded, want, itself, batch_first, bias):
    theirs = nn.MultiheadAttention(E, H, bias=bias, batch_first=batch_first, dtype=torch.float64)
    ours = MultiheadAttention(E, H, bias=bias, batch_first=batch_first, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    q, k = (
        torch.randn((B, n, E) if batch_first else (n, B, E), dtype=torch.float64, requires_grad=True) for n in (Q, K)
    )
    inputs = [q, q, q] if itself else [q, k, k]
    call = arguments(mask, padded, Q, Q if itself else K, torch.float64)
    call |= {"need_weights": want != "none", "average_attn_weights": want != "per head"}
    assert_close(gradients(ours, inputs, call), gradients(theirs, inputs, call))
    assert taken == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_small_attention_is_the_general_way_in_other_precisions(taken, monkeypatch, mask, need_weights, dtype):
    module = MultiheadAttention(E, H, dtype=dtype)
    x = torch.randn(Q, B, E, dtype=dtype)
    call = arguments(mask, False, Q, Q, dtype) | {"need_weights": need_weights}
    found = module(x, x, x, **call)
    monkeypatch.setattr(choose, "SMALL_UP_TO_SCORES", 0)
    expected = module(x, x, x, **call)
    assert taken == [True, False]
    close = dict(atol=1e-5, rtol=1e-4) if dtype == torch.float32 else dict(atol=2e-2, rtol=2e-2)
    assert_close(found[0], expected[0], **close)
    assert_close(found[1], expected[1], **close)


def test_the_lowest_float16_number_in_a_mask_blocks_no_row():
    module, x = MultiheadAttention(E, H, dtype=torch.float16), torch.randn(Q, B, E, dtype=torch.float16)
    lowest = torch.full((Q, Q), torch.finfo(torch.float16).min, dtype=torch.float16)
    _, weights = module(x, x, x, attn_mask=lowest)
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), atol=1e-2, rtol=0)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_query_that_may_look_nowhere_gets_zeros(taken, need_weights):
    module = MultiheadAttention(E, H, batch_first=True)
    x = torch.randn(B, Q, E, requires_grad=True)
    padding = torch.zeros(B, Q, dtype=torch.bool)
    padding[1] = True
    output, weights = module(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    assert_close(output[1], module.out_proj.bias.expand(Q, E))
    assert weights is None or not weights[1].any()
    (grad,) = torch.autograd.grad(output.sum(), x)
    assert grad.isfinite().all()
    assert taken == [not need_weights]


def test_dropout_is_that_of_the_weights_returned(taken):
    module = MultiheadAttention(E, H, dropout=0.5)
    x = torch.randn(Q, B, E)
    output, weights = module(x, x, x, average_attn_weights=False)
    v = torch.nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias)[..., 2 * E :]
    seen = weights @ v.view(Q, B, H, E // H).permute(1, 2, 0, 3)
    assert_close(output, module.out_proj(seen.permute(2, 0, 1, 3).flatten(2)))
    assert (weights == 0).any()
    assert taken == [True]


def test_what_doesnt_fit_goes_the_general_way(taken):
    module, x, y = MultiheadAttention(E, H), torch.randn(Q, B, E), torch.randn(K, B, E)
    module(x, y, y.clone())  # value is another tensor
    assert taken == []
    module(x.transpose(0, 1).contiguous().transpose(0, 1), y, y)  # the output is laid out as the query
    three = torch.zeros(B * H, Q, K)
    module(x, y, y, attn_mask=three)
    module(x, y, y, key_padding_mask=torch.zeros(B, K))
    long = torch.randn(100, B, E)
    module(long, long, long)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x, y, y)
    torch.vmap(lambda one: module(one, one, one)[0])(x[None])
    assert taken == [False] * 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_more_weights_at_once_are_the_general_way(taken, monkeypatch, mask, padded, average, dtype):
    module = MultiheadAttention(E, H, dtype=dtype).eval()
    q, k = torch.randn(Q, B, E, dtype=dtype), torch.randn(K, B, E, dtype=dtype)
    call = arguments(mask, padded, Q, K, dtype) | {"average_attn_weights": average}
    monkeypatch.setattr(choose, "SMALL_UP_TO_SCORES", 0)
    with torch.no_grad():
        found = module(q, k, k, **call)
        for name in ("SMALL_WEIGHTS_UP_TO_SCORES", "SMALL_WEIGHTS_IN_HALF_UP_TO_SCORES"):
            monkeypatch.setattr(choose, name, 0)
        expected = module(q, k, k, **call)
    assert taken == [True, False]
    close = dict(atol=1e-5, rtol=1e-4) if dtype == torch.float32 else dict(atol=2e-2, rtol=2e-2)
    assert_close(found, expected, **close)


def test_more_weights_at_once_are_for_inference_with_weights_and_mkl(taken, monkeypatch):
    module = MultiheadAttention(E, H)
    x = torch.randn(Q, B, E)
    monkeypatch.setattr(choose, "SMALL_UP_TO_SCORES", 0)
    module(x, x, x)
    with torch.no_grad():
        module(x, x, x, need_weights=False)
        module(x, x, x)
        monkeypatch.setattr(choose, "onednn_is_faster", lambda *args, **settings: True)
        module(x, x, x)
    assert taken == [False, False, True, False]


def test_more_weights_at_once_in_bfloat16_are_each_heads_own_without_amx(taken, monkeypatch):
    module = MultiheadAttention(E, H, dtype=torch.bfloat16)
    x = torch.randn(Q, B, E, dtype=torch.bfloat16)
    for name in ("SMALL_UP_TO_SCORES", "SMALL_WEIGHTS_UP_TO_SCORES"):
        monkeypatch.setattr(choose, name, 0)
    with torch.no_grad():
        for vectors in (True, False):
            monkeypatch.setattr(choose, "_bfloat16_in_vectors", lambda found=vectors: found)
            module(x, x, x, average_attn_weights=False)
            module(x, x, x)
    assert taken == [True, False, False, False]
