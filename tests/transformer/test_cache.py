import dataclasses

import pytest
import torch

from glassformer.transformer.cache import Cache, LayerCache

SOURCES, HEADS, LENGTH, SOURCE_LENGTH, D = 5, 2, 7, 13, 11  # distinct primes: a swapped axis cannot pass


def test_length_counts_the_target_positions_written():
    memory = [torch.zeros(SOURCES, HEADS, SOURCE_LENGTH, D)] * 2
    target = [torch.zeros(3 * SOURCES, HEADS, LENGTH, D)] * 2
    assert Cache((LayerCache(*memory),), None).length == 0
    assert Cache((LayerCache(*memory, *target),), None).length == LENGTH


def test_caches_are_frozen():
    memory = torch.zeros(SOURCES, HEADS, SOURCE_LENGTH, D)
    cache = Cache((LayerCache(memory, memory),), None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cache.layers = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        cache.layers[0].keys = memory
