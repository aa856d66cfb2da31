import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.kernels.blocks import Block
from glassformer.attention.kernels.statistics import Sizes, Statistic, statistics
from glassformer.attention.want import Want

B, H, Q, K = 2, 3, 11, 13  # distinct primes: a swapped axis cannot pass

MAPS = dict(head_mean=True, weights=True)
EVERYTHING = Want(
    received=True, distance=True, top=5, rows=(4, -1, 4), row_heads=(2, 0), pooled=5, pooled_heads=4, **MAPS
)
SIZES = Sizes(B, H, Q, K, torch.float64, torch.float64, torch.device("cpu"))


def every_block(offset: int) -> list[Block]:
    """All of the weights, in blocks that leave some keys out, as those of padding and causal attention do."""
    return [
        Block(slice(entry, entry + 1), heads, rows, slice(2 * entry, keys), offset)
        for entry in range(B)
        for heads in (slice(0, 2), slice(2, 3))
        for rows, keys in ((slice(0, 4), 6), (slice(4, 8), 10), (slice(8, 11), 13))
    ]


def gather(name: str, offset: int) -> tuple[Statistic, Tensor, dict[str, Tensor]]:
    """The statistic, random weights in every block, and what it gathers of them."""
    (fact,) = (x for x in statistics(EVERYTHING, SIZES) if x.name == name)
    w, facts = torch.zeros(B, H, Q, K, dtype=torch.float64), {}
    fact.prepare(facts)
    for block in every_block(offset):
        place = (block.entries, block.heads, block.rows, block.keys)
        part = torch.rand(w[place].shape, dtype=torch.float64)
        w[place] = part
        fact.add(block, part.flatten(0, 1), facts)
    return fact, w, facts


# What they say of the weights is tested in test_observe.py.


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("name", EVERYTHING.asked)
def test_the_gradient_of_a_fact_is_the_transpose_of_the_fact(name, offset):
    fact, w, facts = gather(name, offset)
    grad, dw = torch.randn_like(facts[name]), torch.zeros_like(w)
    for block in every_block(offset):
        place = (block.entries, block.heads, block.rows, block.keys)
        part = torch.zeros_like(w[place]).flatten(0, 1)
        fact.add_gradient(block, grad, part, facts)
        dw[place] = block.by_head(part)
    assert_close((w * dw).sum(), (facts[name] * grad).sum())
    assert facts[name].abs().sum() > 0


@pytest.mark.parametrize("offset", [0, 2])
def test_distances_count_from_the_position_of_the_first_query(offset):
    _, w, facts = gather("distance", offset)
    away = (torch.arange(Q)[:, None] + offset - torch.arange(K)).abs()
    assert_close(facts["distance"], (w * away).sum(-1))


def test_only_what_is_wanted_is_gathered():
    assert [fact.name for fact in statistics(EVERYTHING, SIZES)] == list(EVERYTHING.asked)
    assert statistics(Want(entropy=True, lse=True), SIZES) == []  # these are facts on the way to the weights
    for name in EVERYTHING.asked:
        wanted = {"rows": ("rows", "row_heads")}.get(name, (name,))
        (fact,) = statistics(Want(**{n: getattr(EVERYTHING, n) for n in wanted}), SIZES)
        assert fact.name == name
