import math

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.attend import attend
from glassformer.attention.multihead import MultiheadAttention

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
E = H * D


def pair(**settings) -> tuple[MultiheadAttention, nn.MultiheadAttention]:
    """Ours and torch's with one set of weights; biases too are drawn, so that losing one shows."""
    theirs = nn.MultiheadAttention(E, H, dtype=torch.float64, **settings)
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    ours = MultiheadAttention(E, H, dtype=torch.float64, **settings)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def sequences(*, batch_first: bool) -> list[Tensor]:
    shapes = [(B, n, E) if batch_first else (n, B, E) for n in (Q, K, K)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


MASKS = [(), ("padding",), ("all",), ("head",), ("padding", "all"), ("padding", "head")]


def torch_masks(kinds: tuple[str, ...]) -> dict[str, Tensor]:
    """Boolean, True = may not look; the first key is always open, since torch gives NaN where nothing is."""
    shapes = {"padding": (B, K), "all": (Q, K), "head": (B * H, Q, K)}
    masks = {}
    for kind in kinds:
        blocked = torch.rand(shapes[kind]) < 0.4
        blocked[..., 0] = False
        masks["key_padding_mask" if kind == "padding" else "attn_mask"] = blocked
    return masks


# A drop-in: names, shapes, first values


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_torchs_bit_for_bit_from_the_same_seed(bias):
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(E, H, bias=bias)
    drawn_next = torch.rand(3)
    torch.manual_seed(5)
    ours = MultiheadAttention(E, H, bias=bias)
    assert torch.equal(torch.rand(3), drawn_next)  # what is made after it is the same as well
    expected = dict(theirs.named_parameters())
    found = dict(ours.named_parameters())
    assert list(found) == list(expected)
    for name, parameter in found.items():
        assert torch.equal(parameter, expected[name]), name


@pytest.mark.parametrize("bias", [True, False])
def test_state_dict_loads_both_ways(bias):
    ours, theirs = MultiheadAttention(E, H, bias=bias), nn.MultiheadAttention(E, H, bias=bias)
    assert not torch.equal(ours.in_proj_weight, theirs.in_proj_weight)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(ours.in_proj_weight, theirs.in_proj_weight)
    again = nn.MultiheadAttention(E, H, bias=bias)
    ours.load_state_dict(again.state_dict(), strict=True)
    assert torch.equal(ours.out_proj.weight, again.out_proj.weight)


def test_dtype_and_device_reach_every_parameter():
    module = MultiheadAttention(E, H, dtype=torch.bfloat16, device="meta")
    assert {(p.dtype, p.device.type) for p in module.parameters()} == {(torch.bfloat16, "meta")}


# Results


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", MASKS, ids=" and ".join)
def test_output_and_weights_are_torchs(masks, batch_first, grad):
    ours, theirs = pair(batch_first=batch_first)
    query, key, value = sequences(batch_first=batch_first)
    given = torch_masks(masks)
    with torch.set_grad_enabled(grad):
        for average in (True, False):
            output, weights = ours(query, key, value, average_attn_weights=average, **given)
            expected, expected_weights = theirs(query, key, value, average_attn_weights=average, **given)
            assert_close(output, expected)
            assert_close(weights, expected_weights)
            assert weights.shape == ((B, Q, K) if average else (B, H, Q, K))
        output, weights = ours(query, key, value, need_weights=False, **given)
        assert weights is None
        assert_close(output, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_output_without_bias_is_torchs(need_weights):
    ours, theirs = pair(bias=False, batch_first=True)
    query, key, value = sequences(batch_first=True)
    assert_close(ours(query, key, value, need_weights=need_weights)[0], theirs(query, key, value)[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_is_torchs_causal_mask(need_weights):
    ours, theirs = pair(batch_first=True)
    x = torch.randn(B, K, E, dtype=torch.float64)
    future = torch.ones(K, K, dtype=torch.bool).triu(1)
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[1, -2:] = True
    expected, expected_weights = theirs(x, x, x, key_padding_mask=padding, attn_mask=future)
    output, weights = ours(
        x, x, x, key_padding_mask=padding, attn_mask=future, is_causal=True, need_weights=need_weights
    )
    assert_close(output, expected)
    if need_weights:
        assert_close(weights, expected_weights)


def test_gradients_are_torchs():
    ours, theirs = pair(batch_first=True)
    query, key, value = sequences(batch_first=True)
    masks = torch_masks(("padding", "head"))
    towards = torch.randn(B, Q, E, dtype=torch.float64)
    ours(query, key, value, need_weights=False, **masks)[0].backward(towards)
    theirs(query, key, value, need_weights=False, **masks)[0].backward(towards)
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, expected[name].grad)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_query_with_nothing_to_see_gets_the_output_bias_alone(need_weights, training):
    ours, _ = pair(batch_first=True, dropout=0.5)
    ours.train(training)
    query, key, value = (x.requires_grad_() for x in sequences(batch_first=True))
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[1] = True
    output, weights = ours(query, key, value, key_padding_mask=padding, need_weights=need_weights)
    assert torch.equal(output[1], ours.out_proj.bias.expand(Q, E))
    if need_weights:
        assert (weights[1] == 0).all()
        assert weights[0].any()
    output.sum().backward()
    for x in (query, key, value):
        assert x.grad[0].any()
        assert (x.grad[1] == 0).all()
        assert x.grad.isfinite().all()


# Parts


@pytest.mark.parametrize("bias", [True, False])
def test_parts_agree_with_each_other_and_with_the_whole(bias):
    ours, _ = pair(batch_first=True, bias=bias)
    x = torch.randn(B, K, E, dtype=torch.float64)
    q, k, v = ours.project(x)
    assert q.shape == k.shape == v.shape == (B, H, K, D)
    assert_close(ours.project_query(x), q)
    memory_k, memory_v = ours.project_memory(x)
    assert_close(memory_k, k)
    assert_close(memory_v, v)
    assert_close(ours.look(q, k, v), ours(x, x, x)[0])
    future = torch.ones(K, K, dtype=torch.bool).triu(1)
    assert_close(ours.look(q, k, v, causal=True), ours(x, x, x, attn_mask=future)[0])


def test_head_h_is_the_h_th_slice_of_the_width():
    ours, _ = pair(batch_first=True)
    x = torch.randn(B, K, E, dtype=torch.float64)
    parts = ours.project(x)
    for part, projected in enumerate(parts):
        for h in range(H):
            rows = slice(part * E + h * D, part * E + (h + 1) * D)
            assert_close(projected[:, h], x @ ours.in_proj_weight[rows].T + ours.in_proj_bias[rows])
    merged = torch.cat([attend(*parts)[:, h] for h in range(H)], dim=-1)
    assert_close(ours.look(*parts), ours.out_proj(merged))


# Dropout


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_acts_in_training_only(need_weights):
    ours, _ = pair(batch_first=True, dropout=0.5)
    x = torch.randn(B, K, E, dtype=torch.float64)
    plain, _ = pair(batch_first=True)
    plain.load_state_dict(ours.state_dict())

    def run(module: MultiheadAttention) -> Tensor:
        return module(x, x, x, need_weights=need_weights)[0]

    ours.train()
    assert not torch.equal(run(ours), run(ours))
    torch.manual_seed(7)
    first = run(ours)
    torch.manual_seed(7)
    assert torch.equal(run(ours), first)
    ours.eval()
    assert torch.equal(run(ours), run(ours))
    assert_close(run(ours), run(plain))
    ours.train()
    ours.dropout = 0.0
    assert_close(run(ours), run(plain))


def test_dropout_zeroes_weights_at_its_rate_and_scales_the_rest():
    ours, _ = pair(batch_first=True, dropout=0.3)
    x = torch.randn(B, 101, E, dtype=torch.float64)
    _, dropped = ours(x, x, x, average_attn_weights=False)
    _, weights = ours.eval()(x, x, x, average_attn_weights=False)
    zero = dropped == 0
    assert abs(zero.double().mean().item() - 0.3) < 5 * math.sqrt(0.3 * 0.7 / zero.numel())
    assert_close(dropped[~zero], (weights / 0.7)[~zero])


# Errors


@pytest.mark.parametrize(("width", "heads"), [(32, 3), (0, 3), (33, 0), (33, -3)])
def test_width_must_be_a_positive_multiple_of_heads(width, heads):
    message = f"embed_dim must be a positive multiple of num_heads, got embed_dim {width}, num_heads {heads}"
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(width, heads)


def test_wrong_masks_are_explained(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # our own checks, not the test suite's
    module = MultiheadAttention(E, H, batch_first=True)
    query, key, value = (x.float() for x in sequences(batch_first=True))
    with pytest.raises(ValueError, match=r"key_padding_mask must be .* = \(2, 7\), got \(7, 2\): it looks transposed"):
        module(query, key, value, key_padding_mask=torch.zeros(K, B, dtype=torch.bool))
    with pytest.raises(
        ValueError, match=r"attn_mask must be .* = \(5, 7\) or .* = \(6, 5, 7\), got \(7, 5\): .* pass attn_mask\.mT"
    ):
        module(query, key, value, attn_mask=torch.zeros(K, Q))
