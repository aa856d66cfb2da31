"""What translating with a run costs: speed in turns, and the memory of a process."""

import pytest

from glassformer.generation.config import SearchConfig
from glassformer.insight.speed import compare_speed, peak_memory
from glassformer.text.tokenizer import SymbolTokenizer


def test_memory_is_that_of_a_process_that_translates(random_run, tmp_path):
    symbols = SymbolTokenizer("abcd")
    random_run(tmp_path / "run", symbols, symbols, shared=True)
    random_run(tmp_path / "large", symbols, symbols, shared=True, d_ff=1_000_000)
    small, large = (peak_memory(tmp_path / name, ["a b"], "cpu") for name in ("run", "large"))
    if small is None:
        pytest.skip("this system doesn't say what a process took")
    # Two layers of 2 x 24 x 1,000,000 numbers more, in float32 at least once.
    assert 4 * 2 * 48e6 < large - small < 1.5e9


def test_a_smaller_model_is_faster(random_run, tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.insight.speed.TURNS", 2)
    symbols = SymbolTokenizer("abcd")
    random_run(tmp_path / "run", symbols, symbols, shared=True)
    random_run(tmp_path / "large", symbols, symbols, shared=True, d_ff=300_000)
    search = SearchConfig(beam=1, max_length=3)
    speed = compare_speed(tmp_path / "large", tmp_path / "run", ["a b"], "cpu", search)
    assert speed.ratio > 1


def test_memory_that_cannot_be_measured_is_said(tmp_path):
    with pytest.warns(
        UserWarning,
        match="the memory that .*nowhere takes is unknown, because the process that measures it failed: .*nowhere",
    ):
        assert peak_memory(tmp_path / "nowhere", ["a"], "cpu") is None
