"""The record: what fits the budget, what replaces the rest, and which calls become one Observation."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.capture.record import Captured, bytes_needed
from glassformer.errors import ArgumentError, GlassformerError


@pytest.fixture
def long(make) -> tuple[nn.Module, Tensor]:
    return make.encoder(dropout=0.0).eval(), torch.randn(1, 512, 24)


def captured_bytes(captured: Captured) -> int:
    return sum(x.numel() * x.element_size() for one in captured.values() for x in one.tensors().values())


@pytest.mark.parametrize(
    ("budget", "there", "missing"),
    [
        (8 << 20, {"weights"}, set()),
        (1 << 20, {"pooled_heads", "top", "entropy", "received"}, {"weights"}),
        (1 << 19, {"top", "entropy", "received"}, {"weights", "pooled_heads"}),
        (1 << 17, {"entropy", "received", "distance", "lse"}, {"weights", "pooled_heads", "top"}),
    ],
)
@torch.no_grad()
def test_facts_that_do_not_fit_the_budget_are_replaced(long, budget, there, missing):
    model, x = long
    with capture(model, Want(weights=True), budget=budget) as captured:
        model(x)
    assert captured_bytes(captured) <= budget
    for name in captured:
        asked = set(captured[name].want.asked)
        assert there <= asked
        assert not missing & asked
        assert (name in captured.dropped) == ("weights" in missing)
    if missing:
        words = captured.dropped["layers.0.self_attn"]
        assert words.startswith(
            f"weights would take 4.0 MiB, {budget / 2 / 1024:.1f} KiB are left: recorded instead are"
        )
        assert words in repr(captured)


@torch.no_grad()
def test_statistics_that_replace_maps_are_exact(long, everything):
    model, x = long
    with capture(model, everything) as whole, torch.random.fork_rng():
        model(x)
    with capture(model, everything, budget=1 << 20) as part:
        model(x)
    for name in whole:
        for fact in ("entropy", "received", "distance", "lse"):
            assert_close(getattr(part[name], fact), getattr(whole[name], fact))


@torch.no_grad()
def test_a_budget_too_small_for_statistics_is_an_error(long, state_of):
    model, x = long
    before = state_of(model)
    message = (
        r"budget must leave 32.0 KiB for the statistics of layers.0.self_attn, got 5.0 KiB for each of 2 .* 64.0 KiB"
    )
    with pytest.raises(ArgumentError, match=message), capture(model, Want(weights=True), budget=10 << 10):
        model(x)
    assert state_of(model) == before


def test_bytes_are_counted_as_they_are():
    attention = nn.MultiheadAttention(24, 3, batch_first=True)
    want = Want(
        **dict.fromkeys(("entropy", "received", "distance", "lse", "head_mean", "weights"), True),
        **{"top": 5, "rows": (0, 3), "row_heads": (1,), "pooled": 4, "pooled_heads": 6},
    )
    x, y = torch.randn(2, 13, 24), torch.randn(2, 17, 24)
    with torch.no_grad(), capture(attention, want) as captured:
        attention(x, y, y)
    assert captured_bytes(captured) == bytes_needed(want, 2, 3, 13, 17)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((2, 11, 11), (2, 7, 7)),
        ((2, 4, 4), (3, 1, 5)),  # the keys would fit, the batch doesn't
        ((2, 1, 1), (2, 1, 1)),
        ((2, 4, 9), (2, 3, 9)),
        ((2, 3, 5), (2, 2, 7)),  # two sources, of which the second is longer by as much as there are queries
        ((2, 6, 6), (2, 1, 4)),  # as the cache of a sliding window gives them
    ],
)
@torch.no_grad()
def test_calls_on_different_inputs_are_kept_apart(first, second):
    attention = nn.MultiheadAttention(24, 3, batch_first=True)
    with capture(attention) as captured:
        for batch, queries, keys in (first, second):
            memory: Any = torch.randn(batch, keys, 24)
            attention(torch.randn(batch, queries, 24), memory, memory)
    assert [call.entropy.shape[2] for call in captured.calls("")] == [first[1], second[1]]
    with pytest.raises(ArgumentError, match=r"was called 2 times on different inputs, .*: captured\.calls\("):
        _ = captured[""]
    assert "" in captured


class Pooled(nn.Module):
    """A layer, then attention of a single query to all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True)
        self.pool = nn.MultiheadAttention(24, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return self.pool(x[:, :1], x, x)[0]


@torch.no_grad()
def test_calls_of_a_head_that_pools_are_no_steps_of_generation():
    model = Pooled().eval()
    with capture(model) as captured:
        model(torch.randn(2, 7, 24))
        model(torch.randn(2, 7, 24))
    for name in captured:
        with pytest.raises(ArgumentError, match="was called 2 times on different inputs"):
            _ = captured[name]


@torch.no_grad()
def test_two_generations_are_kept_apart(make):
    model, inputs = make.family("marian")
    del inputs["decoder_input_ids"]
    for layers in (None, "*.encoder_attn"):
        with capture(model, layers=layers) as captured:
            for _ in range(2):
                model.generate(**inputs, max_new_tokens=5, min_new_tokens=5, do_sample=False)
        name = "model.decoder.layers.0.encoder_attn"
        assert len(captured.calls(name)) == 10
        for first in (captured.calls(name)[0], captured.calls(name)[5]):  # it has what all its steps receive
            assert_close(first.received.sum(-1), torch.full((2, 3), 5.0))
        with pytest.raises(ArgumentError, match="was called 10 times on different inputs"):
            _ = captured[name]


@torch.no_grad()
def test_steps_of_generation_are_joined_with_every_fact():
    attention = nn.MultiheadAttention(24, 3, batch_first=True)
    x = torch.randn(2, 7, 24)
    aligned = torch.eye(7, dtype=torch.bool)[None]
    numbers = dict.fromkeys(("entropy", "received", "lse", "max_score"), True)
    mass = {"mass": torch.arange(7)[None, None, None] % 2 == 0}
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    with capture(attention, Want(**numbers, **mass, sink=2, agreement=aligned)) as whole:
        attention(x, x, x, attn_mask=causal, is_causal=True)
    with capture(attention, Want(**numbers, **mass, sink=2, agreement=aligned)) as steps:
        attention(x[:, :5], x[:, :5], x[:, :5], attn_mask=causal[:5, :5])
        for n in (6, 7):
            attention(x[:, n - 1 : n], x[:, :n], x[:, :n])
    facts = steps[""].tensors()
    assert facts.keys() == {*numbers, "sink"}  # the masks are for the last step's length alone
    for name in facts:
        assert_close(facts[name], whole[""].tensors()[name])


def test_an_unknown_path_is_a_key_error_that_names_the_others(make):
    with capture(make.encoder()) as captured:
        assert repr(captured) == "Captured 0 attentions"
        for kind in (KeyError, GlassformerError):
            with pytest.raises(
                kind,
                match=r"^nothing was captured of 'x': no attention was called, so there is none to choose: call "
                r"the model inside the context$",
            ):
                captured.calls("x")
            with pytest.raises(kind, match=r"^layers.0.self_attn was not called: call the model inside the context$"):
                _ = captured["layers.0.self_attn"]
        assert "x" not in captured


@pytest.mark.usefixtures("unchecked")
def test_a_number_is_no_path(make):
    model = make.encoder().eval()
    with torch.no_grad(), capture(model) as captured:
        model(torch.zeros(1, 3, 24))
    for wrong in (0, slice(1)):
        with pytest.raises(
            KeyError, match=r"^a capture is indexed by paths, got .*: choose one of layers\.0\.self_attn"
        ):
            _ = captured[wrong]
    assert 0 not in captured


def test_a_fact_of_all_attentions_says_which_one_has_it():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad(), capture(model) as captured:
        model(torch.zeros(1, 3, 8))
    for name in ("entropy", "plot"):
        with pytest.raises(AttributeError, match=rf"an Observation for each attention: captured\['self_attn'\].{name}"):
            getattr(captured, name)
    with pytest.raises(AttributeError, match="'Captured' object has no attribute 'entrpy'"):
        _ = captured.entrpy
    assert repr(copy.copy(captured)) == repr(captured)
