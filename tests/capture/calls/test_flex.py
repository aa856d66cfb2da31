"""flex_attention: any change of the scores and any mask, eager and compiled, and gradients of what changes them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from glassformer import Want, capture
from glassformer.capture.calls.flex import compute_flex
from glassformer.errors import ArgumentError

B, H, Q, K, D, V = 2, 3, 5, 7, 11, 13  # distinct primes: a swapped axis cannot pass
I, J = torch.arange(Q)[:, None], torch.arange(K)
POINTS = torch.randn(K, 2)
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 2, 2]])
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")


class Flex(nn.Module):
    """Calls flex_attention; the slopes are what its change of the scores refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.randn(H))

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        return flex_attention(*arguments, **settings)


def near(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.tanh(score) - (POINTS[i] - POINTS[j]).norm()  # no elementwise function of the indices


def not_next(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(j == i + 1, -math.inf, score)


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def same_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return DOCUMENTS[b, i] == DOCUMENTS[b, j]


CASES: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "plain": ({}, lambda scores: scores),
    "scale": ({"scale": 0.1}, lambda scores: scores * math.sqrt(D) * 0.1),
    "soft cap and distance": (
        {"score_mod": near},
        lambda scores: scores.tanh() - (POINTS[:Q, None] - POINTS).norm(dim=-1),
    ),
    "a score that blocks": ({"score_mod": not_next}, lambda scores: scores.masked_fill(J == I + 1, -math.inf)),
    "mask": ({"mask": causal}, lambda scores: scores.masked_fill(J > I, -math.inf)),
    "mask by entry": (
        {"mask": same_document},
        lambda scores: scores.masked_fill(DOCUMENTS[:, None, :Q, None] != DOCUMENTS[:, None, None], -math.inf),
    ),
    "grouped": ({"enable_gqa": True}, lambda scores: scores),
}


@pytest.mark.parametrize("name", CASES)
def test_every_change_of_the_scores(name):
    settings, change = CASES[name]
    settings = dict(settings)
    if mask := settings.pop("mask", None):
        settings["block_mask"] = create_block_mask(mask, B, None, Q, K, device="cpu")
    heads = 2 * H if "enable_gqa" in settings else H
    q, k, v = torch.randn(B, heads, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, V)
    model = Flex()
    with torch.no_grad():
        with capture(model, Want(weights=True, lse=True, max_score=True, entropy=True)) as captured:
            output, statistics = model(q, k, v, **settings, return_aux=AuxRequest(lse=True))
        k, v = (x.repeat_interleave(heads // H, 1) for x in (k, v))
        scores = change(q @ k.mT / math.sqrt(D))
    assert_close(output, scores.softmax(-1) @ v)
    one = captured[""]
    assert_close(one.weights, scores.softmax(-1))
    assert_close(one.lse, scores.logsumexp(-1))
    assert_close(one.max_score, scores.amax(-1))
    assert_close(statistics.lse, scores.logsumexp(-1))


@pytest.mark.parametrize("full", [False, True])
@torch.no_grad()
def test_blocks_that_are_not_listed_are_skipped(full):
    """As torch's kernels do; its eager form computes them."""
    q, k, v = torch.randn(B, H, 5, D), torch.randn(B, H, 7, D), torch.randn(B, H, 7, V)
    count, indices = (
        torch.tensor([[[1, 2, 3]]]).int(),
        torch.tensor([[[[1, 0, 0, 0], [3, 0, 0, 0], [0, 1, 2, 0]]]]).int(),
    )
    second = (torch.tensor([[[1, 0, 0]]]).int(), torch.tensor([[[[0, 0, 0, 0]] * 3]]).int()) if full else (None, None)
    mask = BlockMask.from_kv_blocks(
        count, indices, *second, BLOCK_SIZE=2, mask_mod=lambda b, h, i, j: j > 0, seq_lengths=(5, 7)
    )
    keep = torch.zeros(6, 8, dtype=torch.bool)
    for row, columns in enumerate([[1], [0, 3], [0, 1, 2]]):
        for column in columns:
            keep[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = True
    keep[:, 0] = False
    keep[:2, :2] |= full
    keep = keep[:5, :7]
    model = Flex()
    with capture(model, Want(weights=True)) as captured:
        output = model(q, k, v, block_mask=mask)
    weights = (q @ k.mT / math.sqrt(D)).masked_fill(~keep, -math.inf).softmax(-1)
    assert_close(captured[""].weights, weights)
    assert_close(output, weights @ v)


@torch.no_grad()
def test_outputs_are_torchs_eager_and_compiled_and_layers_can_be_left_out():
    q, k, v = torch.randn(B, H, Q, D), torch.randn(1, H, K, D).expand(B, -1, -1, -1), torch.randn(B, H, K, V)
    model = nn.ModuleDict({"eager": Flex(), "other": Flex()})
    plain = model.eager(q, k, v, near)
    compiled = torch.compile(flex_attention, backend="eager")

    class Compiled(nn.Module):
        def forward(self) -> Tensor:
            return compiled(q, k, v, near)

    model["compiled"] = Compiled()
    assert_close(model.compiled(), plain)
    with capture(model, layers=["eager", "compiled"]) as captured:
        for output in (model.eager(q, k, v, near), model.other(q, k, v, near), model.compiled()):
            assert_close(output, plain)
    assert list(captured) == ["eager", "compiled"]
    assert_close(captured["compiled"].entropy, captured["eager"].entropy)


@torch.no_grad()
def test_a_capture_inside_another_sees_its_own_model():
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, V)
    outer, inner = Flex(), Flex()
    with capture(outer) as of_outer, capture(inner) as of_inner:
        assert_close(outer(q, k, v, near), inner(q, k, v, near))
    assert len(of_outer.calls("")) == len(of_inner.calls("")) == 1


def test_half_precision_and_autocast():
    q, k, v = (torch.randn(B, H, Q, D) for _ in range(3))
    model = Flex()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), capture(model, Want(weights=True)) as captured:
        assert model(q, k, v).dtype == torch.bfloat16
    assert_close(captured[""].weights, (q @ k.mT / math.sqrt(D)).softmax(-1), rtol=0.02, atol=0.02)


def test_a_checkpointed_function_is_refused():
    q = torch.randn(B, H, Q, D)

    class Again(Flex):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(flex_attention, x, x, x, use_reentrant=False)

    model = Again()
    message = (
        r"model gives a checkpoint a function that calls flex_attention, which can't be recorded: give it a module"
    )
    with capture(model) as captured, pytest.raises(ArgumentError, match=message):
        model(q)
    assert not captured


@torch.no_grad()
def test_layers_of_another_kind_leave_it_as_it_is():
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, V)
    model = nn.ModuleDict({"known": nn.MultiheadAttention(4, 2), "flex": Flex()})
    plain = model.flex(q, k, v, near)
    with capture(model, layers="known") as captured:
        assert_close(model.flex(q, k, v, near), plain)
    assert not captured


def test_gradients_reach_what_the_change_refers_to():
    q, k, v = (torch.randn(B, H, Q, D, requires_grad=True) for _ in range(3))
    slopes = torch.randn(H, requires_grad=True)

    def sloping(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j).abs()

    mask = create_block_mask(causal, None, None, Q, Q, device="cpu").as_tuple()
    inputs, away = (q, k, v, slopes), (torch.arange(Q)[:, None] - torch.arange(Q)).abs()
    output, lse, largest = compute_flex(q, k, v, sloping, mask, 0.25, {})
    scores = (q @ k.mT * 0.25 - slopes[:, None, None] * away).masked_fill(torch.arange(Q) > I, -math.inf)
    assert_close(lse * math.log(2), scores.logsumexp(-1))
    assert_close(largest * math.log(2), scores.amax(-1))
    expected = torch.autograd.grad((scores.softmax(-1) @ v).square().sum(), inputs)
    assert_close(torch.autograd.grad(output.square().sum(), inputs), expected)
