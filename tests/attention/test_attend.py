import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention import attend as attend_module
from glassformer.attention.attend import attend, attend_from_start, attend_fused, small_self_attention
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.weigh import weigh
from glassformer.attention.observe import observe
from glassformer.errors import ArgumentError

B, H, Q, K, D, V = 2, 3, 5, 7, 11, 13  # distinct primes: a swapped axis cannot pass

TOLERANCE = {
    torch.float64: dict(rtol=1e-12, atol=1e-12),
    torch.float32: dict(rtol=1e-5, atol=1e-6),
    torch.float16: dict(rtol=4e-3, atol=4e-3),
    torch.bfloat16: dict(rtol=3e-2, atol=3e-2),
}
DTYPES = list(TOLERANCE)


def heads(q_len: int = Q, k_len: int = K, dtype: torch.dtype = torch.float64, d_value: int = D) -> list[Tensor]:
    shapes = [(q_len, D), (k_len, D), (k_len, d_value)]
    return [torch.randn(B, H, *shape, dtype=torch.float64).to(dtype) for shape in shapes]


def past(q_len: int, k_len: int) -> Tensor:
    """Query i of the last q_len positions sits at position i + k_len - q_len."""
    return torch.tensor([[key <= query + k_len - q_len for key in range(k_len)] for query in range(q_len)])


def explicit(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """The definition, in float64: weights are e^score over the allowed keys, divided by their sum; else zero."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) / math.sqrt(q.shape[-1]) + bias
    exponentials = scores.exp() * allowed
    total = exponentials.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bhqd", exponentials / total.where(total > 0, 1.0), v.double())


KERNELS = {
    "fused": (F, "scaled_dot_product_attention"),
    "products": (attend_module, "weigh"),
    "short": (attend_module, "attend_short"),
}


@contextmanager
def forced(path: str) -> Iterator[pytest.MonkeyPatch]:
    """Attend takes this path whatever the sizes."""
    with pytest.MonkeyPatch.context() as patch:
        taken = taken_paths(patch)
        patch.setattr(choose, "short_is_faster", lambda q, k, v: path == "short")
        patch.setattr(choose, "products_are_faster", lambda q, k: path == "products")
        yield patch
        assert taken == {path}


def taken_paths(patch: pytest.MonkeyPatch) -> set[str]:
    """Fills with the paths that attend takes from now on."""
    taken: set[str] = set()
    for path, (place, name) in KERNELS.items():
        patch.setattr(place, name, noting(taken, path, getattr(place, name)))
    return taken


def noting(taken: set[str], path: str, kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: taken.add(path) or kernel(*args, **kwargs)


# Values


def test_hand_computed_weights_and_output():
    # Scores (2 ln 3) * 1 / sqrt(4) = ln 3 and 0: weights 3/4 and 1/4, output 3/4 * (8, 0) + 1/4 * (0, 4).
    q = torch.tensor([2 * math.log(3), 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
    k = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 5.0, 5.0, 5.0]]).view(1, 1, 2, 4)
    v = torch.tensor([[8.0, 0.0], [0.0, 4.0]]).view(1, 1, 2, 2)
    assert_close(weigh(q, k), torch.tensor([[[[0.75, 0.25]]]]))
    assert_close(attend(q, k, v), torch.tensor([[[[6.0, 1.0]]]]))


@pytest.mark.parametrize("path", KERNELS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_call_is_the_definition_with_its_gradients(path, data):
    k_len, causal, dtype = data.draw(st.integers(1, 8)), data.draw(st.booleans()), data.draw(st.sampled_from(DTYPES))
    q_len = data.draw(st.integers(1, k_len if causal else 8) | st.just(k_len))
    shapes = [[data.draw(st.sampled_from((1, size))) for size in (B, H, q_len)] for _ in range(2)]
    share = data.draw(st.sampled_from((0.0, 0.5, 0.9)))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    inputs = heads(q_len, k_len, dtype, data.draw(st.sampled_from((D, V))))
    if data.draw(st.booleans()):  # as projections leave them
        inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    masks: dict[str, Any] = {"causal": causal}
    allowed, added = past(q_len, k_len) if causal else torch.ones(q_len, k_len, dtype=torch.bool), torch.zeros(1)
    if data.draw(st.booleans()):
        masks["keep"] = (torch.rand(*shapes[0], 2 * k_len) < share)[..., ::2]
        allowed = allowed & masks["keep"]
    if path != "short" and dtype.itemsize > 2 and data.draw(st.booleans()):  # the short form takes no bias
        added = torch.randn(*shapes[1], k_len).to(dtype)
        open_to_all = torch.rand(added.shape) < data.draw(st.sampled_from((0.7, 1.0)))
        masks["bias"] = added.masked_fill(~open_to_all, -torch.inf)
        allowed = allowed & open_to_all
    with forced(path) as patch:
        patch.setattr(choose, "COPIES_FROM_SCORES", data.draw(st.sampled_from((0, 10**9))))
        output = attend(*(x.requires_grad_() for x in inputs), **masks)
    exact = explicit(*inputs, allowed, added.double())
    assert output.dtype == dtype
    assert_close(output.double(), exact, **TOLERANCE[dtype])
    assert not output[~allowed.any(-1).expand(B, H, q_len)].any()
    if dtype == torch.float64:
        towards = torch.randn_like(exact)
        assert_close(torch.autograd.grad(output, inputs, towards), torch.autograd.grad(exact, inputs, towards))


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (
            *((B, H, Q, D), (1, H, K, D), (1, H, K, V)),
            r"of one batch, got \(2, 3, 5, 11\), \(1, 3, 7, 11\) and \(1, 3, 7,",
        ),
        ((B, H, Q, D), (B, 1, K, D), (B, 1, K, V), r"must have the same heads, got 3 and 1: .* call observe\(\), or"),
        ((B, H, Q, D), (B, H, K, D), (B, H, K + 2, V), "of one batch, got"),
        ((B, H, Q, D), (B, H, K, D), (B, 1, K, V), "of one batch, got"),
        ((B, H, Q, D), (B, H, K, D + 2), (B, H, K, V), "of one batch, got"),
        ((H, Q, D), (H, K, D), (H, K, V), r"must be \(batch, heads, q_len, d_head\), .*: of one entry or head, pass"),
    ],
)
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_belong_together_are_explained(q, k, v, message, learns):
    with pytest.raises(ArgumentError, match=message):
        attend(*(torch.randn(shape, requires_grad=learns) for shape in (q, k, v)))


FLOAT, DOUBLE = torch.float32, torch.float64


@pytest.mark.parametrize("q_len", [1, Q])
@pytest.mark.parametrize(
    "dtypes", [(FLOAT, DOUBLE, FLOAT), (FLOAT, FLOAT, DOUBLE), (DOUBLE, FLOAT, FLOAT), (torch.int64,) * 3]
)
@pytest.mark.usefixtures("unchecked")
def test_dtypes_that_do_not_belong_together_are_explained(dtypes, q_len):
    inputs = [x.to(dtype) for x, dtype in zip(heads(q_len), dtypes, strict=True)]
    message = "q, k and v must have one floating-point dtype, got {}, {} and {}: pass ".format(*dtypes)
    for cast in (False, True):
        with pytest.raises(ArgumentError) as error, torch.autocast("cpu", torch.bfloat16, enabled=cast):
            attend(*inputs)
        assert str(error.value).startswith(message)


def test_autocast_gives_inputs_one_dtype():
    q, k, v = heads()
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(q.float(), k.bfloat16(), v.float())
    assert found.dtype == torch.bfloat16
    exact = explicit(q, k, v, torch.ones(Q, K))
    assert_close(found.double(), exact, **TOLERANCE[torch.bfloat16])


def test_under_autocast_short_attention_with_gradients_has_its_dtype():
    inputs = [x.requires_grad_() for x in heads(K, K, FLOAT)]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = attend(*inputs), F.scaled_dot_product_attention(*inputs)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert_close(found, expected, **TOLERANCE[torch.bfloat16])
    towards = torch.randn_like(found)
    grads = (torch.autograd.grad(output, inputs, towards) for output in (found, expected))
    for ours, theirs in zip(*grads, strict=True):
        assert ours.dtype == theirs.dtype == FLOAT
        assert_close(ours, theirs, **TOLERANCE[torch.bfloat16])


def test_under_autocast_long_attention_with_dropout_has_its_dtype():
    q, k, v = heads(300, 300, FLOAT)
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(q, k, v, dropout=0.1).dtype == torch.bfloat16


# torch's fused kernel misreads float32 beside float64, from 8 keys on.
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [7, 8, 9, 64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_bias", DTYPES)
def test_a_bias_of_any_dtype_is_added_as_it_is(dtype, of_bias, length, causal):
    inputs = [x.requires_grad_() for x in heads(length, length, dtype)]
    bias = torch.randn(1, H, length, length, dtype=torch.float64).to(of_bias)
    allowed = past(length, length) if causal else torch.ones(length, length)
    exact = explicit(*inputs, allowed, bias.to(torch.promote_types(dtype, torch.float32)).double())
    found = attend(*inputs, bias=bias, causal=causal)
    assert_close(found.double(), exact, **TOLERANCE[dtype])
    towards = torch.randn_like(found)
    expected = torch.autograd.grad(exact, inputs, towards.double())
    grads = torch.autograd.grad(found, inputs, towards)
    for grad, of_exact in zip(grads, expected, strict=True):
        assert (grad - of_exact).norm() <= 2 * TOLERANCE[dtype]["rtol"] * of_exact.norm()


@pytest.mark.parametrize("dropout", [-0.1, 1.5, math.nan])
def test_dropout_must_be_a_probability(dropout):
    with pytest.raises(ArgumentError, match=f"dropout must be a probability, 0 to 1, got {dropout}"):
        attend(*heads(), dropout=dropout)


def test_causal_refuses_more_queries_than_keys():
    q, k, v = heads(K, Q)
    with pytest.raises(ValueError, match=r"needs q_len <= k_len .*, got q_len 7 and k_len 5"):
        attend(q, k, v, causal=True)


WRONG = {
    r"keep must be a tensor, got \[\[True, True\]\]: ": {"keep": [[True, True]]},
    r"bias must be a tensor, got 0.5: ": {"bias": 0.5},
    r"keep must be boolean \(True = may look\), got torch.float32: .*scores as bias=": {
        "keep": torch.zeros(B, 1, 1, K)
    },
    r"bias must be floating-point .* got torch.bool: .* as keep=": {"bias": torch.ones(B, 1, 1, K, dtype=torch.bool)},
    r"keep must broadcast to .* = \(2, 3, 5, 7\), got \(1, 1, 7, 5\): it looks transposed, pass keep.mT": {
        "keep": torch.ones(1, 1, K, Q, dtype=torch.bool)
    },
    r"got \(5, 7\): pass keep\[None, None\]": {"keep": torch.ones(Q, K, dtype=torch.bool)},
    r"got \(2, 7\): pass keep\[:, None, None, :\]": {"keep": torch.ones(B, K, dtype=torch.bool)},
    r"bias must broadcast to .*, got \(1, 1, 5, 6\)$": {"bias": torch.zeros(1, 1, Q, K - 1)},
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.parametrize("function", [attend, observe])
@pytest.mark.usefixtures("unchecked")
def test_wrong_masks_are_explained(function, message):
    with pytest.raises(ValueError, match=message):
        function(*heads(dtype=torch.float32), **WRONG[message])


@pytest.mark.parametrize("function", [attend, observe])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_tensor_is_named(function, name):
    given = dict(zip("qkv", heads(dtype=torch.float32), strict=True))
    given[name] = given[name].numpy()
    with pytest.raises(ArgumentError, match=rf"^{name} must be a tensor, got ndarray of float32 \("):
        function(**given)


# Queries that may look nowhere, and dropout


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("path", "dropout"), [*((path, 0.0) for path in KERNELS), ("fused", 0.4), ("products", 0.4)])
def test_query_with_nothing_to_see_is_zero_and_no_nan_on_the_way(path, dropout, dtype):
    # Anomaly detection, which people turn on to find their own NaN, must not stop at ours.
    q, k, v = (x.requires_grad_() for x in heads(dtype=dtype))
    keep = torch.tensor([True, False])[:, None, None, None].expand(B, 1, 1, K)
    with forced(path), torch.autograd.set_detect_anomaly(True):
        output = attend(q, k, v, keep=keep, dropout=dropout)
        output.sum().backward()
    assert (output[1] == 0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", KERNELS)
def test_blocked_values_have_no_influence_however_large(path, dtype):
    q, k, v = heads(dtype=dtype)
    keep = torch.ones(B, 1, 1, K, dtype=torch.bool)
    keep[..., -1] = False
    with forced(path):
        expected = attend(q, k, v, keep=keep)
        k[:, :, -1], v[:, :, -1] = 100.0, 1000.0
        assert_close(attend(q, k, v, keep=keep), expected, rtol=0, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("path", ["fused", "products"])
def test_dropout_zeroes_weights_at_its_rate_and_scales_the_rest(path, causal, p):
    # With the identity as values the output is the weights.
    n = 101
    q, k = torch.randn(2, B, H, n, D)
    identity = torch.eye(n).expand(B, H, n, n)
    allowed = past(n, n) if causal else torch.ones(n, n, dtype=torch.bool)
    weights = weigh(q, k, keep=allowed[None, None])
    with forced(path):
        dropped = attend(q, k, identity, causal=causal, dropout=p)
    zero = (dropped == 0)[:, :, allowed]
    sigma = math.sqrt(p * (1 - p) / zero.numel())
    assert abs(zero.float().mean().item() - p) < 5 * sigma
    assert_close(dropped, torch.where(dropped != 0, weights / (1 - p), 0.0))


# Which path


@pytest.mark.parametrize(
    ("q_len", "k_len", "dtype", "grad", "expected"),
    [
        (Q, K, torch.float32, False, "fused"),
        (Q, K, torch.bfloat16, False, "fused"),
        (Q, K, torch.float64, True, "short"),
        (Q, K, torch.float32, True, "short"),
        (Q, K, torch.bfloat16, True, "short"),
        (Q, K, torch.float16, True, "short"),
        (1, K, torch.float32, True, "short"),
        (1, K, torch.float32, False, "products"),
        (1, K, torch.bfloat16, False, "products"),
        (1, 128 * 128 + 1, torch.float32, False, "fused"),
        (17, 23, torch.float32, True, "short"),
        (19, 23, torch.float32, True, "fused"),
        (127, 113, torch.bfloat16, True, "short"),
        (131, 127, torch.bfloat16, True, "fused"),
    ],
    ids=str,
)
def test_short_training_and_single_queries_have_their_own_path(monkeypatch, q_len, k_len, dtype, grad, expected):
    taken = taken_paths(monkeypatch)
    monkeypatch.setattr(choose, "half_blocks_are_faster", lambda q, k, v: False)
    q, k, v = (x.requires_grad_(grad) for x in heads(q_len, k_len, dtype))
    output = attend(q, k, v)
    assert taken == {expected}
    assert_close(output.double(), explicit(q, k, v, torch.ones(k_len, dtype=torch.bool)), **TOLERANCE[dtype])


@pytest.mark.parametrize("needing", range(3), ids=["queries", "keys", "values"])
def test_one_input_that_needs_a_gradient_makes_it_training(monkeypatch, needing):
    taken = taken_paths(monkeypatch)
    inputs = heads()
    inputs[needing].requires_grad_()
    with torch.no_grad():
        attend(*inputs)
    assert taken == {"fused"}
    attend(*inputs)
    assert taken == {"short", "fused"}


@pytest.mark.parametrize("given", [{"dropout": 0.5}, {"bias": torch.zeros(1, 1, 1, K, dtype=torch.float64)}], ids=str)
def test_dropout_and_bias_are_not_for_the_short_path(monkeypatch, given):
    taken = taken_paths(monkeypatch)
    attend(*(x.requires_grad_() for x in heads()), **given)
    assert taken == {"fused"}


# A step of generation


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("q_len", [1, Q])
@pytest.mark.parametrize("shape", [None, (B, 1, 1), (B, 1, None), (1, H, None)], ids=str)
def test_a_step_is_attend_where_every_query_sees_something(shape, q_len, dtype):
    q, k, v = heads(q_len, dtype=dtype, d_value=V)
    bias, allowed = None, torch.ones(K, dtype=torch.bool)
    if shape is not None:
        allowed = torch.rand(*(q_len if size is None else size for size in shape), K) < 0.5
        allowed[..., 0] = True
        bias = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -torch.inf)
    with torch.inference_mode():
        found = attend_fused(q, k, v, bias)
    assert found.dtype == dtype
    assert_close(found.double(), explicit(q, k, v, allowed.expand(B, H, q_len, K)), **TOLERANCE[dtype])


def test_a_step_takes_keys_and_values_out_of_more_room():
    q, _, _ = heads()
    slots = torch.randn(2, B, H, 2 * K, D, dtype=torch.float64)
    keys, values = slots.narrow(3, 0, K).unbind(0)
    everything = torch.ones(K, dtype=torch.bool)
    assert_close(attend_fused(q, keys, values), explicit(q, keys, values, everything))


# Small inputs in one call


def projections() -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape) for shape in ((3 * 12, 12), (3 * 12,), (12, 12), (12,)))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_one_call_is_its_parts(padded, need_weights):
    x, parts = torch.randn(B, K, 12), projections()
    padding = torch.arange(K).expand(B, K) > 4 if padded else None
    with torch.no_grad():
        found = small_self_attention(
            x, H, parts, padding, None, is_causal=False, need_weights=need_weights, average=False
        )
    assert found is not None
    q, k, v = F.linear(x, *parts[:2]).view(B, K, 3, H, 4).permute(2, 0, 3, 1, 4)
    weights = weigh(q, k, keep=None if padding is None else ~padding[:, None, None])
    assert_close(found[0], F.linear((weights @ v).transpose(1, 2).flatten(2), *parts[2:]), atol=1e-4, rtol=1e-4)
    if need_weights:
        assert_close(found[1], weights, atol=1e-5, rtol=1e-4)
    else:
        assert found[1] is None


@torch.no_grad()
def test_one_call_is_for_what_it_does_right(monkeypatch):
    def taken(x: Tensor, padding: Tensor | None = None) -> bool:
        return (
            small_self_attention(x, H, projections(), padding, None, is_causal=False, need_weights=True, average=True)
            is not None
        )

    x = torch.randn(B, K, 12)
    assert taken(x)
    assert not taken(x.double())  # of another dtype than the weights
    assert not taken(x, torch.ones(B, K, dtype=torch.bool))  # it would give NaN
    assert not taken(x, torch.zeros(B, K))
    assert not taken(x, torch.zeros(B, Q, dtype=torch.bool))
    assert not taken(torch.randn(B, 600, 12))
    assert taken(torch.randn(B, 80, 12))
    assert not taken(torch.randn(B, 80, 12), torch.zeros(B, 80, dtype=torch.bool))  # a mask doubles its time
    assert not taken(torch.randn(B, 0, 12))
    with torch.autocast("cpu"):
        assert not taken(x)
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    assert not taken(x)


# Forms that are faster on some processors


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_bfloat16_goes_through_blocks_where_they_are_faster(monkeypatch, dropout):
    taken = taken_paths(monkeypatch)
    monkeypatch.setattr(attend_module, "attend_in_blocks", noting(taken, "blocks", attend_module.attend_in_blocks))
    monkeypatch.setattr(choose, "_bfloat16_in_vectors", lambda: True)
    q, k, v = heads(127, 113, torch.bfloat16)
    attend(q, k, v, dropout=dropout)
    assert taken == {"blocks"}
    taken.clear()
    monkeypatch.setattr(choose, "_bfloat16_in_vectors", lambda: False)
    attend(q, k, v)
    assert taken == {"fused"}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Lets compiled functions take all sizes; fills with the paths that attend takes."""
    if not choose.compiler_is_there():
        pytest.skip("numba isn't installed, or there is no FMA here")
    from glassformer.attention.kernels.compiled import attend as compiled_attend

    for name in ("COMPILED_ATTENTION_FROM_SCORES", "COMPILED_ATTENTION_FROM_LENGTH", "COMPILED_FROM_SCORES"):
        monkeypatch.setattr(choose, name, 0)
    monkeypatch.setattr(choose, "short_is_faster", lambda q, k, v: False)
    taken = taken_paths(monkeypatch)
    kernel = noting(taken, "compiled", compiled_attend.attend_compiled)
    monkeypatch.setattr(compiled_attend, "attend_compiled", kernel)
    return taken


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.sampled_from([(5, 7), (97, 113), (113, 113), (113, 97), (301, 331), (7, 601)]),
    kind=st.sampled_from(["open", "padding", "each"]),
    causal=st.booleans(),
    threads=st.sampled_from([1, 2, 5]),
    d_value=st.sampled_from((D, V)),
    seed=st.integers(0, 1000),
)
def test_compiled_attention_is_the_definition_with_its_gradients(
    compiled, lengths, kind, causal, threads, d_value, seed
):
    q_len, k_len = lengths
    causal = causal and q_len <= k_len
    torch.manual_seed(seed)
    inputs = [x.requires_grad_() for x in heads(q_len, k_len, torch.float32, d_value)]
    keep = None
    if kind == "padding":
        keep = torch.stack([torch.arange(k_len) >= 3, torch.arange(k_len) < 4])[:, None, None]
    elif kind == "each":
        keep = torch.rand(B, 1, q_len, k_len) < 0.3
        keep[1, 0, 2] = False
    allowed = past(q_len, k_len) if causal else torch.ones(q_len, k_len, dtype=torch.bool)
    allowed = allowed if keep is None else allowed & keep
    compiled.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "compiled_threads", lambda: (threads, 4 * threads))
        output = attend(*inputs, keep=keep, causal=causal)
        exact = explicit(*inputs, allowed)
        towards = torch.randn_like(output)
        found = torch.autograd.grad(output, inputs, towards)
    assert compiled == {"compiled"}
    assert_close(output.double(), exact, rtol=1e-5, atol=1e-5)
    assert not output[~allowed.any(-1).expand(B, H, q_len)].any()
    expected = torch.autograd.grad(exact, inputs, towards.double())
    assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_compiled_attention_gives_the_same_bits_with_any_number_of_threads(compiled, monkeypatch, causal):
    inputs = [x.requires_grad_() for x in heads(301, 331, torch.float32)]
    keep = torch.rand(B, 1, 301, 331) < 0.5
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(choose, "compiled_threads", lambda n=threads: (n, 4 * n if n > 1 else 1))
        output = attend(*inputs, keep=keep, causal=causal)
        results.append([output.detach(), *torch.autograd.grad(output.square().sum(), inputs)])
    assert compiled == {"compiled"}
    for other in results[1:]:
        assert_close(other, results[0], rtol=0, atol=0)


@pytest.mark.parametrize("q_len", [61, 97])
def test_compiled_attention_from_the_start_needs_no_mask(compiled, monkeypatch, q_len):
    monkeypatch.setattr(choose, "PARTS_FROM_KEYS", 0)
    q, k, v = heads(q_len, 67, torch.float32)
    keep = torch.ones(q_len, 67, dtype=torch.bool).tril()[None, None]
    found = attend_from_start(q, k, v, keep, 0.0)
    assert compiled == {"compiled"}
    assert_close(found.double(), explicit(q, k, v, keep), **TOLERANCE[torch.float32])


def test_compiled_attention_is_for_long_float32_without_dropout_and_bias(compiled, monkeypatch):
    q, k, v = heads(97, 113, torch.float32)

    def path(*tensors: Tensor, **given: Any) -> set[str]:
        compiled.clear()
        attend(*tensors, **given)
        return set(compiled)

    assert path(q, k, v) == {"compiled"}
    assert path(q.double(), k.double(), v.double()) == {"fused"}
    assert path(q, k, v, bias=torch.zeros(1, 1, 1, 113)) == {"fused"}
    with torch.autocast("cpu"):  # which makes them bfloat16, for the fused kernel or for blocks
        assert "compiled" not in path(q, k, v)
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 10**9)
    assert path(q, k, v, dropout=0.5) == {"fused"}
    monkeypatch.setattr(choose, "COMPILED_ATTENTION_FROM_LENGTH", 98)
    assert path(q, k, v) == {"fused"}
    monkeypatch.setattr(choose, "COMPILED_ATTENTION_FROM_LENGTH", 97)
    assert path(q, k, v) == {"compiled"}
    monkeypatch.setattr(choose, "COMPILED_ATTENTION_FROM_SCORES", B * H * 97 * 113 + 1)
    assert path(q, k, v) == {"fused"}
    monkeypatch.setattr(choose, "COMPILED_ATTENTION_FROM_SCORES", 0)
    monkeypatch.setattr(choose, "compiler_is_there", lambda: False)
    assert path(q, k, v) == {"fused"}


@pytest.mark.parametrize("inside", [slice(0, 5), slice(2, 7), slice(3, 4)], ids=str)
@pytest.mark.parametrize("hole", [True, False])
def test_keys_that_are_padding_for_all_are_left_out(inside, hole):
    q, k, v = (x.requires_grad_() for x in heads(Q, K, torch.float64))
    keep = torch.zeros(B, 1, 1, K, dtype=torch.bool)
    keep[..., inside] = True
    keep[1, ..., inside.start] &= not hole  # in the middle of what others see, or all that this entry sees
    expected = explicit(q, k, v, keep)
    found = attend(q, k, v, keep=keep)
    assert_close(found, expected)
    towards = torch.randn_like(expected)
    assert_close(*(torch.autograd.grad(x, (q, k, v), towards) for x in (found, expected)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("q_len", "k_len"), [(5, 7), (7, 5), (7, 7), (131, 97), (97, 131)])
@pytest.mark.parametrize("parts_from", [0, 256])
def test_causal_attention_from_the_start_needs_no_mask(monkeypatch, q_len, k_len, dtype, parts_from):
    q, k, v = heads(q_len, k_len, dtype)
    keep = torch.ones(q_len, k_len, dtype=torch.bool).tril()[None, None]
    monkeypatch.setattr(choose, "PARTS_FROM_KEYS", parts_from)
    assert_close(attend_from_start(q, k, v, keep, 0.0).double(), explicit(q, k, v, keep), **TOLERANCE[dtype])


@pytest.mark.parametrize("parts_from", [0, 256])
def test_dropout_in_causal_attention_from_the_start_blocks_what_comes_later(monkeypatch, parts_from):
    monkeypatch.setattr(choose, "PARTS_FROM_KEYS", parts_from)
    keep = torch.ones(131, 97, dtype=torch.bool).tril()[None, None]
    q, k, _ = heads(131, 97, torch.float64)
    v = torch.zeros(B, H, 97, 97, dtype=torch.float64) + torch.eye(97, dtype=torch.float64)
    weights = attend_from_start(q, k, v, keep, 0.5)  # of these values
    assert not weights.masked_select(~keep).any()
    dropped = (weights.masked_select(keep) == 0).double().mean()
    assert 0.4 < dropped < 0.6
    expected = 2 * weigh(q, k, keep=keep)
    assert_close(weights.where(weights == 0, expected), weights)


@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_bias_may_have_another_type(q_len, dtype):
    torch.manual_seed(2)
    q, k, v = torch.randn(1, 2, q_len, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    bias = torch.randn(1, 1, q_len, 3).to(dtype)
    assert_close(attend(q, k, v, bias=bias), attend(q, k, v, bias=bias.float()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize("length", [19, 1021])  # short, and where half precision may be computed in blocks
def test_a_float32_bias_tells_keys_apart_that_the_dtype_of_q_does_not(length, dropout, dtype):
    q, k, v = heads(length, length, dtype)
    positions = torch.arange(length)
    bias = -100.0 - 0.1 * (positions[:, None] - positions).abs()[None, None]
    bias[..., 0, :] = torch.finfo(torch.float32).min  # finite: the query looks everywhere
    far = bias.double().masked_fill(bias < -1e30, 0.0)
    expected = explicit(q, k, v, torch.ones(length, length, dtype=torch.bool), far)
    expected[:, :, 0] = v.double().mean(2)
    found = attend(q, k, v, bias=bias, dropout=dropout)
    assert found.dtype == dtype
    assert_close(found.double(), expected, **TOLERANCE[dtype])
