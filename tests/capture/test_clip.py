"""Clipping queries and keys: it bounds the scores, in a training too, and touches nothing else."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import identity
from torch.testing import assert_close

from glassformer import MultiheadAttention, Want, capture, watch
from glassformer.capture.clip import qk_clip
from glassformer.capture.sightings import Figures
from glassformer.errors import ArgumentError

B, L, H, E = 2, 7, 3, 24
SCORES = Want(max_score=True)
KINDS = {
    "ours": lambda: MultiheadAttention(E, H, batch_first=True),
    "torch's": lambda: nn.MultiheadAttention(E, H, batch_first=True),
    "separate": lambda: nn.MultiheadAttention(E, H, kdim=E, vdim=11, batch_first=True),
    "further keys": lambda: nn.MultiheadAttention(E, H, bias=False, add_bias_kv=True, batch_first=True),
}


def inputs(attention: nn.MultiheadAttention) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(B, L, E)
    return x, x, x[..., : attention.vdim]


def scores(attention: nn.MultiheadAttention, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    with torch.no_grad(), capture(attention, SCORES) as seen:
        attention(*given)
    return seen[""].max_score.amax((0, 2))


def seen_in(attention: nn.MultiheadAttention, given: tuple[Tensor, Tensor, Tensor]) -> Figures:
    with watch(attention, want=SCORES) as seen:
        attention(*given)
        return seen.log(0).figures


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_clipped_heads_are_at_the_threshold_and_of_others_as_before(kind):
    attention = KINDS[kind]()
    if attention.in_proj_bias is not None:
        nn.init.normal_(attention.in_proj_bias)
    given = inputs(attention)
    before = scores(attention, given)
    threshold = float(before.median())  # the largest of three heads is above it
    clipped = qk_clip(attention, seen_in(attention, given), threshold)
    highest = int(before.argmax())
    assert clipped == {"": [highest]}
    assert_close(scores(attention, given), before.clamp(max=threshold))


@pytest.mark.parametrize("make", [lambda m: weight_norm(m, "in_proj_weight"), lambda m: identity(m, "in_proj_weight")])
@pytest.mark.parametrize("kind", ["ours", "torch's"])
def test_weights_that_each_call_makes_anew_are_refused_before_any_are_changed(kind, make):
    model = nn.ModuleDict({"plain": KINDS[kind](), "made": make(KINDS[kind]())})
    before = {name: x.clone() for name, x in model.state_dict().items()}
    seen = {name: {"max_score": [9.0, 1.0, 4.0]} for name in model}
    with pytest.raises(ArgumentError, match=r"can't scale in_proj_weight of made, which is made from other weights"):
        qk_clip(model, seen, 4.0)
    assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_values_and_outputs_are_left_alone():
    attention = KINDS["ours"]()
    before = {name: x.detach().clone() for name, x in attention.named_parameters()}
    qk_clip(attention, {"": {"max_score": [9.0, 1.0, 4.0]}}, 4.0)
    weight, old = attention.in_proj_weight.detach().view(3, H, -1), before["in_proj_weight"].view(3, H, -1)
    assert_close(weight[:2, 0], old[:2, 0] * (2 / 3))
    assert_close(weight[:2, 1:], old[:2, 1:])
    assert_close(weight[2], old[2])
    assert_close(attention.out_proj.weight, before["out_proj.weight"])


def test_a_step_that_was_not_looked_at_clips_nothing():
    attention = KINDS["ours"]()
    before = attention.in_proj_weight.detach().clone()
    assert qk_clip(attention, None, 1e-6) == {}
    assert torch.equal(attention.in_proj_weight, before)


def train(attention: MultiheadAttention, threshold: float | None) -> list[float]:
    """Pull the scores up for 30 steps, and return the largest after each."""
    x = torch.randn(B, L, E)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.3)
    largest: list[float] = []
    with watch(attention, every=1, want=SCORES, alarm=lambda _: None) as seen:
        for step in range(30):
            optimizer.zero_grad()
            q, k, _ = attention.project(x)
            attention(x, x, x)
            (-(q @ k.mT).square().mean()).backward()
            torch.nn.utils.clip_grad_norm_(attention.parameters(), 1.0)
            optimizer.step()
            sighting = seen.log(step)
            if threshold is not None:
                qk_clip(attention, sighting, threshold)
            largest.append(float(highest_score(attention, x)))
    return largest


def highest_score(attention: MultiheadAttention, x: Tensor) -> Tensor:
    """The largest score, computed by hand, for the attention is being watched."""
    with torch.no_grad():
        q, k, _ = attention.project(x)
    return (q @ k.mT).max() / (E // H) ** 0.5


def test_scores_of_a_training_stay_bounded():
    torch.manual_seed(3)
    free = train(MultiheadAttention(E, H, batch_first=True), None)
    torch.manual_seed(3)
    bounded = train(MultiheadAttention(E, H, batch_first=True), 10.0)
    assert free[-1] > 60
    # A step is clipped by the scores before it, so they are above by what one step adds.
    assert max(bounded) < 15
    assert bounded[-1] > 5


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_clipped_is_refused():
    attention = KINDS["ours"]()
    with pytest.raises(ArgumentError, match=r"threshold must be a score above 0, got 0: 100\.0, say"):
        qk_clip(attention, {}, 0)
    with pytest.raises(ArgumentError, match=r"seen must have max_score, got entropy: watch\(want="):
        qk_clip(attention, {"": {"entropy": [0.5] * H}})
    with pytest.raises(ArgumentError, match=rf"seen must be of this model, got 1 heads of '', which has {H}"):
        qk_clip(attention, {"": {"max_score": [500.0]}})
    with pytest.raises(ArgumentError, match=r"seen must be what log\(step\) returned, got <.*Watch.*: qk_clip\(model"):
        qk_clip(attention, watch(attention))
    with pytest.raises(ArgumentError, match=r"got 'layers\.0': is it of another model"):
        qk_clip(attention, {"layers.0": {"max_score": [500.0]}})
