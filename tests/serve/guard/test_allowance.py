"""The characters that each client may use a minute."""

import pytest

from glassformer.serve.guard import allowance
from glassformer.serve.guard.allowance import Allowance


def test_characters_are_saved_up_for_a_minute_at_most():
    counted = Allowance(60)
    assert counted.take("a", 50, now=100.0) == 0.0
    assert counted.take("a", 20, now=100.0) == pytest.approx(10.0), "10 are left, and one comes each second"
    assert counted.take("b", 60, now=100.0) == 0.0
    assert counted.take("a", 20, now=110.0) == 0.0
    assert counted.take("a", 61, now=10_000.0) == 0.0, "who asks for more than a minute's goes into debt"
    assert counted.take("a", 1, now=10_000.0) == pytest.approx(2.0)
    assert Allowance(0).take("a", 10**9, now=0.0) == 0.0


def test_clients_without_debt_are_forgotten(monkeypatch):
    monkeypatch.setattr(allowance, "MOST_CLIENTS", 100)
    counted = Allowance(60)
    for n in range(1000):
        assert counted.take(str(n), 60, now=float(n)) == 0.0
    assert len(counted._left) < 170
