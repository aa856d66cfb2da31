import dataclasses

import pytest
import torch
from torch import Tensor

from glassformer.transformer.cache import Cache, LayerCache

SOURCES, WIDTH, HEADS, LENGTH, SOURCE_LENGTH, D = 5, 3, 2, 7, 13, 11  # distinct primes: a swapped axis cannot pass
LAYERS = 2


def make(*, written: bool = True, masked: bool = True) -> Cache:
    """Every number tells its layer, its kind and its row."""

    def numbered(rows: int, length: int, kind: float) -> Tensor:
        return (torch.arange(rows) + kind)[:, None, None, None].expand(rows, HEADS, length, D).contiguous()

    layers = []
    for layer in range(LAYERS):
        memory = [numbered(SOURCES, SOURCE_LENGTH, 1000 * layer + kind) for kind in (100.0, 200.0)]
        target = [numbered(SOURCES * WIDTH, LENGTH, 1000 * layer + kind) for kind in (300.0, 400.0)]
        layers.append(LayerCache(*memory, *(target if written else ())))
    keep = torch.rand(SOURCES, 1, 1, SOURCE_LENGTH) < 0.5
    return Cache(tuple(layers), keep if masked else None)


def rows_of(x: Tensor | None) -> list[int]:
    assert x is not None
    assert (x == x[:, :1, :1, :1]).all()
    return [int(row) % 100 for row in x[:, 0, 0, 0]]


def test_length_counts_what_is_written():
    assert make().length == LENGTH
    assert make(written=False).length == 0


def test_take_picks_target_rows_of_every_layer_and_leaves_the_sources():
    # Hypotheses of source b are rows 3 b .. 3 b + 2; each survivor comes from its own source.
    cache = make()
    rows = torch.tensor([2, 0, 0, 5, 4, 3, 6, 6, 6, 9, 10, 11, 14, 13, 12])
    taken = cache.take(rows)
    assert taken.length == LENGTH
    assert taken.memory_keep is cache.memory_keep
    for layer, (before, after) in enumerate(zip(cache.layers, taken.layers, strict=True)):
        assert after.memory_keys is before.memory_keys
        assert after.memory_values is before.memory_values
        assert rows_of(after.keys) == rows_of(after.values) == rows.tolist()
        assert after.keys[0, 0, 0, 0] == 1000 * layer + 302
        assert after.values[0, 0, 0, 0] == 1000 * layer + 402


def test_take_may_change_the_number_of_hypotheses():
    # From one hypothesis of each source to two, and back to the first of each.
    one = make().take(torch.arange(0, SOURCES * WIDTH, WIDTH))
    two = one.take(torch.arange(SOURCES).repeat_interleave(2))
    assert rows_of(two.layers[0].keys) == [0, 0, 3, 3, 6, 6, 9, 9, 12, 12]


def test_take_before_anything_is_written_changes_nothing():
    cache = make(written=False)
    taken = cache.take(torch.arange(SOURCES * WIDTH))
    assert taken.length == 0
    for before, after in zip(cache.layers, taken.layers, strict=True):
        assert after.memory_keys is before.memory_keys
        assert after.keys is after.values is None


def test_take_sources_keeps_all_hypotheses_of_each():
    cache = make()
    taken = cache.take_sources(torch.tensor([4, 1]))
    assert cache.memory_keep is not None
    assert torch.equal(taken.memory_keep, cache.memory_keep[[4, 1]])
    for layer, after in enumerate(taken.layers):
        assert rows_of(after.memory_keys) == rows_of(after.memory_values) == [4, 1]
        assert rows_of(after.keys) == rows_of(after.values) == [12, 13, 14, 3, 4, 5]
        assert [x[0, 0, 0, 0].item() - 1000 * layer for x in dataclasses.astuple(after)] == [104, 204, 312, 412]


@pytest.mark.parametrize("masked", [True, False])
def test_take_sources_before_anything_is_written(masked):
    taken = make(written=False, masked=masked).take_sources(torch.tensor([3]))
    assert taken.length == 0
    assert rows_of(taken.layers[0].memory_keys) == [3]
    assert (taken.memory_keep is not None) is masked


def test_caches_are_frozen_and_left_as_they_were():
    cache = make()
    assert cache.layers[0].keys is not None
    before = cache.layers[0].keys.clone()
    cache.take(torch.zeros(3, dtype=torch.long))
    cache.take_sources(torch.tensor([2]))
    assert torch.equal(cache.layers[0].keys, before)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cache.layers = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        cache.layers[0].keys = None
