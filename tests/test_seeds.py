"""Derived seeds: no two alike. The numbers that trainings have always had are in the docstring's example."""

from itertools import product

from glassformer.seeds import derive_seed


def test_neighbours_differ():
    numbers = {
        derive_seed(seed, n, epoch=e, rank=r) for seed, n, e, r in product(range(3), range(50), range(7), (0, 1))
    }
    assert len(numbers) == 3 * 50 * 7 * 2


def test_torch_takes_them_all():
    assert derive_seed((1 << 32) - 1, 10**9, epoch=10**6, rank=10**4) < 1 << 63
