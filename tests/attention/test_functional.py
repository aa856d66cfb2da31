import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention import functional
from glassformer.attention.functional import multi_head_attention_forward
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.observe import observe_problem
from glassformer.errors import ArgumentError

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
E = H * D
KDIM, VDIM = 13, 17


def tensor(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def arguments(**changes: Any) -> dict[str, Any]:
    call: dict[str, Any] = {
        "query": tensor(Q, B, E),
        "key": tensor(K, B, E),
        "value": tensor(K, B, E),
        "embed_dim_to_check": E,
        "num_heads": H,
        "in_proj_weight": tensor(3 * E, E),
        "in_proj_bias": tensor(3 * E),
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": tensor(E, E),
        "out_proj_bias": tensor(E),
        "training": False,
    }
    return {**call, **changes}


def separate() -> dict[str, Any]:
    return {
        "key": tensor(K, B, KDIM),
        "value": tensor(K, B, VDIM),
        "in_proj_weight": None,
        "use_separate_proj_weight": True,
        "q_proj_weight": tensor(E, E),
        "k_proj_weight": tensor(E, KDIM),
        "v_proj_weight": tensor(E, VDIM),
    }


def test_signature_is_torchs():
    ours, theirs = (
        inspect.signature(f).parameters for f in (multi_head_attention_forward, F.multi_head_attention_forward)
    )
    assert [(name, p.default) for name, p in ours.items()] == [(name, p.default) for name, p in theirs.items()]


ADDED = {
    "one more key": {"bias_k": tensor(1, 1, E), "bias_v": tensor(1, 1, E)},
    "zero key": {"add_zero_attn": True},
}
ADDED["both"] = ADDED["one more key"] | ADDED["zero key"]
STATIC = {"static_k": tensor(B * H, K, D), "static_v": tensor(B * H, K, D)}
CALLS = {
    **{"packed": {}, "separate": separate(), "static": STATIC, "separate and static": {**separate(), **STATIC}},
    "separate without biases": {**separate(), "in_proj_bias": None, "out_proj_bias": None},
    **ADDED,
    "static keys": {"static_k": tensor(B * H, K, D)},
    "static values": {"static_v": tensor(B * H, K, D), "add_zero_attn": True},
    "static of another length": {"static_k": tensor(B * H, 4, D), "static_v": tensor(B * H, 4, D)},
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kind", CALLS)
def test_results_are_torchs(kind, masked, need_weights):
    call = arguments(**CALLS[kind], need_weights=need_weights, average_attn_weights=masked)
    if masked and "another length" not in kind:
        call["key_padding_mask"] = torch.arange(K).expand(B, K) > 4
        call["attn_mask"] = torch.arange(Q)[:, None] + 1 < torch.arange(K)
    expected, expected_weights = F.multi_head_attention_forward(**call)
    output, weights = multi_head_attention_forward(**call)
    assert_close(output, expected)
    assert (weights is None) == (not need_weights)
    if need_weights:
        assert_close(weights, expected_weights)


def test_static_keys_need_no_projection():
    call = arguments(**STATIC)
    output, _ = multi_head_attention_forward(**call)
    call["in_proj_weight"][E:] = torch.nan
    assert torch.equal(multi_head_attention_forward(**call)[0], output)


WRONG = {
    "bias cannot be added to static key": {**ADDED["one more key"], "static_k": STATIC["static_k"]},
    "bias cannot be added to static value": {**ADDED["one more key"], "static_v": STATIC["static_v"]},
    "bias_k is set but bias_v is None": {"bias_k": tensor(1, 1, E)},
    "bias_v is set but bias_k is None": {"bias_v": tensor(1, 1, E)},
    r"bias_k must be \(1, 1, embed_dim\) = \(1, 1, 33\), got \(3, 11\)": {
        **{"bias_k": tensor(H, D), "bias_v": tensor(1, 1, E)},
    },
    r"bias_v must be \(1, 1, embed_dim\) = \(1, 1, 33\), got \(1, 1, 11\)": {
        **{"bias_k": tensor(1, 1, E), "bias_v": tensor(1, 1, D)},
    },
    r"static_k must be .* = \(6, any, 11\), got \(5, 7, 11\)": {"static_k": tensor(5, K, D)},
    r"static_v must be .* = \(6, any, 11\), got \(6, 7, 10\)": {"static_v": tensor(B * H, K, 10)},
    **{
        f"{x}_proj_weight must be given with use_separate_proj_weight": {**separate(), f"{x}_proj_weight": None}
        for x in "qkv"
    },
    "in_proj_weight must be given unless": {"in_proj_weight": None},
    r"key and value must have one length and batch, got \(7, 2\) and \(6, 2\)": {"value": tensor(6, B, E)},
    r"query and key must have one batch size, got 2 and 3: .*batch_first": {
        "key": tensor(K, 3, E),
        "value": tensor(K, 3, E),
    },
    r"query must be embed_dim = 34 wide, got shape \(5, 2, 33\)": {"embed_dim_to_check": 34},
    r"embed_dim must be divisible by num_heads, got embed_dim 33, num_heads 4": {"num_heads": 4},
    r"key must be 33 wide, .* got shape \(7, 2, 13\): another width needs kdim": {
        "key": tensor(K, B, KDIM),
        "value": tensor(K, B, KDIM),
    },
    "is_causal needs attn_mask": {"is_causal": True},
    # torch's own words, which its tests look for
    "expected `key` and `value` to be 3-D but found 2-D and 3-D tensors respectively": {"key": tensor(K, E)},
    "expected `key_padding_mask` to be `None` or 2-D but found 1-D tensor instead": {
        "key_padding_mask": torch.zeros(K, dtype=torch.bool)
    },
    "expected `attn_mask` to be `None`, 2-D or 3-D but found 1-D tensor instead": {
        "attn_mask": torch.zeros(K, dtype=torch.bool)
    },
    "query should be unbatched 2D or batched 3D tensor but received 1-D query tensor": {"query": tensor(E)},
}
UNBATCHED = {
    "expected `key` and `value` to be 2-D but found 3-D and 2-D tensors respectively": {"key": tensor(K, B, E)},
    "expected `key_padding_mask` to be `None` or 1-D but found 2-D tensor instead": {
        "key_padding_mask": torch.zeros(1, K, dtype=torch.bool)
    },
    r"Expected `attn_mask` shape to be \(3, 5, 7\)": {"attn_mask": torch.zeros(4, Q, K, dtype=torch.bool)},
}


@pytest.mark.parametrize("message", [*WRONG, *UNBATCHED])
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_explained_with_torchs_exception(message):
    if message in WRONG:
        call = arguments(**WRONG[message])
    else:
        call = arguments(**{"query": tensor(Q, E), "key": tensor(K, E), "value": tensor(K, E), **UNBATCHED[message]})
    with pytest.raises((AssertionError, RuntimeError)) as theirs:
        F.multi_head_attention_forward(**call)
    with pytest.raises(ArgumentError, match=message) as ours:
        multi_head_attention_forward(**call)
    assert isinstance(ours.value, theirs.type)


@pytest.mark.parametrize("where", ["query", "in_proj_weight", "bias_k", "out_proj_bias"])
def test_torch_function_overrides_are_honoured(where):
    asked, answer = [], (torch.zeros(()), None)

    class Override(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append((func, len(args), kwargs["need_weights"]))
            return answer

    call = arguments(bias_k=tensor(1, 1, E), bias_v=tensor(1, 1, E), need_weights=False)
    call[where] = call[where].as_subclass(Override)
    assert multi_head_attention_forward(**call) is answer
    assert asked == [(multi_head_attention_forward, 13, False)]


def test_a_subclass_without_overrides_is_computed():
    plain = arguments()
    call = {**plain, "query": plain["query"].as_subclass(type("Plain", (Tensor,), {}))}
    output, _ = multi_head_attention_forward(**call)
    assert type(output).__name__ == "Plain"
    assert_close(output.as_subclass(Tensor), multi_head_attention_forward(**plain)[0])


# What torch does otherwise


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("k_len", [Q, K])
def test_added_keys_stay_visible_under_the_causal_hint(added, k_len):
    future = torch.ones(Q, k_len, dtype=torch.bool).triu(1)
    call = arguments(key=tensor(k_len, B, E), value=tensor(k_len, B, E), **ADDED[added])
    expected, _ = F.multi_head_attention_forward(**call, attn_mask=future)
    for need_weights in (True, False):
        output, _ = multi_head_attention_forward(**call, attn_mask=future, is_causal=True, need_weights=need_weights)
        assert_close(output, expected)


def test_the_causal_hint_alone_is_read():
    call = arguments(need_weights=False, attn_mask=torch.zeros(Q, K, dtype=torch.bool), is_causal=True)
    output, _ = multi_head_attention_forward(**call)
    assert_close(output, F.multi_head_attention_forward(**call)[0])
    open_to_all, _ = multi_head_attention_forward(**{**call, "is_causal": False})
    assert not torch.allclose(output, open_to_all)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("hint", ["right", "wrong"])
@pytest.mark.parametrize("average", [True, False])
def test_with_weights_the_causal_hint_counts_only_where_it_is_true(monkeypatch, average, hint, padded):
    """torch reads the mask itself there."""
    seen = []
    monkeypatch.setattr(functional, "observe_problem", lambda *a: seen.append(a[0]) or observe_problem(*a))
    theirs, length = torch.nn.MultiheadAttention(11 * 3, 3, dtype=torch.float64), 131
    x = torch.randn(length, 2, 33, dtype=torch.float64)
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    if hint == "wrong":
        mask[3, 7] = False
    padding = (torch.arange(length) >= 97).expand(2, length) if padded else None
    call = dict(attn_mask=mask, is_causal=True, key_padding_mask=padding, average_attn_weights=average)
    ours = MultiheadAttention(33, 3, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    assert_close(ours(x, x, x, **call), theirs(x, x, x, **call))
    assert [problem.causal for problem in seen] == [hint == "right" and average]
