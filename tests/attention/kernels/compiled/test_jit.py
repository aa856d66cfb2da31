"""What is said while functions are compiled."""

import logging

import pytest

pytest.importorskip("numba")

from glassformer.attention.kernels.compiled import jit


def test_compiling_is_logged_once(caplog, monkeypatch):
    def one(n: int) -> int:
        return n + 1

    def two(n: int) -> int:
        return n + 2

    monkeypatch.setattr(jit.NOTICE, "given", False)
    with caplog.at_level(logging.INFO, "glassformer"):
        one.__module__ = two.__module__ = "elsewhere"
        assert jit.njit(one)(1) == 2
        assert not caplog.records, "it is another's"
        one.__module__ = two.__module__ = "glassformer.attention"
        assert jit.njit(one)(1) == 2
        assert jit.njit(two)(1) == 3
    assert [record.getMessage() for record in caplog.records] == [jit.COMPILING]
