import math
import os
from dataclasses import replace
from typing import Any

import jaxtyping
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
from glassformer.attention.observe import observe
from glassformer.attention.want import NOTHING, SUMMARY, Want
from glassformer.errors import ArgumentError

B, H, Q, K, D, V = 2, 3, 11, 13, 5, 7  # distinct primes: a swapped axis cannot pass
CASES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 100

EVERYTHING = Want(
    entropy=True,
    received=True,
    distance=True,
    lse=True,
    top=3,
    rows=(4, -1, 0, 4),
    row_heads=(2, 0),
    pooled=5,
    pooled_heads=4,
    head_mean=True,
    weights=True,
)
LINEAR = replace(EVERYTHING, head_mean=False, weights=False)


def heads(q_len: int = Q, k_len: int = K, *, count: int = H, kept: int = H, dtype: Any = torch.float64) -> list[Tensor]:
    """Queries, keys and values as projections leave them: views, not contiguous. Keys and values have `kept` heads."""
    shapes = [(B, q_len, count, D), (B, k_len, kept, D), (B, k_len, kept, V)]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).transpose(1, 2) for shape in shapes]


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
) -> dict[str, Tensor]:
    """The definitions, in float64: the output and what is wanted. `stays` is what dropout multiplies weights with."""
    q, k, v = q.double(), *(x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    q_len, k_len = q.shape[2], k.shape[2]
    positions = torch.arange(q_len)[:, None] + (k_len - q_len if causal else 0)
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
    found = {"output": torch.einsum("bhqk,bhkd->bhqd", w, v)}
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
    found |= {name: facts[name]() for name in want.asked}
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
    found = {"output": output}
    for name in seen.want.asked:
        if name == "top":
            found |= {"top": seen.top.weights, "top_keys": seen.top.keys}
        else:
            found[name] = getattr(seen, name)
    return found


def numbers(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """What has a gradient."""
    return {name: x for name, x in found.items() if name != "top_keys"}


WAYS = {
    "plain": None,
    "a row of a head": (1, 1),
    "5 rows of a head": (5, 1),
    "4 rows of 2 heads": (4, 2),
    "3 rows of all heads": (3, H),
    "several entries": (2 * Q, H),
}


def take(way: str, patch: Any, k_len: int = K, bytes_each: int = 8) -> None:
    """Attention goes this way, whatever the sizes."""
    if WAYS[way] is None:
        patch.setattr(choose, "BLOCKS_FROM_SCORES", 10**9)
        return
    rows, together = WAYS[way]
    patch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    patch.setattr(choose, "BLOCK_BYTES", {"cpu": rows * together * k_len * bytes_each})
    patch.setattr(choose, "BLOCK_ROWS", 1 if together == H else rows)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch) -> str:
    take(request.param, monkeypatch)
    return request.param


@pytest.fixture(params=["plain", "4 rows of 2 heads"])
def either(request, monkeypatch) -> str:
    take(request.param, monkeypatch)
    return request.param


def some(*shape: int, share: float = 0.6) -> Tensor:
    return torch.rand(shape) < share


def padding() -> Tensor:
    """Keys 5 to 9 of the first entry, 2 to 5 of the second: there is padding on both sides of both."""
    keys = torch.arange(K)
    return torch.stack([(keys > 4) & (keys < 10), (keys > 1) & (keys < 6)])[:, None, None]


def blocking(*shape: int) -> Tensor:
    """Added to the scores: random numbers, and -inf."""
    return torch.randn(shape, dtype=torch.float64).masked_fill(~some(*shape), -torch.inf)


def rows_blocked(mask: Tensor) -> Tensor:
    """Two queries may look nowhere."""
    mask[0, 1, 3] = mask[1, 2, -1] = False if mask.dtype == torch.bool else -torch.inf
    return mask


MASKS = {
    "none": dict,
    "padding": lambda: {"keep": padding()},
    "all of an entry": lambda: {"keep": padding() & torch.tensor([True, False])[:, None, None, None]},
    "shared": lambda: {"keep": some(1, 1, Q, K)},
    "of a head": lambda: {"keep": some(1, H, 1, K)},
    "of each": lambda: {"keep": rows_blocked(some(B, H, Q, K))},
    "added": lambda: {"bias": torch.randn(1, H, Q, K, dtype=torch.float64)},
    "added, blocking": lambda: {"bias": rows_blocked(blocking(B, H, Q, K))},
    "added to keys": lambda: {"bias": blocking(B, 1, 1, K)},
    "causal": lambda: {"causal": True},
    "causal and padding": lambda: {"causal": True, "keep": padding()},
    "all": lambda: {"causal": True, "keep": padding(), "bias": blocking(1, H, Q, K), "scale": 0.7},
}


# Every fact by its definition


@pytest.mark.parametrize("masks", MASKS)
def test_every_fact_and_its_gradient(way, masks):
    given = MASKS[masks]()
    inputs = [x.requires_grad_() for x in (*heads(), *([given["bias"]] if "bias" in given else []))]
    output, seen = observe(*inputs[:3], want=EVERYTHING, **given)
    found = facts(output, seen)
    expected = explicit(*inputs[:3], EVERYTHING, **given)
    assert set(found) == set(expected)
    for name, exact in expected.items():
        assert_close(found[name], exact, msg=lambda words, name=name: f"{name}: {words}")
    assert {type(x.grad_fn).__name__ == "_AttendBackward" for x in numbers(found).values()} == {way != "plain"}
    towards = [torch.randn_like(x) for x in numbers(expected).values()]
    grads = torch.autograd.grad(list(numbers(found).values()), inputs, towards)
    exact_grads = torch.autograd.grad(list(numbers(expected).values()), inputs, towards)
    assert all(x.isfinite().all() for x in exact_grads)
    assert_close(grads, exact_grads)


@pytest.mark.parametrize("name", ["output", *EVERYTHING.asked])
def test_the_gradient_of_each_fact_alone(way, name):
    given = MASKS["all"]()
    inputs = [x.requires_grad_() for x in (*heads(), given["bias"])]
    found = facts(*observe(*inputs[:3], want=EVERYTHING, **given))[name]
    expected = explicit(*inputs[:3], EVERYTHING, **given)[name]
    towards = torch.randn_like(expected)
    grads = torch.autograd.grad(found, inputs, towards, allow_unused=True)
    exact = torch.autograd.grad(expected, inputs, towards, allow_unused=True)
    for one, other in zip(grads, exact, strict=True):
        assert one is None or other is not None or not one.any()
        if other is not None:
            assert_close(one, other)
            assert one.any()


def test_numbers_computed_by_hand(either):
    # Scores ln 3 and 0 for query 0: weights 3/4 and 1/4; 0 and 0 for query 1: 1/2 each.
    q = torch.tensor([[math.log(3)], [0.0]]).view(1, 1, 2, 1)
    k = torch.tensor([[1.0], [0.0]]).view(1, 1, 2, 1)
    v = torch.tensor([[8.0], [4.0]]).view(1, 1, 2, 1)
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


# Queries that may look nowhere


@pytest.mark.parametrize("masks", ["all of an entry", "of each", "causal and padding"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_query_that_sees_nothing_has_zero_of_everything(way, masks, dtype):
    inputs = [x.requires_grad_() for x in heads(dtype=dtype)]
    given = MASKS[masks]()
    open_keys = given["keep"].expand(B, H, Q, K)
    if "causal" in given:
        open_keys = open_keys & torch.ones(Q, K, dtype=torch.bool).tril(K - Q)
    nowhere = ~open_keys.any(-1)
    assert nowhere.any()
    want = replace(EVERYTHING, rows=tuple(range(Q)), row_heads=None)
    output, seen = observe(*inputs, want=want, **given)
    for x in (output, seen.weights, seen.entropy, seen.distance, seen.top.weights, seen.rows):
        assert (x[nowhere] == 0).all()
        assert x[~nowhere].any()
    assert (seen.lse[nowhere] == -torch.inf).all()
    assert (seen.top.keys[nowhere] == -1).all()
    assert seen.lse[~nowhere].isfinite().all()
    loss = sum(x.float().where(x > -torch.inf, 0.0).square().sum() for x in numbers(facts(output, seen)).values())
    for grad in torch.autograd.grad(loss, inputs):
        assert grad.isfinite().all()
        assert grad.any()
    (grad,) = torch.autograd.grad(observe(*inputs, **given)[1].lse.sum(), inputs[:1])
    assert (grad[nowhere] == 0).all()
    assert grad.isfinite().all()


# Precision


@pytest.mark.parametrize("want", [NOTHING, SUMMARY], ids=["output", "facts"])
@pytest.mark.parametrize("learns", ["values", "bias"])
def test_gradients_in_half_precision_are_sums_over_many_blocks(learns, want, monkeypatch):
    # A sum of 256 equal numbers stays as it is in bfloat16, however many more are added.
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    q_len = 521
    q, k, v = (torch.zeros(1, 1, n, w, dtype=torch.bfloat16) for n, w in ((q_len, D), (3, D), (3, V)))
    bias = torch.zeros(1, 1, 1, 3, dtype=torch.bfloat16)
    if learns == "values":
        v.requires_grad_()
    else:
        v[:, :, 0] = 3.0
        bias.requires_grad_()
    learnt = v if learns == "values" else bias
    output, _ = observe(q, k, v, bias=bias, want=want, budget=1)
    (grad,) = torch.autograd.grad(output.sum(), learnt)
    (exact,) = torch.autograd.grad(explicit(q, k, v, NOTHING, bias=bias)["output"].sum(), learnt)
    assert_close(grad, exact, rtol=0.02, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_facts_of_long_rows_stay_exact_in_float32(causal, monkeypatch):
    q_len, k_len = 61, 1009
    q, k, v = heads(q_len, k_len, dtype=torch.float32)
    want = replace(LINEAR, top=7, pooled=10, pooled_heads=9, rows=(60,), row_heads=None)
    expected = explicit(q, k, v, want, causal=causal)
    for rows in (7, 100):
        monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": rows * H * k_len * 4})
        monkeypatch.setattr(choose, "BLOCK_ROWS", rows)
        found = facts(*observe(q, k, v, causal=causal, want=want))
        for name, exact in numbers(expected).items():
            assert_close(found[name].double(), exact, atol=2e-6, rtol=2e-6, msg=lambda words, n=name: f"{n}: {words}")
        assert torch.equal(found["top_keys"], expected["top_keys"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_bias_of_another_dtype_leaves_the_results_theirs(either, dtype):
    q, k, v = heads(dtype=torch.float32)
    bias = torch.randn(1, H, Q, K).to(dtype)
    found = facts(*observe(q, k, v, bias=bias, want=EVERYTHING))
    assert {x.dtype for x in numbers(found).values()} == {torch.float32}
    for name, exact in explicit(q, k, v, EVERYTHING, bias=bias).items():
        assert_close(found[name].double(), exact.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("library", ["MKL", "oneDNN"])
@pytest.mark.parametrize("masks", ["none", "padding", "causal"])
def test_the_same_through_either_library(way, library, masks, monkeypatch):
    monkeypatch.setattr(choose, "ONEDNN_BEATS_MKL", library == "oneDNN")
    monkeypatch.setattr(choose, "ONEDNN_FROM_OPERATIONS", 0)
    inputs = [x.requires_grad_() for x in heads(dtype=torch.float32)]
    given = MASKS[masks]()
    found = numbers(facts(*observe(*inputs, want=EVERYTHING, **given)))
    expected = numbers(explicit(*inputs, EVERYTHING, **given))
    assert_close(found, {n: x.float() for n, x in expected.items()}, atol=5e-6, rtol=5e-6)
    towards = [torch.randn_like(x) for x in found.values()]
    grads = torch.autograd.grad(list(found.values()), inputs, towards)
    exact = torch.autograd.grad([expected[name] for name in found], inputs, [x.double() for x in towards])
    assert_close(grads, exact, atol=1e-4, rtol=1e-4)


def test_inputs_may_be_expanded(way):
    # One sequence of keys and one mask for all, in memory once.
    q, k, v = heads()
    shared = [k[:1, :1].clone().requires_grad_(), v[:1, :1].clone().requires_grad_(), torch.randn(1, 1, 1, K)]
    shared[2] = shared[2].double().requires_grad_()
    keep = some(1, 1, 1, K).expand(B, 1, Q, K)
    both = []
    for see in (lambda *a, **s: facts(*observe(*a, **s)), explicit):
        k, v, bias = (x.expand(B, H, *x.shape[2:]) for x in shared)
        found = numbers(see(q, k, v, bias=bias, keep=keep, want=EVERYTHING))
        loss = sum(x.where(x > -torch.inf, 0.0).square().sum() for x in found.values())
        both.append((found, torch.autograd.grad(loss, shared)))
    assert_close(both[0], both[1])


@pytest.mark.parametrize("want", [Want(lse=True), Want(entropy=True), Want(entropy=True, lse=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("where", ["first", "last", "both in turn"])
def test_lse_and_entropy_wherever_the_weight_lies(either, where, dtype, want):
    # Of more than 64 keys the lse is found from the first alone, unless these weigh too little.
    k_len = 101
    q, k, v = (x.requires_grad_() for x in heads(k_len=k_len, dtype=dtype))
    less = torch.full((1, 1, Q, k_len), -200.0, dtype=dtype)
    first = torch.arange(Q) % 2 == 0 if where == "both in turn" else torch.full((Q,), where == "first")
    for query in range(Q):
        less[..., query, :64] = 0.0 if first[query] else less[..., query, :64]
        less[..., query, 64:] = 0.0 if not first[query] else less[..., query, 64:]
    for bias in (less, less.masked_fill(less < 0, -torch.inf)):
        found = numbers(facts(*observe(q, k, v, bias=bias, want=want)))
        expected = numbers(explicit(q, k, v, want, bias=bias))
        close = 2e-6 if dtype == torch.float32 else 1e-10
        assert_close([x.double() for x in found.values()], list(expected.values()), atol=close, rtol=close)
        towards = [torch.randn_like(x) for x in found.values()]
        grads = torch.autograd.grad(list(found.values()), (q, k), towards)
        exact = torch.autograd.grad(list(expected.values()), (q, k), [x.double() for x in towards])
        assert_close(grads, exact, atol=1e-4 if dtype == torch.float32 else 1e-10, rtol=1e-4)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e18])
@pytest.mark.parametrize("masks", ["none", "of each", "causal"])
def test_huge_scores_give_one_key_everything(either, masks, size):
    q, k, v = heads(dtype=torch.float32)
    q, k = (q * size).requires_grad_(), k * size
    given = MASKS[masks]()
    found = facts(*observe(q, k, v, want=EVERYTHING, **given))
    expected = explicit(q, k, v, EVERYTHING, **given)
    for name, exact in expected.items():
        if name == "top_keys":
            assert torch.equal(found[name][..., 0], exact[..., 0])
        elif name == "lse":
            assert_close(found[name].double(), exact, rtol=1e-5, atol=0)
        else:
            assert_close(found[name].double(), exact, rtol=1e-4, atol=1e-4)
    (grad,) = torch.autograd.grad(sum(found[n].sum() for n in ("output", "entropy", "distance")), q)
    assert grad.isfinite().all()


@pytest.mark.parametrize("size", [100.0, 1e4, torch.finfo(torch.float32).min])
def test_entropy_does_not_depend_on_what_all_scores_share(either, size):
    # As of rows that see only keys which were given the lowest number: they spread over them all.
    q, k, v = (x.requires_grad_() for x in heads(dtype=torch.float32))
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
def test_the_lowest_number_as_a_mask(either, k_len):
    # As Hugging Face pads on the left: all keys of the first queries have it, which leaves them with equal weights.
    inputs = [x.requires_grad_() for x in heads(k_len=k_len, dtype=torch.float32)]
    lowest = torch.finfo(torch.float32).min
    bias = torch.zeros(B, 1, Q, k_len)
    bias[:, :, :2] = bias[0, :, :, : k_len - 5] = lowest
    found = numbers(facts(*observe(*inputs, bias=bias, want=EVERYTHING)))
    expected = numbers(explicit(*inputs, EVERYTHING, bias=bias))
    for name, exact in expected.items():
        if name == "top":  # of equal weights
            continue
        assert_close(found[name].double(), exact, atol=1e-5, rtol=1e-5, msg=lambda words, n=name: f"{n}: {words}")
    names = ("output", "entropy", "received", "distance", "lse")
    grads = torch.autograd.grad([found[n].sum() for n in names], inputs)
    exact_grads = torch.autograd.grad([expected[n].sum() for n in names], inputs)
    assert_close(grads, exact_grads, atol=1e-4, rtol=1e-4)


def test_a_nan_stays_in_its_row(way):
    q, k, v = heads()
    want = replace(EVERYTHING, rows=tuple(range(Q)), row_heads=None)
    for masks in ("none", "padding", "of each", "causal"):
        given = MASKS[masks]()
        spoilt = q.clone()
        spoilt[0, 1, 4] = torch.nan
        clean, found = (facts(*observe(x, k, v, want=want, **given)) for x in (q, spoilt))
        for name in ("output", "entropy", "distance", "lse", "top", "rows", "weights"):
            here = torch.zeros(B, H, Q, dtype=torch.bool)
            here[0, 1, 4] = True
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


# The largest weights


def test_ties_are_all_found(either):
    q, k, v = heads()
    _, seen = observe(q * 0, k, v, want=Want(top=K))
    assert_close(seen.top.weights, torch.full((B, H, Q, K), 1 / K, dtype=torch.float64))
    assert (seen.top.keys.sort(-1).values == torch.arange(K)).all()


# Gradients


SMALL = {
    "none": {},
    "causal": {"causal": True},
    "a blocked row": {"keep": torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])[None, None]},
}


def small_facts(names: tuple[str, ...], masks: str) -> Any:
    """A function of q, k, v and a bias, whose values are finite; and such inputs."""
    rows = slice(0, 3, 2)  # not the blocked one, whose lse is -inf
    want = Want(entropy=True, received=True, distance=True, lse=True, top=2, rows=(0, 2), pooled=2, head_mean=True)

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        found = facts(*observe(q, k, v, bias=bias, want=want, **SMALL[masks]))
        found["lse"] = found["lse"][:, :, rows]
        return tuple(found[name] for name in names)

    shapes = (1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 3), (1, 2, 3, 4)
    return function, [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("masks", SMALL)
def test_gradcheck(either, masks):
    names = ("output", "entropy", "received", "distance", "lse", "top", "rows", "pooled", "head_mean")
    function, inputs = small_facts(names, masks)
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("masks", ["none", "a blocked row"])
def test_gradgradcheck(either, masks):
    names = ("output", "entropy", "received", "distance", "lse", "top", "rows", "head_mean")
    function, inputs = small_facts(names, masks)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("learns", [0, 1, 2, 3])
def test_gradients_of_some_inputs_alone(either, learns):
    inputs = [*heads(), torch.randn(1, H, Q, K, dtype=torch.float64)]
    inputs[learns].requires_grad_()
    found = facts(*observe(*inputs[:3], bias=inputs[3], want=EVERYTHING))
    expected = explicit(*inputs[:3], EVERYTHING, bias=inputs[3])
    for name, exact in expected.items():
        assert found[name].requires_grad == exact.requires_grad, name
        if exact.requires_grad:
            towards = torch.randn_like(exact)
            (grad,) = torch.autograd.grad(found[name], inputs[learns], towards, retain_graph=True)
            (exact_grad,) = torch.autograd.grad(exact, inputs[learns], towards, retain_graph=True)
            assert_close(grad, exact_grad)


def test_no_graph_where_none_is_wanted(either):
    inputs = [x.requires_grad_() for x in heads()]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = facts(*observe(*inputs, want=EVERYTHING))
        assert not any(x.requires_grad for x in found.values())
        assert_close(found, explicit(*(x.detach() for x in inputs), EVERYTHING))


def test_many_gradients_at_once(either):
    q, k, v = (x.requires_grad_() for x in heads())
    entropy = observe(q, k, v, causal=True)[1].entropy
    exact = explicit(q, k, v, SUMMARY, causal=True)["entropy"]
    towards = torch.randn(5, *entropy.shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(entropy, q, towards, is_grads_batched=True)
    (expected,) = torch.autograd.grad(exact, q, towards, is_grads_batched=True)
    assert_close(found, expected)


def test_function_transforms(either):
    q, k, v = heads()

    def entropy(x: Tensor) -> Tensor:
        return observe(x, k, v)[1].entropy

    expected = explicit(q, k, v, SUMMARY)["entropy"]
    found = torch.vmap(entropy)(torch.stack([q, 2 * q]))
    assert_close(found[0], expected)
    assert_close(found[1], explicit(2 * q, k, v, SUMMARY)["entropy"])
    leaf = q.clone().requires_grad_()
    (exact,) = torch.autograd.grad(explicit(leaf, k, v, SUMMARY)["entropy"].sum(), leaf)
    assert_close(torch.func.grad(lambda x: entropy(x).sum())(q), exact)


def test_a_bias_may_be_changed_before_the_backward_pass(monkeypatch):
    take("4 rows of 2 heads", monkeypatch)
    q, k, v = (x.requires_grad_() for x in heads())
    bias = torch.randn(1, 1, Q, K, dtype=torch.float64)
    exact = explicit(q, k, v, SUMMARY, bias=bias.clone())["entropy"]
    entropy = observe(q, k, v, bias=bias)[1].entropy
    bias.zero_()
    (found,) = torch.autograd.grad(entropy.sum(), q)
    assert_close(found, torch.autograd.grad(exact.sum(), q)[0])


def test_autocast_does_not_blur_the_facts(either):
    inputs = [x.requires_grad_() for x in heads(dtype=torch.float32)]
    expected = explicit(*inputs, LINEAR)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = facts(*observe(*inputs, want=LINEAR))
        loss = found["entropy"].sum() + found["received"].square().sum()
    grads = torch.autograd.grad(loss, inputs[:2])
    for name, x in numbers(found).items():
        assert x.dtype == torch.float32
        if name != "output":
            assert_close(x.double(), expected[name], atol=1e-5, rtol=1e-5, msg=lambda words, n=name: f"{n}: {words}")
    exact = torch.autograd.grad(expected["entropy"].sum() + expected["received"].square().sum(), inputs[:2])
    assert_close(grads, exact, atol=1e-4, rtol=1e-4)


# Dropout


def what_stays(weights: Tensor, dropout: float) -> Tensor:
    """Dropout's factor of each weight, read off the dropped weights."""
    return (weights != 0).double() / (1 - dropout)


@pytest.mark.parametrize("masks", ["none", "padding", "of each", "causal", "all"])
def test_with_dropout_facts_are_of_the_weights_that_made_the_output(way, masks):
    given = MASKS[masks]()
    inputs = [x.requires_grad_() for x in (*heads(), *([given["bias"]] if "bias" in given else []))]
    q, k, v = inputs[:3]
    found = facts(*observe(q, k, v, dropout=0.4, want=EVERYTHING, **given))
    w = found["weights"]
    if masks == "none":
        assert 0.3 < (w == 0).double().mean() < 0.5
    # As whoever reads them would have it:
    assert_close(found["output"], w @ v)
    assert_close(found["received"], w.sum(2))
    assert_close(found["head_mean"], w.mean(1))
    assert_close(found["rows"], w[:, [2, 0]][:, :, [4, -1, 0, 4]])
    assert_close(found["top"], w.topk(3).values)
    # And all, with gradients, by the definitions:
    expected = explicit(q, k, v, EVERYTHING, stays=what_stays(w.detach(), 0.4), **given)
    assert_close(found, expected)
    towards = [torch.randn_like(x) for x in numbers(expected).values()]
    grads = torch.autograd.grad(list(numbers(found).values()), inputs, towards)
    assert_close(grads, torch.autograd.grad(list(numbers(expected).values()), inputs, towards))


def test_the_same_weights_are_dropped_whatever_is_wanted(way):
    q, k, v = heads()
    found = []
    for want in (NOTHING, EVERYTHING, Want(entropy=True)):
        torch.manual_seed(3)
        found.append(observe(q, k, v, dropout=0.5, want=want)[0])
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


def test_checkpointing_drops_the_same_weights_again(either):
    q, k, v = (x.requires_grad_() for x in heads())

    def loss(*qkv: Tensor) -> Tensor:
        output, seen = observe(*qkv, dropout=0.5, want=Want(received=True))
        return output.square().sum() + seen.received.square().sum()

    torch.manual_seed(3)
    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    torch.manual_seed(3)
    again = torch.utils.checkpoint.checkpoint(loss, q, k, v, use_reentrant=False)
    assert_close(torch.autograd.grad(again, (q, k, v)), expected)


def test_gradients_of_gradients_with_dropout(way):
    q, k, v = (x.requires_grad_() for x in heads())
    keep = padding()
    found = facts(*observe(q, k, v, keep=keep, dropout=0.4, want=EVERYTHING))
    expected = explicit(q, k, v, EVERYTHING, keep=keep, stays=what_stays(found["weights"].detach(), 0.4))
    both = []
    for facts_found in (found, expected):
        loss = sum(facts_found[name].square().sum() for name in ("output", "entropy", "received", "top"))
        (grad,) = torch.autograd.grad(loss, q, create_graph=True)
        both.append(torch.autograd.grad(grad.square().sum(), (q, k, v)))
    assert_close(both[0], both[1])


# Empty inputs


@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(0, Q, K), (B, 0, K), (B, Q, 0), (B, 0, 0)])
@pytest.mark.parametrize("masked", [True, False])
def test_empty_inputs(batch, q_len, k_len, masked):
    q, k, v = (torch.randn(batch, H, n, w, requires_grad=True) for n, w in ((q_len, D), (k_len, D), (k_len, V)))
    want = Want(
        entropy=True,
        received=True,
        distance=True,
        lse=True,
        top=min(k_len, 3),
        rows=(0,) if q_len else (),
        pooled=2,
        pooled_heads=2,
        head_mean=True,
        weights=True,
    )
    keep = torch.ones(batch, 1, q_len, k_len, dtype=torch.bool) if masked else None
    output, seen = observe(q, k, v, keep=keep, want=want)
    assert output.shape == (batch, H, q_len, V)
    assert seen.entropy.shape == seen.distance.shape == seen.lse.shape == (batch, H, q_len)
    assert seen.received.shape == (batch, H, k_len)
    assert seen.weights.shape == (batch, H, q_len, k_len)
    assert seen.head_mean.shape == (batch, q_len, k_len)
    assert seen.pooled.shape == (batch, min(2, q_len), min(2, k_len))
    assert seen.pooled_heads.shape == (batch, H, min(2, q_len), min(2, k_len))
    if k_len:
        assert seen.top.keys.shape == (batch, H, q_len, 3)
    else:
        assert (output == 0).all()
        assert (seen.entropy == 0).all()
        assert (seen.distance == 0).all()
        assert (seen.lse == -torch.inf).all()
    if q_len:
        assert seen.rows.shape == (batch, H, 1, k_len)
    assert repr(seen).startswith(f"Observation of a batch of {batch}")
    (output.sum() + seen.entropy.sum() + seen.received.sum()).backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all()


# Anything


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """One call: sizes, masks, what is wanted, and the size of its blocks."""
    k_len = draw(st.integers(1, 9))
    causal = draw(st.booleans())
    q_len = draw(st.integers(1, k_len if causal else 9))
    kept = draw(st.integers(1, 3))
    heads_ = kept * draw(st.integers(1, 3))
    batch = draw(st.integers(1, 3))
    shapes = [
        tuple(n if draw(st.booleans()) else 1 for n in (batch, heads_, q_len)) if draw(st.booleans()) else None
        for _ in range(2)
    ]
    queries, of_heads = st.integers(-q_len, q_len - 1), st.integers(-heads_, heads_ - 1)
    rows = tuple(draw(st.lists(queries, max_size=3)))
    flags = ("entropy", "received", "distance", "lse", "head_mean", "weights")
    return {
        "sizes": (batch, heads_, kept, q_len, k_len),
        "causal": causal,
        "keep": shapes[0],
        "bias": shapes[1],
        "share_open": draw(st.sampled_from([0.0, 0.4, 0.9])),
        "scale": draw(st.sampled_from([None, None, 0.3])),
        "dropout": draw(st.sampled_from([0.0, 0.0, 0.4])),
        "want": dict(
            **{name: draw(st.booleans()) for name in flags},
            top=draw(st.integers(0, k_len)),
            rows=rows,
            row_heads=tuple(draw(st.lists(of_heads, min_size=1, max_size=3))) if rows and draw(st.booleans()) else None,
            pooled=draw(st.integers(0, 10)),
            pooled_heads=draw(st.integers(0, 10)),
        ),
        "budget": draw(st.sampled_from([None, 1, 1000, 4000])),
        "block_rows": draw(st.sampled_from([1, 2, 128])),
        "plain": draw(st.sampled_from([True, False, False])),
        "dtype": draw(st.sampled_from([torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16])),
        "seed": draw(st.integers(0, 1000)),
    }


# The long test of this file, some 10 s: it stands for tables of lengths, masks, dtypes, wishes and block sizes.
@settings(max_examples=CASES, deadline=None)
@given_any(case=cases())
def test_anything_is_as_the_definitions_say(case):
    batch, heads_, kept, q_len, k_len = case["sizes"]
    dtype, want, dropout = case["dtype"], Want(**case["want"]), case["dropout"]
    torch.manual_seed(case["seed"])
    shapes = (batch, heads_, q_len, D), (batch, kept, k_len, D), (batch, kept, k_len, V)
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    masks: dict[str, Any] = {"causal": case["causal"], "scale": case["scale"]}
    if case["keep"]:
        masks["keep"] = some(*case["keep"], k_len, share=case["share_open"])
    if case["bias"]:
        masks["bias"] = torch.randn(*case["bias"], k_len).to(dtype).requires_grad_()
        inputs.append(masks["bias"])

    def run(asked: Want) -> tuple[Tensor, Observation]:
        torch.manual_seed(case["seed"])
        return observe(*inputs[:3], **masks, dropout=dropout, want=asked, budget=case["budget"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "BLOCKS_FROM_SCORES", 10**9 if case["plain"] else 0)
        patch.setattr(choose, "BLOCK_ROWS", case["block_rows"])
        found = facts(*run(want))
        stays = 1.0
        if dropout:
            # In float64 no weight is zero but what was dropped or blocked; the numbers drawn are the same.
            full = observe(*inputs[:3], **masks, want=Want(weights=True, entropy=True))[1].weights
            weights = run(replace(want, weights=True, entropy=True))[1].weights
            stays = ((weights != 0) | (full == 0)).double() / (1 - dropout)
        expected = explicit(*inputs[:3], want, **masks, stays=stays)
        assert set(found) == set(expected)
        keys, expected_keys = found.pop("top_keys", None), expected.pop("top_keys", None)
        if keys is not None:
            assert torch.equal(keys < 0, expected_keys < 0)
            if dtype == torch.float64:
                assert torch.equal(keys, expected_keys)
        maps_alone = set(want.asked) <= {"head_mean", "weights"}
        for name, exact in expected.items():
            like_inputs = name in ("output", "head_mean", "weights")
            assert found[name].dtype == (dtype if like_inputs else torch.promote_types(dtype, torch.float32))
            half = dtype.itemsize == 2 and (like_inputs or maps_alone)
            close = 3e-2 if half else {torch.float64: 1e-10}.get(dtype, 1e-5)
            assert_close(found[name].double(), exact, atol=close, rtol=close, msg=lambda s, n=name: f"{n}: {s}")
        towards = [torch.randn_like(x) for x in expected.values()]
        grads = torch.autograd.grad(
            list(found.values()), inputs, [t.to(x.dtype) for t, x in zip(towards, found.values(), strict=True)]
        )
        exact_grads = torch.autograd.grad(list(expected.values()), inputs, towards)
        for grad, exact in zip(grads, exact_grads, strict=True):
            close = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}[dtype]
            assert grad.dtype == dtype
            assert_close(grad.double(), exact.double(), atol=close * max(1.0, exact.abs().max().item()), rtol=0)


# Errors


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
    r"top must be at most the number of keys, 13, got 14": lambda q, k, v: {"want": Want(top=14)},
    r"rows must be among the 11 queries, 0 to 10, got 11": lambda q, k, v: {"want": Want(rows=(0, 11))},
    r"rows must be among the 11 queries, 0 to 10, got -12": lambda q, k, v: {"want": Want(rows=-12)},
    r"row_heads must be among the 3 heads, 0 to 2, got 3": lambda q, k, v: {"want": Want(rows=0, row_heads=3)},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_explained(message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # our own checks, not the test suite's
    right = dict(zip("qkv", heads(dtype=torch.float32), strict=True))
    given = right | WRONG[message](**right)
    q, k, v = (given.pop(name) for name in "qkv")
    with pytest.raises(ArgumentError, match=message):
        observe(q, k, v, **given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("want", [NOTHING, Want(head_mean=True)], ids=["output", "head mean"])
def test_half_precision_takes_a_bias_beyond_its_range(either, dtype, want):
    q, k, v = heads(dtype=dtype)
    bias = torch.zeros(1, 1, Q, K)
    bias[:, :, 2] = -1e9 if dtype == torch.float16 else torch.finfo(torch.float32).min
    output, seen = observe(q, k, v, bias=bias, want=want)
    assert output.isfinite().all()
    if want.head_mean:
        assert_close(seen.head_mean.sum(-1).float(), torch.ones(B, Q), atol=0.02, rtol=0)


def test_an_expanded_bias_is_kept_as_small_as_it_is(monkeypatch):
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    q, k, v = (x.requires_grad_() for x in heads())
    bias = torch.randn(1, 1, 1, K, dtype=torch.float64).expand(B, H, Q, K)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        observe(q, k, v, bias=bias, want=NOTHING)
    assert K in kept
    assert B * H * Q * K not in kept


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": torch.nn.Parameter(torch.ones(()))}, "scale must be a number, got Parameter: one that learns can"),
        ({"want": "entropy"}, "want must be a Want, got 'entropy'"),
        ({"budget": 1e6}, "budget must be a whole number of bytes above 0, got 1000000.0"),
        (
            {"keep": torch.ones(1, 1, 1, K, dtype=torch.bool, device="meta")},
            "keep must be where q is, on cpu, got meta",
        ),
    ],
)
def test_other_wrong_arguments_are_explained(given, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # our own checks, not the test suite's
    with pytest.raises(ArgumentError, match=message):
        observe(*heads(), **given)
