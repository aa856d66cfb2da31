"""Derived seeds: the numbers that trainings have always had, and no two alike."""

from itertools import product

import pytest

from glassformer.seeds import derive_seed


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        (1_000_003 + 4, dict(seed=1, index=4)),  # the order of the fifth epoch, or the dropout of update 4
        (7 * 1_000_003 + 20 + (3 << 40), dict(seed=7, index=20, rank=3)),
        (2 * 1_000_003 + 5 * 7_368_787 + 31, dict(seed=2, index=31, epoch=5)),
    ],
)
def test_a_seed_follows_from_the_formula(expected, arguments):
    assert derive_seed(**arguments) == expected


def test_neighbours_differ():
    numbers = {
        derive_seed(seed, n, epoch=e, rank=r) for seed, n, e, r in product(range(3), range(50), range(7), (0, 1))
    }
    assert len(numbers) == 3 * 50 * 7 * 2


def test_torch_takes_them_all():
    assert derive_seed((1 << 32) - 1, 10**9, epoch=10**6, rank=10**4) < 1 << 63
