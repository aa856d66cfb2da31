"""Which facts are gathered; what they say of the weights, and their gradients, are tested in test_observe.py."""

import torch

from glassformer.attention.kernels.statistics import Sizes, statistics
from glassformer.attention.want import Want

MAPS = dict(head_mean=True, weights=True)
EVERYTHING = Want(received=True, distance=True, top=5, rows=(4,), row_heads=(2, 0), pooled=5, pooled_heads=4, **MAPS)
SIZES = Sizes(2, 3, 11, 13, torch.float64, torch.float64, torch.device("cpu"))


def test_only_what_is_wanted_is_gathered():
    assert [fact.name for fact in statistics(EVERYTHING, SIZES)] == list(EVERYTHING.asked)
    assert statistics(Want(entropy=True, lse=True), SIZES) == []  # these are facts on the way to the weights
    for name in EVERYTHING.asked:
        wanted = {"rows": ("rows", "row_heads")}.get(name, (name,))
        (fact,) = statistics(Want(**{n: getattr(EVERYTHING, n) for n in wanted}), SIZES)
        assert fact.name == name
