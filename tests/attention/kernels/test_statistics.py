import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.attention.kernels.blocks import Block
from glassformer.attention.kernels.statistics import Sizes, statistics, top_of_rows
from glassformer.attention.want import Want

B, H, Q, K = 2, 3, 11, 13  # distinct primes: a swapped axis cannot pass

EVERYTHING = Want(
    received=True, distance=True, top=5, rows=(4, -1, 4), row_heads=(2, 0), pooled=5, pooled_heads=4, head_mean=True,
    weights=True,
)  # fmt: skip
SIZES = Sizes(B, H, Q, K, torch.float64, torch.float64, torch.device("cpu"))


def every_block(offset: int) -> list[Block]:
    """All of the weights, in blocks that leave some keys out, as those of padding and causal attention do."""
    return [
        Block(slice(entry, entry + 1), heads, rows, slice(2 * entry, keys), offset)
        for entry in range(B)
        for heads in (slice(0, 2), slice(2, 3))
        for rows, keys in ((slice(0, 4), 6), (slice(4, 8), 10), (slice(8, 11), 13))
    ]


# What they say of the weights is tested in test_observe.py.


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("name", EVERYTHING.asked)
def test_what_a_fact_pushes_is_the_transpose_of_what_it_sees(name, offset):
    (fact,) = (x for x in statistics(EVERYTHING, SIZES) if x.name == name)
    w, dw = torch.zeros(2, B, H, Q, K, dtype=torch.float64)
    found: dict[str, Tensor] = {}
    fact.prepare(found)
    for block in every_block(offset):
        place = (block.entries, block.heads, block.rows, block.keys)
        part = torch.rand(w[place].shape, dtype=torch.float64)
        w[place] = part
        fact.see(block, part.flatten(0, 1), found)
    grad = torch.randn_like(found[name])
    for block in every_block(offset):
        place = (block.entries, block.heads, block.rows, block.keys)
        part = torch.zeros_like(w[place]).flatten(0, 1)
        fact.push(block, grad, part, found)
        dw[place] = block.by_head(part)
    assert_close((w * dw).sum(), (found[name] * grad).sum())
    assert found[name].abs().sum() > 0


def test_only_what_is_wanted_is_gathered():
    assert [fact.name for fact in statistics(EVERYTHING, SIZES)] == list(EVERYTHING.asked)
    assert statistics(Want(entropy=True, lse=True), SIZES) == []  # these are found on the way to the weights
    for name in EVERYTHING.asked:
        wanted = {"rows": ("rows", "row_heads")}.get(name, (name,))
        (fact,) = statistics(Want(**{n: getattr(EVERYTHING, n) for n in wanted}), SIZES)
        assert fact.name == name


# The largest of many


def assert_largest(w: Tensor, k: int) -> None:
    largest, keys = top_of_rows(w, k)
    assert torch.equal(largest, w.topk(k, -1).values)
    assert torch.equal(w.gather(-1, keys), largest)
    in_order = keys.sort(-1).values
    assert (in_order[..., 1:] > in_order[..., :-1]).all()  # no key twice


@pytest.mark.parametrize("k", [1, 2, 8, 31])
@pytest.mark.parametrize("n", [31, 64, 127, 500, 997, 1024, 4099])
def test_top_of_rows_is_topk(n, k):
    assert_largest(torch.rand(B, Q, n), k)
    assert_largest(torch.randint(4, (B, Q, n)).float(), k)  # ties
    assert_largest(torch.zeros(B, Q, n), k)
    in_order = torch.arange(n).float().expand(1, 2, n)
    assert_largest(in_order, k)
    assert_largest(in_order.flip(-1), k)
    assert_largest(-in_order, k)


@pytest.mark.parametrize("stride", range(1, 60))
def test_the_largest_may_lie_at_any_distance(stride):
    # 8 of 1000: wherever chunks begin and end, some of these strides puts the largest into one chunk.
    w = torch.rand(1, 3, 1000)
    for row in range(3):
        w[0, row, (torch.arange(8) * stride + 100 * row) % 1000] += 1.0
    assert_largest(w, 8)


def test_few_numbers_are_searched_for_the_largest():
    searched = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.topk.default:
                searched.append(args[0].shape[-1])
            return function(*args, **(kwargs or {}))

    w = torch.rand(1, 1, 4096)
    with Record():
        top_of_rows(w, 8)
    assert 0 < sum(searched) < 4096 / 4
