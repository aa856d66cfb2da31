"""The compiled form against definitions in float64, over several tiles, blocks and threads; its gradients, and when it
is used. Small inputs of every kind are in test_observe.py."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.plain import observe_plainly
from glassformer.attention.observe import observe
from glassformer.attention.want import NOTHING, Want

pytestmark = pytest.mark.skipif(not choose.compiler_is_there(), reason="numba isn't installed, or there is no FMA here")

B, H, KEPT, D, V = 2, 6, 3, 11, 37  # queries and keys are drawn
FACTS = Want(entropy=True, received=True, distance=True, lse=True, max_score=True, sink=3, top=5)
PUSHING = ("output", "entropy", "received", "distance", "lse", "max_score", "sink", "top", "rows", "head_mean")


@pytest.fixture(autouse=True)
def _whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    monkeypatch.setattr(choose, "COMPILED_FROM_SCORES", 0)
    monkeypatch.setattr(choose, "COMPILED_MEANS_FROM_KEYS", 0)


def heads(q_len: int, k_len: int) -> list[Tensor]:
    """Queries, keys and values as projections leave them: views, not contiguous. Pairs of heads share keys."""
    shapes = (B, q_len, H, D), (B, k_len, KEPT, D), (B, k_len, KEPT, V)
    return [torch.randn(shape).transpose(1, 2).requires_grad_() for shape in shapes]


def masks(kind: str, q_len: int, k_len: int) -> dict[str, Any]:
    if kind == "padding":
        keys = torch.arange(k_len)
        return {"keep": torch.stack([(keys > 2) & (keys < k_len - 5), keys < 3])[:, None, None]}
    if kind == "of each":
        keep = torch.rand(B, 1, q_len, k_len) < 0.3
        keep[0, 0, q_len // 2] = False
        return {"keep": keep, "bias": torch.randn(1, H, 1, k_len).expand(B, H, q_len, k_len)}
    return {}


def exact(q: Tensor, k: Tensor, v: Tensor, want: Want, **given: Any) -> dict[str, Tensor]:
    """The output and facts in float64, from plain operations, which test_observe.py compares with the definitions."""
    causal = given.pop("causal", False)
    bias = given.pop("bias", None)
    problem = Problem(
        *(x.double() for x in (q, k, v)),
        keep=given.pop("keep", None),
        bias=None if bias is None else bias.double(),
        causal=causal,
        scale=1 / math.sqrt(D),
        dtype=torch.float64,
    )
    output, facts = observe_plainly(problem, want)
    return {"output": output, **facts}


def compiled(q: Tensor, k: Tensor, v: Tensor, want: Want, **given: Any) -> dict[str, Tensor]:
    assert choose.compiled_fits(q, k, v, given.get("bias"), want, 0.0, given.get("budget"))
    output, seen = observe(q, k, v, want=want, **given)
    assert type(output.grad_fn).__name__ in ("_AttendCompiledBackward", "NoneType")  # the latter without gradients
    return {"output": output, **seen.tensors()}


# Several tiles of 288 keys and blocks of queries; some 0.1 s each.
@settings(max_examples=25, deadline=None)
@given(
    k_len=st.sampled_from([1, 7, 287, 288, 289, 577, 701]),
    q_len=st.integers(1, 61),
    rows=st.sampled_from([6, 12, 96]),
    threads=st.sampled_from([1, 2, 5]),
    kind=st.sampled_from(["none", "padding", "of each"]),
    causal=st.booleans(),
    means=st.booleans(),
    chooses=st.booleans(),
    sink=st.sampled_from([1, 4, 290]),
    pushing=st.sampled_from(["all", *PUSHING]),
)
def test_facts_and_gradients_over_many_tiles(k_len, q_len, rows, threads, kind, causal, means, chooses, sink, pushing):
    q_len = min(q_len, k_len) if causal else q_len
    inputs = heads(q_len, k_len)
    want = replace(FACTS, top=min(5, k_len), sink=min(sink, k_len), head_mean=means or pushing == "head_mean")
    if chooses or pushing == "rows":  # in any order, one of them twice
        want = replace(want, rows=(-1, 0, q_len // 2, -1), row_heads=None if means else (4, -6, 4))
    mask = {**masks(kind, q_len, k_len), "causal": causal}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "COMPILED_ROWS", rows)
        patch.setattr(choose, "compiled_threads", lambda: (threads, 3 * threads))
        found = compiled(*inputs, want, **mask)
        expected = exact(*inputs, want, **mask)
        keys, expected_keys = found.pop("top_keys"), expected.pop("top_keys")
        assert torch.equal(keys < 0, expected_keys < 0)
        assert (keys == expected_keys).double().mean() > 0.99  # but for ties in float32
        for name, x in expected.items():
            assert_close(found[name].double(), x, atol=2e-6, rtol=2e-6, msg=lambda words, n=name: f"{n}: {words}")
        pushed = [name for name in expected if pushing in ("all", name)]
        towards = [torch.randn_like(found[name]).where(found[name].isfinite(), 0.0) for name in pushed]
        grads = torch.autograd.grad([found[name] for name in pushed], inputs, towards, materialize_grads=True)
    doubled = [x.double() for x in towards]
    exact_grads = torch.autograd.grad([expected[name] for name in pushed], inputs, doubled, materialize_grads=True)
    if not torch.equal(keys, expected_keys) and pushing in ("all", "top"):
        return  # two equal weights in another order have each other's gradients
    for grad, x in zip(grads, exact_grads, strict=True):
        assert_close(grad, x, atol=2e-5 * max(1.0, x.abs().max().item()), rtol=0)


@pytest.mark.parametrize("means", [False, True])
def test_threads_give_the_same_bits_every_time(means, monkeypatch):
    monkeypatch.setattr(choose, "compiled_threads", lambda: (3, 12))
    monkeypatch.setattr(choose, "COMPILED_ROWS", 12)
    inputs = heads(301, 577)

    def run() -> list[Tensor]:
        want = replace(FACTS, head_mean=means, rows=(300, 2))
        found = compiled(*inputs, want, keep=masks("padding", 301, 577)["keep"])
        loss = sum(found[name].square().sum() for name in ("output", "received", "entropy", "rows"))
        if means:
            loss = loss + found["head_mean"].square().sum()
        return [*found.values(), *torch.autograd.grad(loss, inputs)]

    first = run()
    for _ in range(5):
        assert all(map(torch.equal, first, run()))


@pytest.mark.parametrize("masked", [False, True])
def test_scores_too_low_for_float32_give_nan_as_softmax_does(masked):
    q, k, v = (torch.ones(1, 1, 7, D) for _ in range(3))
    keep = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    keep[:, :, 2] = False
    output, seen = observe(q * 1e30, k * -1e30, v, keep=keep if masked else None, want=FACTS)
    assert torch.softmax(torch.full((3,), -math.inf), -1).isnan().all()
    assert seen.received.isnan().all()
    for fact in (output, seen.entropy, seen.distance, seen.sink, seen.top.weights):
        of_query = fact.view(7, -1)
        assert of_query[[0, 1, 3, 4, 5, 6]].isnan().all()
        assert (of_query[2] == 0).all() if masked else of_query[2].isnan().all()


@pytest.mark.parametrize(("threads", "pieces"), [(1, 1), (2, 8)])
def test_a_nan_stays_in_its_row(threads, pieces, monkeypatch):
    monkeypatch.setattr(choose, "compiled_threads", lambda: (threads, pieces))
    q, k, v = (x.detach().clone() for x in heads(50, 300))
    clean = compiled(q, k, v, FACTS)
    q[1, 2, 33] = torch.nan
    found = compiled(q, k, v, FACTS)
    here = torch.zeros(B, H, 50, dtype=torch.bool)
    here[1, 2, 33] = True
    for name in ("output", "entropy", "distance", "lse", "max_score", "sink", "top"):
        assert found[name][here].isnan().all()
        assert torch.equal(found[name][~here], clean[name][~here]), name
    assert found["received"][1, 2].isnan().all()
    found["received"][1, 2] = clean["received"][1, 2]
    assert torch.equal(found["received"], clean["received"])


def test_a_nan_spoils_the_mean_of_its_query_alone(monkeypatch):
    monkeypatch.setattr(choose, "compiled_threads", lambda: (2, 8))
    q, k, v = (x.detach().clone() for x in heads(50, 300))
    clean = compiled(q, k, v, Want(head_mean=True))["head_mean"]
    q[1, 2, 33] = torch.nan
    found = compiled(q, k, v, Want(head_mean=True))["head_mean"]
    assert found[1, 33].isnan().all()
    found[1, 33] = clean[1, 33]
    assert torch.equal(found, clean)


def test_the_mean_over_heads_does_not_depend_on_threads(monkeypatch):
    inputs = [x.detach() for x in heads(301, 577)]
    means = []
    for threads, number in ((1, 1), (2, 8), (3, 40)):
        monkeypatch.setattr(choose, "compiled_threads", lambda of=(threads, number): of)
        means.append(compiled(*inputs, Want(head_mean=True), causal=True)["head_mean"])
    assert torch.equal(means[0], means[1])
    assert torch.equal(means[0], means[2])


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"want": NOTHING}, True),
        ({"want": Want(top=64)}, True),
        ({"want": Want(entropy=True, max_score=True, sink=1)}, True),
        ({"want": Want(mass=torch.ones(1, 1, 1, 7, dtype=torch.bool))}, False),
        ({"want": Want(top=65)}, False),
        ({"want": Want(entropy=True, head_mean=True)}, True),
        ({"want": Want(entropy=True, weights=True)}, False),
        ({"dropout": 0.1}, False),
        ({"budget": 1 << 30}, False),
        ({"bias": torch.zeros(1, 1, 1, 7)}, True),
        ({"bias": torch.zeros(1, 1, 1, 7, requires_grad=True)}, False),
        ({"bias": torch.zeros(1, 1, 1, 7, dtype=torch.bfloat16)}, False),
        ({"dtype": torch.float64}, False),
        ({"dtype": torch.bfloat16}, False),
        ({"device": "meta"}, False),
    ],
)
def test_what_is_left_to_the_blocks(changes, fits):
    given = {"bias": None, "want": FACTS, "dropout": 0.0, "budget": None, **changes}
    like = {name: given.pop(name) for name in ("dtype", "device") if name in given}
    q, k = torch.zeros(1, 1, 5, D, **like), torch.zeros(1, 1, 7, D, **like)
    assert choose.compiled_fits(q, k, k, **given) == fits


def test_small_inputs_and_a_missing_numba_are_left_to_the_blocks(monkeypatch):
    q = torch.zeros(1, 1, 5, D)
    given = (None, FACTS, 0.0, None)
    monkeypatch.setattr(choose, "COMPILED_FROM_SCORES", 25)
    assert choose.compiled_fits(q, q, q, *given)
    assert not choose.compiled_fits(q[:, :, 1:], q, q, *given)
    monkeypatch.setattr(choose, "COMPILED_MEANS_FROM_KEYS", 6)
    assert not choose.compiled_fits(q, q, q, None, Want(head_mean=True), 0.0, None)
    monkeypatch.setattr(choose, "compiler_is_there", lambda: False)
    assert not choose.compiled_fits(q, q, q, *given)


def test_a_missing_numba_is_explained():
    code = "import sys; sys.modules['numba'] = None; import glassformer.attention.kernels.compiled.jit"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: compiled functions need numba: pip install 'glassformer[fast]'" in found.stderr


def test_observe_without_numba_takes_blocks():
    code = (
        "import sys, torch; sys.modules['numba'] = None\n"
        "from glassformer import observe; x = torch.ones(1, 4, 600, 8)\n"
        "print(observe(x, x, x)[1].entropy.exp().mean().round().item())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "600.0\n", found.stderr


def test_another_default_device_changes_nothing():
    q, k, v = (torch.randn(1, 4, 1100, 8) for _ in range(3))
    want = Want(received=True, top=3, head_mean=True, rows=(2,))
    expected = compiled(q, k, v, want)
    with torch.device("meta"):
        found = compiled(q, k, v, want)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
