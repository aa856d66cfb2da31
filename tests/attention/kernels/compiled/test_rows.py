"""The compiled passes over rows, and the products in LLVM's language, against float64."""

import importlib.util

import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba isn't installed", allow_module_level=True)

import numpy as np
from numba import njit

from glassformer.attention.kernels.compiled import products, rows
from glassformer.attention.kernels.compiled.registers import COLUMNS, LANES, ROWS, lanes


@njit
def _exp_of(x, found):
    for n in range(len(x)):
        found[n] = rows.exp(x[n])


def test_exp_is_exact_to_two_bits():
    x = np.concatenate([np.linspace(-87, 87, 300_001), np.linspace(-1, 1, 100_001)]).astype(np.float32)
    found = np.empty_like(x)
    _exp_of(x, found)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(found - exact) / exact) < 2 * np.finfo(np.float32).eps


@njit
def _exponentiated(row, reference, apart):
    return rows.exponentiate(row, reference, apart)


@njit
def _largest(row):
    return rows.largest_of(row)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 288])
def test_a_row_of_scores_becomes_exponentials_and_their_sums(length):
    s = np.random.default_rng(0).normal(size=length).astype(np.float32) * 9
    s[length // 2] = -np.inf
    e, exact = s.copy(), np.exp((s - np.float32(30)).astype(np.float64))
    exact[s - 30 < -87] = 0.0
    total, tilt, distance = _exponentiated(e, np.float32(30), np.int32(-7))
    assert np.allclose(e, exact, rtol=1e-6, atol=0)
    assert e[length // 2] == 0
    open_ = exact > 0
    assert np.isclose(total, exact.sum(), rtol=1e-6)
    assert np.isclose(tilt, (exact[open_] * (s[open_] - 30.0)).sum(), rtol=1e-6)
    assert np.isclose(distance, (exact * np.abs(np.arange(length) - 7)).sum(), rtol=1e-6)
    assert _largest(s) == s.max()


def test_a_nan_among_the_scores_is_not_lost():
    s = np.zeros(20, np.float32)
    s[11] = np.nan
    assert np.isnan(_exponentiated(s, np.float32(0), np.int32(0))).all()
    assert np.isnan(s[11])
    assert not np.isnan(np.delete(s, 11)).any()


@njit
def _products(a, b, c, panels, d, rows_, inner, columns):
    products.multiply(a, 0, inner, 1, b, 0, columns, c, 0, columns, rows_, columns, inner)
    products.multiply_panels(a, inner, panels, 0, inner, d, 0, columns, rows_, columns)


@njit
def _panels(x):
    return products.panels_of(x)


@pytest.mark.parametrize("inner", [1, 7, 64])
def test_products_add_or_set(inner):
    m, n = 2 * ROWS, 3 * COLUMNS
    draw = np.random.default_rng(1)
    a, b, c = (draw.normal(size=size).astype(np.float32) for size in ((m, inner), (inner, n), (m, n)))
    added, set_ = c.copy(), c.copy()
    _products(a.ravel(), b.ravel(), added.ravel(), _panels(np.ascontiguousarray(b.T)), set_.ravel(), m, inner, n)
    exact = a.astype(np.float64) @ b
    assert np.allclose(added, c + exact, atol=1e-4)
    assert np.allclose(set_, exact, atol=1e-4)


def test_panels_end_with_zeros():
    x = np.arange(2 * (COLUMNS + 1), dtype=np.float32).reshape(COLUMNS + 1, 2)
    found = _panels(x).reshape(2, 2, COLUMNS)
    assert np.array_equal(found[0], x[:COLUMNS].T)
    assert np.array_equal(found[1, :, 0], x[COLUMNS])
    assert not found[1, :, 1:].any()


def test_a_register_holds_what_the_processor_says():
    assert [lanes(features) for features in ({"avx512f": True, "avx2": True}, {"avx2": True}, {})] == [16, 8, 4]
    assert LANES in (4, 8, 16)
