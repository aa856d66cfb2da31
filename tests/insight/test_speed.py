"""What translating with a run costs: speed in turns, and the memory of a process."""

from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.generation.config import SearchConfig
from glassformer.generation.kernels.quantized import can_quantize
from glassformer.insight.speed import compare_speed, peak_memory
from glassformer.text.tokenizer import SymbolTokenizer


@pytest.fixture(scope="module")
def folder(random_run, tmp_path_factory) -> Path:
    """Two runs: in large the feed-forward layers have 2 x 2 x 24 x 600,000 numbers more."""
    folder, symbols = tmp_path_factory.mktemp("runs"), SymbolTokenizer("abcd")
    random_run(folder / "small", symbols, symbols, shared=True)
    random_run(folder / "large", symbols, symbols, shared=True, d_ff=600_000)
    return folder


def test_memory_is_that_of_a_process_that_translates(folder, tmp_path, monkeypatch):  # two, each of which imports torch
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenize.py").write_text("raise SystemExit('a file of the current folder was run')")
    small, large = (peak_memory(folder / name, ["a b"], "cpu") for name in ("small", "large"))
    if small is None:
        pytest.skip("this system doesn't say what a process took")
    more = (large - small) / (2 * 2 * 24 * 600_000)
    if can_quantize():
        assert 2 < more < 8.68  # a byte for each number, and again as much while they are read
    else:
        assert 8 < more < 14  # in float32, 4 bytes each: as they are read, as the model's, and laid out for products


def test_a_smaller_model_is_faster(folder, monkeypatch):
    monkeypatch.setattr("glassformer.insight.speed.TURNS", 2)
    search = SearchConfig(beam=1, max_length=3)
    speed = compare_speed(folder / "large", folder / "small", ["a b"], "cpu", search)
    assert speed.ratio > 1
    assert speed.low < speed.ratio < speed.high
    assert str(speed).endswith(f"{speed.ratio:.3f} times as fast (95 % interval {speed.low:.3f} to {speed.high:.3f})")


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_the_speed_of_nothing_is_refused(folder, lines):
    with pytest.raises(DataError) as error:
        compare_speed(folder / "large", folder / "small", lines, "cpu", SearchConfig())
    assert str(error.value) == "there is nothing to translate: all lines are empty"


def test_memory_that_cannot_be_measured_is_said(tmp_path):
    message = "the memory that .*nowhere takes is unknown, because the process that measures it failed: .*nowhere"
    with pytest.warns(UserWarning, match=message):
        assert peak_memory(tmp_path / "nowhere", ["a"], "cpu") is None
