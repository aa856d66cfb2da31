import math
import os
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.kernels import choose
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe, observe_weights
from glassformer.attention.want import NOTHING, SUMMARY, Want
from glassformer.errors import ArgumentError

B, H, Q, K, D, V = 2, 3, 11, 13, 5, 7  # distinct primes: a swapped axis cannot pass
CASES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 200

FLAGS = ("entropy", "received", "distance", "lse", "head_mean", "weights")
EVERYTHING = Want(**dict.fromkeys(FLAGS, True), top=3, rows=(4, -1, 0, 4), row_heads=(2, 0), pooled=5, pooled_heads=4)
LINEAR = replace(EVERYTHING, head_mean=False, weights=False)
GRADIENTS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}
"""How exact gradients are, compared with the largest."""


def heads(q_len: int = Q, k_len: int = K, *, dtype: Any = torch.float64) -> list[Tensor]:
    """Queries, keys and values as projections leave them: views, not contiguous."""
    shapes = [(B, q_len, H, D), (B, k_len, H, D), (B, k_len, H, V)]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).transpose(1, 2) for shape in shapes]


def learnt(dtype: Any = torch.float64, **lengths: int) -> list[Tensor]:
    """The same, with gradients."""
    return [x.requires_grad_() for x in heads(dtype=dtype, **lengths)]


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    want: Want,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    stays: Tensor | float = 1.0,
    first_query: int = 0,
) -> dict[str, Tensor]:
    """The definitions, in float64: the output and what is wanted. `stays` is what dropout multiplies weights with."""
    q, k, v = q.double(), *(x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    q_len, k_len = q.shape[2], k.shape[2]
    positions = torch.arange(q_len)[:, None] + (k_len - q_len if causal else first_query)
    allowed = torch.ones(*q.shape[:3], k_len, dtype=torch.bool)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    if causal:
        allowed = allowed & (torch.arange(k_len) <= positions)
    if keep is not None:
        allowed = allowed & keep
    if bias is not None:
        allowed = allowed & (bias > -torch.inf)
        scores = scores + bias.double().where(bias > -torch.inf, 0.0)
    highest = scores.detach().where(allowed, -1e300).amax(-1, keepdim=True)
    exponentials = (scores.where(allowed, highest) - highest).exp() * allowed
    total = exponentials.sum(-1, keepdim=True)
    p = exponentials / total.where(total > 0, 1.0)
    w = p * stays
    heads_mean = torch.einsum("bhqk->bqk", w) / w.shape[1]
    lse = (total.where(total > 0, 1.0).log() + highest).where(total > 0, -torch.inf).squeeze(-1)
    largest, keys = w.sort(-1, descending=True)
    of_heads = list(range(w.shape[1]) if want.row_heads is None else want.row_heads)
    facts = {
        "entropy": lambda: -(p * p.where(p > 0, 1.0).log()).sum(-1),
        "received": lambda: torch.einsum("bhqk->bhk", w),
        "distance": lambda: (w * (positions - torch.arange(k_len)).abs()).sum(-1),
        "lse": lambda: lse,
        "top": lambda: largest[..., : want.top],
        "rows": lambda: torch.stack([torch.stack([w[:, h, n] for n in want.rows], 1) for h in of_heads], 1),
        "pooled": lambda: torch.einsum(
            "bqk,tq,uk->btu", heads_mean, tiles(q_len, want.pooled), tiles(k_len, want.pooled)
        ),
        "pooled_heads": lambda: torch.einsum(
            "bhqk,tq,uk->bhtu", w, tiles(q_len, want.pooled_heads), tiles(k_len, want.pooled_heads)
        ),
        "head_mean": lambda: heads_mean,
        "weights": lambda: w,
    }
    found = {"output": torch.einsum("bhqk,bhkd->bhqd", w, v)} | {name: facts[name]() for name in want.asked}
    if want.top:
        found["top_keys"] = keys[..., : want.top].masked_fill(largest[..., : want.top] == 0, -1)
    return found


def tiles(length: int, most: int) -> Tensor:
    """Which tile (row) each position (column) is in: the fewest positions to a tile that make at most `most` tiles."""
    each = next(n for n in range(1, length + 1) if math.ceil(length / n) <= most)
    return torch.tensor(
        [[float(n // each == tile) for n in range(length)] for tile in range(math.ceil(length / each))]
    ).double()


def facts(output: Tensor, seen: Observation) -> dict[str, Tensor]:
    """As `explicit` names them."""
    return {"output": output, **seen.tensors()}


def numbers(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """What has a gradient."""
    return {name: x for name, x in found.items() if name != "top_keys"}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], close: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        x = found[name].to(exact.dtype)
        assert_close(x, exact, atol=close, rtol=close, msg=lambda words, name=name: f"{name}: {words}")


def assert_same_gradients(
    found: dict[str, Tensor], expected: dict[str, Tensor], inputs: list[Tensor], dtype: torch.dtype = torch.float64
) -> None:
    """Of all facts together, each in a random direction, computed in this dtype."""
    towards = [torch.randn_like(x) for x in expected.values()]
    of_found = [x.to(found[name].dtype) for name, x in zip(expected, towards, strict=True)]
    grads = torch.autograd.grad([found[name] for name in expected], inputs, of_found, materialize_grads=True)
    exact_grads = torch.autograd.grad(list(expected.values()), inputs, towards, materialize_grads=True)
    for x, grad, exact in zip(inputs, grads, exact_grads, strict=True):
        assert grad.dtype == x.dtype
        close = max(GRADIENTS[dtype], GRADIENTS[x.dtype]) * max(1.0, exact.abs().max().item())
        assert_close(grad.double(), exact.double(), atol=close, rtol=0)


COMPILED = ["compiled"] if choose.compiler_is_there() else []
"""The form that needs numba, if that is installed. What it doesn't compute goes through blocks."""


@pytest.fixture(params=["plain", "4 rows of 2 heads", *COMPILED])
def way(request, monkeypatch) -> None:
    """Attention goes this way, whatever the sizes."""
    monkeypatch.setattr(choose, "COMPILED_FROM_SCORES", 0 if request.param == "compiled" else 10**9)
    monkeypatch.setattr(choose, "COMPILED_MEANS_FROM_KEYS", 0)
    monkeypatch.setattr(choose, "COMPILED_ROWS", 6)
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 10**9 if request.param == "plain" else 0)
    monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": 4 * 2 * K * 8})
    monkeypatch.setattr(choose, "BLOCK_ROWS", 4)


def some(*shape: int, share: float = 0.6) -> Tensor:
    return torch.rand(shape) < share


def padding() -> Tensor:
    """Keys 5 to 9 of the first entry, 2 to 5 of the second: there is padding on both sides of both."""
    keys = torch.arange(K)
    return torch.stack([(keys > 4) & (keys < 10), (keys > 1) & (keys < 6)])[:, None, None]


def rows_blocked() -> Tensor:
    """Random; two queries may look nowhere."""
    keep = some(B, H, Q, K)
    keep[0, 1, 3] = keep[1, 2, -1] = False
    return keep


MASKS = {
    "none": dict,
    "padding": lambda: {"keep": padding()},
    "of each": lambda: {"keep": rows_blocked()},
    "causal": lambda: {"causal": True},
}


# By hand


def test_numbers_computed_by_hand(way):
    # Scores ln 3 and 0 for query 0: weights 3/4 and 1/4; 0 and 0 for query 1: 1/2 each.
    q, k, v = (torch.tensor(x).view(1, 1, 2, 1) for x in ([math.log(3), 0.0], [1.0, 0.0], [8.0, 4.0]))
    output, seen = observe(q, k, v, want=replace(SUMMARY, top=2, pooled=1, head_mean=True))
    assert_close(output, torch.tensor([[[[7.0], [6.0]]]]))
    assert_close(seen.entropy, torch.tensor([[[2 * math.log(2) - 0.75 * math.log(3), math.log(2)]]]))
    assert_close(seen.received, torch.tensor([[[1.25, 0.75]]]))
    assert_close(seen.distance, torch.tensor([[[0.25, 0.5]]]))
    assert_close(seen.lse, torch.tensor([[[math.log(4), math.log(2)]]]))
    assert_close(seen.top.weights[:, :, 0], torch.tensor([[[0.75, 0.25]]]))
    assert seen.top.keys[:, :, 0].tolist() == [[[0, 1]]]
    assert_close(seen.pooled, torch.tensor([[[2.0]]]))
    assert_close(seen.head_mean, torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]))


def test_the_summary_is_wanted_if_nothing_is_said():
    assert observe(*heads())[1].want == SUMMARY


# Precision


@pytest.mark.parametrize("want", [NOTHING, SUMMARY], ids=["output", "facts"])
@pytest.mark.parametrize("learns", ["values", "bias"])
def test_gradients_in_half_precision_are_sums_over_many_blocks(learns, want, monkeypatch):
    # A sum of 256 equal numbers stays as it is in bfloat16, however many more are added.
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    q, k, v = (torch.zeros(1, 1, n, w, dtype=torch.bfloat16) for n, w in ((521, D), (3, D), (3, V)))
    v[:, :, 0] = 3.0 if learns == "bias" else 0.0
    bias = torch.zeros(1, 1, 1, 3, dtype=torch.bfloat16)
    learning = (v if learns == "values" else bias).requires_grad_()
    output, _ = observe(q, k, v, bias=bias, want=want, budget=1)
    (grad,) = torch.autograd.grad(output.sum(), learning)
    (exact,) = torch.autograd.grad(explicit(q, k, v, NOTHING, bias=bias)["output"].sum(), learning)
    assert_close(grad, exact, rtol=0.02, atol=0)


@pytest.mark.parametrize("rows", [7, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_facts_of_long_rows_stay_exact_in_float32(causal, rows, monkeypatch):
    q_len, k_len = 61, 1009
    monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": rows * H * k_len * 4})
    monkeypatch.setattr(choose, "BLOCK_ROWS", rows)
    q, k, v = heads(q_len, k_len, dtype=torch.float32)
    want = replace(LINEAR, top=7, pooled=10, pooled_heads=9, rows=(60,), row_heads=None)
    assert_same(facts(*observe(q, k, v, causal=causal, want=want)), explicit(q, k, v, want, causal=causal), 2e-6)


@pytest.mark.parametrize("want", [Want(lse=True), Want(entropy=True), Want(entropy=True, lse=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("where", ["first", "last", "both in turn"])
def test_lse_and_entropy_wherever_the_weight_lies(way, where, dtype, want):
    # Of more than 64 keys the lse is found from the first alone, unless these weigh too little.
    k_len = 101
    q, k, v = learnt(dtype, k_len=k_len)
    first = torch.arange(Q) % 2 == 0 if where == "both in turn" else torch.full((Q,), where == "first")
    heavy = first[:, None] == (torch.arange(k_len) < 64)
    for less in (-200.0, -torch.inf):
        bias = torch.zeros(1, 1, Q, k_len, dtype=dtype).masked_fill(~heavy, less)
        found = numbers(facts(*observe(q, k, v, bias=bias, want=want)))
        expected = numbers(explicit(q, k, v, want, bias=bias))
        assert_same(found, expected, 2e-6 if dtype == torch.float32 else 1e-10)
        assert_same_gradients(found, expected, [q, k], dtype)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e18])
@pytest.mark.parametrize("masks", ["none", "of each", "causal"])
def test_huge_scores_give_one_key_everything(way, masks, size):
    q, k, v = heads(dtype=torch.float32)
    q, k = (q * size).requires_grad_(), k * size
    given = MASKS[masks]()
    found = facts(*observe(q, k, v, want=EVERYTHING, **given))
    expected = explicit(q, k, v, EVERYTHING, **given)
    assert torch.equal(found.pop("top_keys")[..., 0], expected.pop("top_keys")[..., 0])
    assert_close(found.pop("lse").double(), expected.pop("lse"), rtol=1e-5, atol=0)
    assert_same(found, expected, 1e-4)
    (grad,) = torch.autograd.grad(sum(found[n].sum() for n in ("output", "entropy", "distance")), q)
    assert grad.isfinite().all()


@pytest.mark.parametrize("size", [100.0, 1e4, torch.finfo(torch.float32).min])
def test_entropy_does_not_depend_on_what_all_scores_share(way, size):
    # As of rows that see only keys which were given the lowest number: they spread over them all.
    q, k, v = learnt(torch.float32)
    q = q * 0 if size < -1e9 else q  # beside the lowest number no score counts
    bias = torch.full((1, 1, 1, K), size)
    _, seen = observe(q, k, v, bias=bias, want=Want(entropy=True))
    exact = explicit(q, k, v, Want(entropy=True), bias=bias)["entropy"]
    # A score is rounded to the precision of its size, whatever is made of it.
    close = 1e-5 + (0 if size < -1e9 else 4 * torch.finfo(torch.float32).eps * size)
    assert_close(seen.entropy.double(), exact, atol=close, rtol=0)
    (grad,) = torch.autograd.grad(seen.entropy.sum(), k)
    (exact_grad,) = torch.autograd.grad(exact.sum(), k)
    assert_close(grad, exact_grad, atol=10 * close, rtol=0)


@pytest.mark.parametrize("k_len", [K, 101])
def test_the_lowest_number_as_a_mask(way, k_len):
    # As Hugging Face pads on the left: all keys of the first queries have it, which leaves them with equal weights.
    inputs = learnt(torch.float32, k_len=k_len)
    bias = torch.zeros(B, 1, Q, k_len)
    bias[:, :, :2] = bias[0, :, :, : k_len - 5] = torch.finfo(torch.float32).min
    want = replace(EVERYTHING, top=0)  # which of equal weights is the largest is open
    found, expected = facts(*observe(*inputs, bias=bias, want=want)), explicit(*inputs, want, bias=bias)
    assert_same(found, expected, 1e-5)
    names = ("output", "entropy", "received", "distance", "lse")
    grads, exact = (torch.autograd.grad([one[n].sum() for n in names], inputs) for one in (found, expected))
    assert_close(grads, exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("want", [NOTHING, Want(head_mean=True)], ids=["output", "head mean"])
def test_half_precision_takes_a_bias_beyond_its_range(way, dtype, want):
    q, k, v = heads(dtype=dtype)
    bias = torch.zeros(1, 1, Q, K)
    bias[:, :, 2] = -1e9 if dtype == torch.float16 else torch.finfo(torch.float32).min
    output, seen = observe(q, k, v, bias=bias, want=want)
    assert output.isfinite().all()
    if want.head_mean:
        assert_close(seen.head_mean.sum(-1).float(), torch.ones(B, Q), atol=0.02, rtol=0)


@pytest.mark.parametrize("masks", ["none", "padding", "of each", "causal"])
def test_a_nan_stays_in_its_row(way, masks):
    (q, k, v), given = heads(), MASKS[masks]()
    spoilt = q.clone()
    spoilt[0, 1, 4] = torch.nan
    want = replace(EVERYTHING, rows=tuple(range(Q)), row_heads=None)
    clean, found = (facts(*observe(x, k, v, want=want, **given)) for x in (q, spoilt))
    here = torch.zeros(B, H, Q, dtype=torch.bool)
    here[0, 1, 4] = True
    for name in ("output", "entropy", "distance", "lse", "top", "rows", "weights"):
        open_to_it = found["weights"][0, 1, 4].isnan() if name in ("rows", "weights") else slice(None)
        assert found[name][here].isnan()[..., open_to_it].all(), name
        assert_close(found[name][~here], clean[name][~here])
    for name in ("received", "pooled_heads"):
        assert found[name][0, 1].isnan().any()
        found[name][0, 1] = clean[name][0, 1]
        assert_close(found[name], clean[name])
    for name in ("head_mean", "pooled"):
        assert found[name][0].isnan().any()
        assert_close(found[name][1], clean[name][1])


def test_ties_are_all_found(way):
    q, k, v = heads()
    _, seen = observe(q * 0, k, v, want=Want(top=K))
    assert_close(seen.top.weights, torch.full((B, H, Q, K), 1 / K, dtype=torch.float64))
    assert (seen.top.keys.sort(-1).values == torch.arange(K)).all()


# Gradients


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("masks", ["padding", "of each"])
def test_gradients_of_gradients(way, masks, dropout):
    inputs, given = learnt(), MASKS[masks]()
    found = facts(*observe(*inputs, dropout=dropout, want=EVERYTHING, **given))
    stays = (found["weights"].detach() != 0).double() / (1 - dropout)  # read off the dropped weights
    expected = explicit(*inputs, EVERYTHING, stays=stays, **given)
    both = []
    for one in (found, expected):
        loss = sum(x.where(x > -torch.inf, 0.0).square().sum() for x in numbers(one).values())
        grads = torch.autograd.grad(loss, inputs, create_graph=True)
        both.append(torch.autograd.grad(sum(grad.square().sum() for grad in grads), inputs))
    assert_close(both[0], both[1])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_graph_where_none_is_wanted(way, mode):
    inputs = learnt()
    with mode():
        found = facts(*observe(*inputs, want=EVERYTHING))
    assert not any(x.requires_grad for x in found.values())
    assert_same(found, explicit(*inputs, EVERYTHING))


def test_many_gradients_at_once(way):
    q, k, v = learnt()
    entropy = observe(q, k, v, causal=True)[1].entropy
    exact = explicit(q, k, v, SUMMARY, causal=True)["entropy"]
    towards = torch.randn(5, *entropy.shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(entropy, q, towards, is_grads_batched=True)
    (expected,) = torch.autograd.grad(exact, q, towards, is_grads_batched=True)
    assert_close(found, expected)


def test_function_transforms(way):
    q, k, v = learnt()

    def entropy(x: Tensor) -> Tensor:
        return observe(x, k, v)[1].entropy

    exact, of_twice = (explicit(x, k, v, SUMMARY)["entropy"] for x in (q, 2 * q))
    assert_close(torch.vmap(entropy)(torch.stack([q, 2 * q])), torch.stack([exact, of_twice]))
    assert_close(torch.func.grad(lambda x: entropy(x).sum())(q), torch.autograd.grad(exact.sum(), q)[0])


def test_a_bias_may_be_changed_before_the_backward_pass(monkeypatch):
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    q, k, v = learnt()
    bias = torch.randn(1, 1, Q, K, dtype=torch.float64)
    exact = explicit(q, k, v, SUMMARY, bias=bias.clone())["entropy"]
    entropy = observe(q, k, v, bias=bias)[1].entropy
    bias.zero_()
    (found,) = torch.autograd.grad(entropy.sum(), q)
    assert_close(found, torch.autograd.grad(exact.sum(), q)[0])


def test_an_expanded_bias_is_kept_as_small_as_it_is(monkeypatch):
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    bias = torch.randn(1, 1, 1, K, dtype=torch.float64).expand(B, H, Q, K)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        observe(*learnt(), bias=bias, want=NOTHING)
    assert K in kept
    assert B * H * Q * K not in kept


def test_autocast_does_not_blur_the_facts(way):
    inputs = learnt(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = facts(*observe(*inputs, want=LINEAR))
    assert {x.dtype for x in numbers(found).values()} == {torch.float32}
    expected = explicit(*inputs, LINEAR)
    assert_same(numbers(found), numbers(expected), 1e-5)
    assert_same_gradients(numbers(found), numbers(expected), inputs, torch.float32)


def test_checkpointing_drops_the_same_weights_again(way):
    inputs = learnt()

    def loss(*qkv: Tensor) -> Tensor:
        output, seen = observe(*qkv, dropout=0.5, want=Want(received=True))
        return output.square().sum() + seen.received.square().sum()

    torch.manual_seed(3)
    expected = torch.autograd.grad(loss(*inputs), inputs)
    torch.manual_seed(3)
    again = torch.utils.checkpoint.checkpoint(loss, *inputs, use_reentrant=False)
    assert_close(torch.autograd.grad(again, inputs), expected)


# Any inputs, empty ones and wrong ones


@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(0, Q, K), (B, 0, K), (B, Q, 0), (B, 0, 0)])
@pytest.mark.parametrize("masked", [True, False])
def test_empty_inputs(batch, q_len, k_len, masked):
    q, k, v = (torch.randn(batch, H, n, w, requires_grad=True) for n, w in ((q_len, D), (k_len, D), (k_len, V)))
    keep = torch.ones(batch, 1, q_len, k_len, dtype=torch.bool) if masked else None
    rows = {"rows": (0,) if q_len else (), "row_heads": None}
    output, seen = observe(
        q, k, v, keep=keep, want=replace(EVERYTHING, top=min(k_len, 3), pooled=2, pooled_heads=2, **rows)
    )
    by_query, tiled = (batch, H, q_len), (min(2, q_len), min(2, k_len))
    shapes = {
        **{"output": (*by_query, V), **dict.fromkeys(("entropy", "distance", "lse"), by_query)},
        **{"received": (batch, H, k_len), "weights": (*by_query, k_len), "head_mean": (batch, q_len, k_len)},
        **{"pooled": (batch, *tiled), "pooled_heads": (batch, H, *tiled)},
        **(dict.fromkeys(("top", "top_keys"), (*by_query, 3)) if k_len else {}),
        **({"rows": (batch, H, 1, k_len)} if q_len else {}),
    }
    assert {name: tuple(x.shape) for name, x in facts(output, seen).items()} == shapes
    if not k_len:
        assert not any(x.any() for x in (output, seen.entropy, seen.distance))
        assert (seen.lse == -torch.inf).all()
    assert repr(seen).startswith(f"Observation of a batch of {batch}")
    (output.sum() + seen.entropy.sum() + seen.received.sum()).backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


flags = st.booleans()
pushing = st.sampled_from(["all"] * 9 + list(EVERYTHING.asked))  # the facts whose gradients are taken


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """One call: sizes, masks, what is wanted, what learns, and the size of its blocks."""
    case = draw(any_cases())
    if case["form"] == "compiled":
        wanted = {name: case["want"][name] for name in ("entropy", "received", "distance", "lse", "top")}
        learning = case["learning"].replace("b", "")
        case |= {"want": wanted, "dropout": 0.0, "budget": None, "dtype": torch.float32, "bias_dtype": torch.float32}
        case |= {"learning": learning, "first_query": 0}
    return case


@st.composite
def any_cases(draw: st.DrawFn) -> dict[str, Any]:
    """The same, though the form may not compute what is wanted."""
    k_len = draw(st.integers(1, 9))
    causal = draw(flags)
    q_len = draw(st.integers(1, k_len if causal else 9))
    kept = draw(st.integers(1, 3))
    heads_ = kept * draw(st.integers(1, 3))
    batch = draw(st.integers(1, 3))
    shapes = [
        (*(n if draw(flags) else 1 for n in (batch, heads_, q_len)), k_len) if draw(flags) else None for _ in range(2)
    ]
    rows = tuple(draw(st.lists(st.integers(-q_len, q_len - 1), max_size=3)))
    of_heads = st.lists(st.integers(-heads_, heads_ - 1), min_size=1, max_size=3)
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16]))
    want = dict(
        **{name: draw(flags) for name in FLAGS},
        top=draw(st.integers(0, k_len)),
        rows=rows,
        row_heads=draw(of_heads) if rows and draw(flags) else None,
        pooled=draw(st.integers(0, 10)),
        pooled_heads=draw(st.integers(0, 10)),
    )
    return {
        "sizes": (batch, heads_, kept, q_len, k_len),
        "causal": causal,
        "first_query": 0 if causal else draw(st.sampled_from([0, 0, 3, 12])),
        "keep": shapes[0],
        "bias": shapes[1],
        "share_open": draw(st.sampled_from([0.0, 0.4, 0.9])),
        "share_unblocked": draw(st.sampled_from([0.6, 1.0, 1.0])),
        "scale": draw(st.sampled_from([None, None, 0.3])),
        "dropout": draw(st.sampled_from([0.0, 0.0, 0.4])),
        "want": want,
        "budget": draw(st.sampled_from([None, None, 1, 1000])),
        "block": (draw(st.integers(1, 2 * q_len)), draw(st.integers(1, heads_))),  # rows, heads
        "block_rows": draw(st.sampled_from([1, 2, 128])),
        "form": draw(st.sampled_from(["plain", "blocks", "blocks", *COMPILED])),
        "onednn": draw(flags),
        "dtype": dtype,
        "bias_dtype": draw(st.sampled_from([dtype, dtype, torch.float32, torch.float64, torch.bfloat16])),
        # One sequence of keys and one mask for all, in memory once. Sums over copies are rough in half precision.
        "expanded": dtype.itemsize > 2 and draw(flags),
        "learning": draw(st.sampled_from(["qkvb", "qkvb", "q", "k", "v", "b", ""])),
        "pushing": draw(pushing),
        "seed": draw(st.integers(0, 1000)),
    }


# The long test of this file, some 6 s: it stands for tables of lengths, masks, dtypes, wishes and block sizes.
@settings(max_examples=CASES, deadline=None)
@given_any(case=cases())
def test_anything_is_as_the_definitions_say(case):
    batch, heads_, kept, q_len, k_len = case["sizes"]
    dtype, want, dropout = case["dtype"], Want(**case["want"]), case["dropout"]
    torch.manual_seed(case["seed"])
    entries, of_keys = (1, 1) if case["expanded"] else (batch, kept)
    shapes = {"q": (batch, q_len, heads_, D), "k": (entries, k_len, of_keys, D), "v": (entries, k_len, of_keys, V)}
    leaves = {name: torch.randn(shape).to(dtype).transpose(1, 2) for name, shape in shapes.items()}
    if case["bias"]:
        blocked = ~some(*case["bias"], share=case["share_unblocked"])
        leaves["b"] = torch.randn(case["bias"]).to(case["bias_dtype"]).masked_fill(blocked, -torch.inf)
    learning = [x.requires_grad_() for name, x in leaves.items() if name in case["learning"]]
    q, k, v = leaves["q"], *(leaves[name].expand(batch, kept, k_len, -1) for name in "kv")
    given = {"bias": leaves.get("b"), "keep": case["keep"] and some(*case["keep"], share=case["share_open"])}
    if case["expanded"]:
        given = {name: x if x is None else x.expand(batch, heads_, q_len, k_len) for name, x in given.items()}
    given |= {name: case[name] for name in ("causal", "scale", "first_query")}

    def run(asked: Want) -> dict[str, Tensor]:
        torch.manual_seed(case["seed"])
        return facts(*observe(q, k, v, **given, dropout=dropout, want=asked, budget=case["budget"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "BLOCKS_FROM_SCORES", 10**9 if case["form"] == "plain" else 0)
        patch.setattr(choose, "COMPILED_FROM_SCORES", 0 if case["form"] == "compiled" else 10**9)
        patch.setattr(choose, "COMPILED_MEANS_FROM_KEYS", 0)
        patch.setattr(choose, "COMPILED_ROWS", 6)
        patch.setattr(choose, "BLOCK_ROWS", case["block_rows"])
        patch.setattr(choose, "BLOCK_BYTES", {"cpu": math.prod(case["block"]) * k_len * 8})
        patch.setattr(choose, "onednn_beats_mkl", partial(bool, case["onednn"]))
        patch.setattr(choose, "ONEDNN_FROM_OPERATIONS", 0)
        found, stays = run(want), 1.0
        if learning:
            form = {"_AttendBackward": "blocks", "_AttendCompiledBackward": "compiled"}
            forms = {form.get(type(x.grad_fn).__name__, "plain") for x in found.values() if x.requires_grad}
            assert forms == {case["form"]}
        if dropout:
            # Where a weight is zero without dropout, too, its factor is any. The numbers drawn are the same.
            whole = observe(q, k, v, **given, want=Want(weights=True, entropy=True))[1].weights
            dropped = run(replace(want, weights=True, entropy=True))["weights"]
            stays = ((dropped != 0) | (whole == 0)).double() / (1 - dropout)
        expected = explicit(q, k, v, want, **given, stays=stays)
        nowhere = explicit(q, k, v, Want(lse=True), **given)["lse"] == -torch.inf
        assert found.keys() == expected.keys()
        keys, expected_keys = found.pop("top_keys", None), expected.pop("top_keys", None)
        if keys is not None:
            assert torch.equal(keys < 0, expected_keys < 0)
            assert dtype != torch.float64 or torch.equal(keys, expected_keys)
        for name, exact in expected.items():
            like_inputs = name in ("output", "head_mean", "weights")
            assert found[name].dtype == (dtype if like_inputs else torch.promote_types(dtype, torch.float32))
            assert found[name].requires_grad == exact.requires_grad, name
            close = 3e-2 if dtype.itemsize == 2 and like_inputs else {torch.float64: 1e-10}.get(dtype, 1e-5)
            assert_same({name: found[name]}, {name: exact}, close)
            if name in ("output", "entropy", "distance", "top", "weights"):
                assert (found[name][nowhere] == 0).all(), name
        assert "weights" not in found or (found["weights"][expected["weights"] == 0] == 0).all()
        alone = case["pushing"] if case["pushing"] in expected else None
        pushing = {n: x for n, x in expected.items() if alone in (None, n) and x.requires_grad}
        if pushing:
            assert_same_gradients(found, pushing, learning, dtype)


WRONG = {
    r"q must be floating-point, \(batch, heads, length, width\), got torch.float32 \(3, 11, 5\): .* pass x\[None\]": (
        lambda q, k, v: {"q": q[0]}
    ),
    r"v must be floating-point, .*, got torch.int64 \(2, 3, 13, 7\)": lambda q, k, v: {"v": v.long()},
    r"q, k and v must have one dtype, got torch.float32, torch.float64 and torch.float32": (
        lambda q, k, v: {"k": k.double()}
    ),
    r"k and v must agree in \(batch, heads, length\), got \(2, 3, 13\) and \(2, 3, 12\)": (
        lambda q, k, v: {"v": v[:, :, 1:]}
    ),
    r"q and k must agree in batch and width, .* got \(2, 3, 11, 4\) and \(2, 3, 13, 5\)": (
        lambda q, k, v: {"q": q[..., 1:]}
    ),
    r"q and k must agree in batch and width, .* got \(1, 3, 11, 5\) and \(2, 3, 13, 5\)": lambda q, k, v: {"q": q[:1]},
    r"heads of q must be a multiple of those of k and v, got 3 and 2: are the axes \(batch, heads, length, width\)": (
        lambda q, k, v: {"k": k[:, 1:], "v": v[:, 1:]}
    ),
    r"heads of q must be a multiple of those of k and v, got 3 and 0": lambda q, k, v: {"k": k[:, :0], "v": v[:, :0]},
    r"causal needs q_len <= k_len .*, got q_len 11 and k_len 7": (
        lambda q, k, v: {"k": k[:, :, :7], "v": v[:, :, :7], "causal": True}
    ),
    r"dropout must be a probability, 0 to 1, got -0.1": lambda q, k, v: {"dropout": -0.1},
    r"dropout must be a probability, 0 to 1, got 1.5": lambda q, k, v: {"dropout": 1.5},
    r"dropout must be a probability, 0 to 1, got nan": lambda q, k, v: {"dropout": math.nan},
    r"budget must be a whole number of bytes above 0, got 0: 2\*\*28 is 256 MiB": lambda q, k, v: {"budget": 0},
    r"budget must be a whole number of bytes above 0, got 1000000.0": lambda q, k, v: {"budget": 1e6},
    r"top must be at most the number of keys, 13, got 14": lambda q, k, v: {"want": Want(top=14)},
    r"rows must be among the 11 queries, 0 to 10, got 11": lambda q, k, v: {"want": Want(rows=(0, 11))},
    r"rows must be among the 11 queries, 0 to 10, got -12": lambda q, k, v: {"want": Want(rows=-12)},
    r"row_heads must be among the 3 heads, 0 to 2, got 3": lambda q, k, v: {"want": Want(rows=0, row_heads=3)},
    r"first_query must be a position, 0 or more, got -1": lambda q, k, v: {"first_query": -1},
    r"first_query must be a position, 0 or more, got True": lambda q, k, v: {"first_query": True},
    r"first_query must be left out under causal, got 2: ": lambda q, k, v: {
        "first_query": 2,
        "causal": True,
    },
    r"want must be a Want, got 'entropy'": lambda q, k, v: {"want": "entropy"},
    r"scale must be a number, got Parameter: one that learns can": lambda q, k, v: {"scale": torch.nn.Parameter(q[0])},
    r"keep must be where q is, on cpu, got meta": lambda q, k, v: {"keep": torch.ones(1, 1, 1, K, device="meta") > 0},
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_explained(message):
    right = dict(zip("qkv", heads(dtype=torch.float32), strict=True))
    given = right | WRONG[message](**right)
    q, k, v = (given.pop(name) for name in "qkv")
    with pytest.raises(ArgumentError, match=message):
        observe(q, k, v, **given)


@pytest.mark.usefixtures("unchecked")
def test_a_position_may_be_any_whole_number():
    q, k, v = heads(dtype=torch.float32)
    expected = observe(q, k, v, first_query=3)[1].distance
    assert torch.equal(observe(q, k, v, first_query=torch.tensor(3))[1].distance, expected)


def test_weights_of_zero_have_finite_gradients_of_entropy():
    scores = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    keep = torch.ones(4, 4, dtype=torch.bool).tril()
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
    entropy = observe_weights(weights, Want(entropy=True)).entropy
    (found,) = torch.autograd.grad(entropy.sum(), scores)
    assert found.isfinite().all()
    of_rows = [-(row * row.log()).sum() for row in (scores[0, 0, n, : n + 1].softmax(-1) for n in range(4))]
    assert_close(entropy[0, 0], torch.stack(of_rows))
    (expected,) = torch.autograd.grad(sum(of_rows), scores)
    assert_close(found, expected)


def test_rows_of_zeros_have_no_entropy_and_no_gradient():
    weights = torch.zeros(1, 1, 2, 3, requires_grad=True)
    entropy = observe_weights(weights, Want(entropy=True)).entropy
    entropy.sum().backward()
    assert not entropy.any()
    assert weights.grad is not None
    assert not weights.grad.any()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", [lambda x, want: observe(x, x, x, want=want), observe_weights])
def test_what_is_no_want_is_named(function):
    with pytest.raises(ArgumentError) as error:
        function(torch.ones(1, 1, 2, 2), "entropy")
    assert str(error.value) == "want must be a Want, got 'entropy': want=Want(entropy=True), say"
