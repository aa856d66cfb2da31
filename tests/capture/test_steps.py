"""Steps of generation: their sums are kept once, their tiles go on, and what a budget leaves is the same for all."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture, page
from glassformer.attention.want import tile_size
from glassformer.capture import steps
from glassformer.capture.record import Captured
from glassformer.capture.steps import add_to_tiles
from glassformer.errors import ArgumentError

FIRST = "model.layers.0.self_attn"
SETTINGS = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=1)


def tiles_of(weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Sum weights (..., queries, keys) tile by tile, the long way."""
    rows = [part.sum(-2) for part in weights.split(size[0], -2)]
    return torch.stack([torch.stack([part.sum(-1) for part in row.split(size[1], -1)], -1) for row in rows], -2)


def bytes_kept(captured: Captured) -> int:
    calls = [call for name in captured for call in captured.calls(name)]
    return sum(x.numel() * x.element_size() for call in calls for x in call.tensors().values())


@pytest.mark.parametrize("most", [3, 7, 100])
def test_tiles_go_on_and_become_one_two_by_two_where_they_are_too_many(most):
    weights = torch.rand(2, 3, 23, 23).tril()
    tiles, size, first = tiles_of(weights[..., :5, :5], (2, 2)), (2, 2), 5
    for queries in (1, 1, 3, 1, 12):
        rows = weights[..., first : first + queries, : first + queries]
        tiles, size = add_to_tiles(tiles, size, rows, first, most)
        first += queries
        assert max(tiles.shape[-2:]) <= most
        assert_close(tiles, tiles_of(weights[..., :first, :first], size))
    assert size == {3: (8, 8), 7: (4, 4), 100: (2, 2)}[most]


@torch.no_grad()
def test_what_keys_receive_and_tiles_are_those_of_all_steps(make):
    model, inputs = make.family("llama")
    ids = {"input_ids": inputs["input_ids"]}
    with capture(model, Want(weights=True)) as whole:
        expected = model.generate(**ids, **SETTINGS)
    with capture(model, Want(received=True, pooled=2, pooled_heads=4, top=2)) as captured:
        assert torch.equal(model.generate(**ids, **SETTINGS), expected)
    for name, one in captured.items():
        weights = whole[name].weights
        assert_close(one.received, weights.sum(2))
        assert_close(one.top.weights, weights.topk(2).values)
        assert_close(one.pooled_heads, tiles_of(weights, one.tiles["pooled_heads"]))
        assert_close(one.pooled, tiles_of(weights.mean(1), one.tiles["pooled"]))
        assert max(one.pooled_heads.shape[2:]) <= 8
        assert one.want.asked == ("received", "top", "pooled", "pooled_heads")
        first, *later = captured.calls(name)
        assert first.received is one.received
        assert {tuple(step.tensors()) for step in later} == {("top", "top_keys")}


@torch.no_grad()
def test_a_record_of_many_steps_grows_with_their_number(make):
    model, inputs = make.family("llama")
    kept = []
    for tokens in (12, 24, 36):
        with capture(model, Want(entropy=True, received=True)) as captured:
            model.generate(inputs["input_ids"], **{**SETTINGS, "max_new_tokens": tokens, "min_new_tokens": tokens})
        kept.append(bytes_kept(captured))
    assert kept[2] - kept[1] == kept[1] - kept[0]


@torch.no_grad()
def test_layers_that_a_model_uses_twice_have_sums_of_their_own():
    attention = torch.nn.MultiheadAttention(24, 3, batch_first=True)

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor, y: Tensor) -> None:
            self.attention(x, y, y)
            self.attention(x, 2 * y, y)

    model = Twice()
    keys = torch.randn(2, 9, 24)
    with capture(model, Want(received=True, weights=True)) as captured:
        model(keys[:, :5], keys[:, :5])
        model(keys[:, 5:6], keys[:, :6])
        model(keys[:, 6:7], keys[:, :7])
    assert list(captured) == ["attention@0", "attention@1"]
    for one in captured.values():
        assert_close(one.received, one.weights.sum(2))


@torch.no_grad()
def test_what_the_steps_have_no_room_for_is_removed_from_all_calls(make):
    model, inputs = make.family("llama")
    ids = inputs["input_ids"]
    with capture(model, Want(entropy=True, received=True, top=5)) as captured:
        model.generate(ids, **SETTINGS)
    budget = bytes_kept(captured) - 200
    with capture(model, Want(entropy=True, received=True, top=5), budget=budget) as captured:
        model.generate(ids, **SETTINGS)
    assert bytes_kept(captured) <= budget
    one = captured[FIRST]
    assert one.want.asked == ("entropy", "received")
    assert one.entropy.shape[2] == 11 + 5
    assert captured.dropped[FIRST].startswith("top would take ")
    least = bytes_kept(captured) - 200
    with pytest.raises(ArgumentError, match="budget must leave"), capture(model, Want(entropy=True), budget=least // 9):
        model.generate(ids, **SETTINGS)


@torch.no_grad()
def test_steps_after_a_map_that_did_not_fit_record_what_replaced_it(make):
    model, inputs = make.family("llama")
    ids = inputs["input_ids"].repeat(1, 4)
    with capture(model, Want(weights=True), budget=160 << 10) as captured:
        model.generate(ids, **SETTINGS)
    one = captured[FIRST]
    assert {"entropy", "received", "top"} <= set(one.want.asked)
    assert one.entropy.shape[2] == 44 + 5
    assert bytes_kept(captured) <= 160 << 10


@torch.no_grad()
def test_maps_of_steps_that_do_not_fit_are_an_error_where_nothing_else_was_recorded(make):
    model, inputs = make.family("llama")
    ids = inputs["input_ids"].repeat(1, 4)
    message = (
        r"budget must leave 9\d\.\d KiB for the statistics of model.layers.0.self_attn, got 96.0 KiB for each of 2"
    )
    with pytest.raises(ArgumentError, match=message), capture(model, Want(weights=True), budget=192 << 10):
        model.generate(ids, **SETTINGS)


class Cached(nn.Module):
    """Attention over a cache of its own, as small models have it: torch's function is told of no positions."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = torch.zeros(2, 3, 0, 4)

    def forward(self, x: Tensor) -> Tensor:
        before = self.keys.shape[2]
        self.keys = torch.cat([self.keys, x], 2)
        mask = torch.ones(x.shape[2], self.keys.shape[2], dtype=torch.bool).tril(before)
        return F.scaled_dot_product_attention(x, self.keys, self.keys, mask)


def far(weights: Tensor) -> Tensor:
    """How far the queries look, from all weights."""
    apart = torch.arange(weights.shape[2])[:, None] - torch.arange(weights.shape[3])
    return (weights * apart.abs()).sum(-1)


@torch.no_grad()
@pytest.mark.parametrize("fits", [True, False])
def test_distances_and_chosen_queries_are_counted_through_all_steps(fits, monkeypatch):
    monkeypatch.setattr(steps, "STEP_BYTES", 1 << 20 if fits else 4 * 2 * 3 * 9)
    want = Want(weights=True, distance=True, rows=(0, 7, 9, -1, 20), row_heads=(2, 0), pooled=4)
    model, x = Cached(), torch.randn(2, 3, 11, 4)
    with capture(model, want) as captured:
        for part in x.split([6, 1, 2, 1, 1], 2):
            model(part)
    one = captured["model" if "model" in captured else ""]
    assert_close(one.distance, far(one.weights))
    assert one.want.rows == (0, 5, 6, 7, 8, 9, 9, 10)
    assert_close(one.rows, one.weights[:, [2, 0]][:, :, list(one.want.rows)])
    assert (one.want.pooled == 4) is fits
    if fits:
        assert_close(one.pooled, tiles_of(one.weights.mean(1), one.tiles["pooled"]))
        assert captured.dropped == {}
    else:
        assert captured.dropped[""].startswith("no tiles, which would take all weights of a step: a call of 2 queries")


@torch.no_grad()
def test_rows_of_one_step_have_all_keys():
    model, x = Cached(), torch.randn(2, 3, 8, 4)
    with capture(model, Want(weights=True, rows=(0,))) as captured:
        for part in x.split([6, 1, 1], 2):
            model(part)
    one = captured[next(iter(captured))]
    assert one.want.rows == (0,)
    assert_close(one.rows, one.weights[:, :, [0]])


@torch.no_grad()
def test_a_cache_that_forgets_has_its_queries_at_the_end():
    model = Cached()
    with capture(model, Want(weights=True, distance=True)) as captured:
        for part in torch.randn(2, 3, 12, 4).split(1, 2):
            model.keys = model.keys[:, :, -7:]
            model(part)
    calls = captured.calls(next(iter(captured)))
    for call in calls:
        apart = torch.arange(call.weights.shape[3]).flip(0)
        assert_close(call.distance, (call.weights * apart).sum(-1))


@torch.no_grad()
def test_whatever_a_budget_leaves_of_rows_and_tiles_the_model_runs():
    x, want, kept = torch.randn(2, 3, 9, 4), Want(rows=range(9), pooled=2), set()
    expected = [model(part) for model in [Cached()] for part in x.split([6, 3], 2)]
    for budget in range(1340, 2400, 20):
        model = Cached()
        with capture(model, want, budget=budget) as captured:
            assert_close([model(part) for part in x.split([6, 3], 2)], expected)
        one = captured[next(iter(captured))]
        assert one.want.asked
        assert one.want.asked == want.asked or captured.dropped
        kept.add(one.want.asked)
    assert want.asked in kept
    assert len(kept) > 1


@torch.no_grad()
@pytest.mark.parametrize("family", ["bart", "t5", "llama"])
def test_distances_of_steps_are_those_of_one_pass(family, make):
    model, inputs = make.family(family)
    with capture(model, Want(weights=True, distance=True)) as captured:
        model.generate(input_ids=inputs["input_ids"], **SETTINGS)
    joined = [one for one in captured.values() if one.distance.shape[2] > 1]
    assert joined
    for one in joined:
        assert_close(one.distance, far(one.weights))


@torch.no_grad()
def test_a_page_of_generation_has_the_tiles_of_all_steps(make):
    model, inputs = make.family("llama")
    ids = inputs["input_ids"][:1]
    with capture(model, Want(pooled_heads=4, top=2, entropy=True, received=True)) as captured:
        model.generate(ids, **SETTINGS)
    assert captured[FIRST].tiles["pooled_heads"] == (tile_size(11, 4), tile_size(11, 4)) == (3, 3)
    assert captured[FIRST][0].pooled_heads.shape == (6, 6, 6)
    assert len(page(captured).data) > 1000
