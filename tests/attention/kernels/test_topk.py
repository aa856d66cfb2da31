import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.attention.kernels.topk import BLOCK, topk_classes, topk_keys

ROWS = 5
# Few, where a sort is all there is; a multiple of 128 of them, small and large; many that are no multiple.
CLASSES = [7, 127, BLOCK, 3 * BLOCK, 31 * BLOCK, 32 * BLOCK, 37 * BLOCK, 37 * BLOCK + 3, 313 * BLOCK]


def check(scores: Tensor, k: int) -> None:
    """The values are torch's, in order; the classes are different ones that have these values."""
    given = scores.clone()
    best, classes = topk_classes(scores, k)
    assert best.shape == classes.shape == (len(scores), k)
    assert_close(best, scores.topk(k).values, rtol=0, atol=0)
    assert_close(scores.gather(1, classes), best, rtol=0, atol=0)
    assert all(len(set(row)) == k for row in classes.tolist())
    assert torch.equal(scores, given)


SCORES = {
    "any": lambda classes: torch.randn(ROWS, classes),
    "float64": lambda classes: torch.randn(ROWS, classes).double(),
    "bfloat16": lambda classes: torch.randn(ROWS, classes).bfloat16(),
    "few values": lambda classes: torch.randint(0, 5, (ROWS, classes)).float(),
    "one value": lambda classes: torch.zeros(ROWS, classes),
    "some ties": lambda classes: torch.randint(0, classes, (ROWS, classes)).float(),
    "few that can be chosen": lambda classes: blocked(torch.rand(ROWS, classes) < 0.98),
    "the last blocked": lambda classes: blocked(torch.arange(classes).expand(ROWS, -1) >= classes - 3),
    "one open": lambda classes: blocked(torch.arange(classes) != torch.randint(0, classes, (ROWS, 1))),
    "all blocked": lambda classes: blocked(torch.ones(ROWS, classes, dtype=torch.bool)),
}


def blocked(mask: Tensor) -> Tensor:
    return torch.randn(mask.shape).masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("kind", SCORES)
def test_topk_classes_is_torchs_topk(kind, classes):
    scores = SCORES[kind](classes)
    for k in (1, 2, 7, 30, *((31, 32, 36, 37, 38, 127, 313) if kind == "any" else ())):
        if k <= classes:
            check(scores, k)


@pytest.mark.parametrize("k", [1, 2, 11])
def test_the_best_may_lie_anywhere(k):
    blocks = 37
    low = torch.randn(1, blocks * BLOCK)
    places = {
        "in one block": torch.arange(k) + 17 * BLOCK,
        "each in a block of its own": torch.arange(k) * 3 * BLOCK + torch.arange(k) * 11,
        "at the ends of blocks": torch.arange(1, k + 1) * BLOCK - torch.arange(k) % 2,
        "first": torch.arange(k),
        "last": blocks * BLOCK - 1 - torch.arange(k),
    }
    for place in places.values():
        scores = low.clone()
        scores[0, place] = 100.0 + torch.randperm(k)
        best, classes = topk_classes(scores, k)
        assert best[0].tolist() == [100.0 + n for n in reversed(range(k))]
        assert sorted(classes[0].tolist()) == sorted(place.tolist())


# Of any number


def assert_largest(w: Tensor, k: int) -> None:
    largest, keys = topk_keys(w, k)
    assert torch.equal(largest, w.topk(k, -1).values)
    assert torch.equal(w.gather(-1, keys), largest)
    in_order = keys.sort(-1).values
    assert (in_order[..., 1:] > in_order[..., :-1]).all()  # no key twice


@pytest.mark.parametrize("k", [1, 2, 8, 31])
@pytest.mark.parametrize("n", [31, 64, 127, 500, 997, 1024, 4099])
def test_topk_keys_is_torchs_topk(n, k):
    in_order, ties = torch.arange(n).float().expand(1, 2, n), torch.randint(4, (2, ROWS, n)).float()
    for w in (torch.rand(2, ROWS, n), ties, torch.zeros(2, ROWS, n), in_order, in_order.flip(-1), -in_order):
        assert_largest(w, k)


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
        topk_keys(w, 8)
    assert 0 < sum(searched) < 4096 / 4
