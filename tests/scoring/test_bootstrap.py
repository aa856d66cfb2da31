"""Paired bootstrap resampling: beside sacreBLEU's own command, and on systems whose difference is known."""

import re
import subprocess
import sys
import tracemalloc

import pytest

from glassformer import memory
from glassformer.errors import ArgumentError, DataError, OutOfMemoryError
from glassformer.scoring.bootstrap import BYTES_A_LINE, paired_bootstrap

COLORS = ["red", "blue", "green", "grey"] * 9
REFERENCES = [f"the {color} house stands near {n} old trees ." for n, color in enumerate(COLORS)]
GOOD = [line.replace("old", "older") if n % 3 == 0 else line for n, line in enumerate(REFERENCES)]
BAD = [line.replace("stands near", "is at") if n % 2 == 0 else line for n, line in enumerate(REFERENCES)]


@pytest.mark.parametrize("times", [1, 9])
def test_a_difference_on_one_line_is_no_evidence_however_often_it_stands_there(times):
    for one in paired_bootstrap(["a b d d"] * times, ["a b c d"] * times, ["a b c d"] * times):
        assert one.difference > 0
        assert one.p_value == 1


@pytest.mark.parametrize(("lines", "least"), [(2, 0.5), (3, 0.25), (5, 1 / 16)])
def test_a_difference_on_few_lines_is_as_likely_as_coins_that_fall_the_same_way(lines, least):
    good, bad = [f"a b c d {n}" for n in range(lines)], [f"a b d d {n}" for n in range(lines)]
    for one in paired_bootstrap(bad, good, good):
        assert one.p_value == least
    spaced = [line.replace(" ", "  ") for line in GOOD]  # the same text
    for one in paired_bootstrap([*bad, *spaced], [*good, *GOOD], [*good, *GOOD]):
        assert one.p_value >= least


def test_the_figures_are_those_of_sacrebleu(tmp_path):
    for name, lines in (("references", REFERENCES), ("bad", BAD), ("good", GOOD)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        "references",
        "-i",
        "bad",
        "good",
        "-m",
        "bleu",
        "chrf",
        "--paired-bs",
    ]
    told = subprocess.run([*command, "-f", "text"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    for one in paired_bootstrap(BAD, GOOD, REFERENCES):
        for score, margin in ((one.first, one.first_margin), (one.second, one.second_margin)):
            assert re.search(rf"{score:.1f} \(.* ± {margin:.1f}\)", told)
        assert f"{one.p_value:.4f}" in told
        assert "seed:12345" in one.signature


def test_a_clear_difference_is_no_luck_and_none_is():
    for one in paired_bootstrap(BAD, GOOD, REFERENCES):
        assert one.difference > 0
        assert one.p_value < 0.01
    for one in paired_bootstrap(GOOD, GOOD, REFERENCES):
        assert (one.difference, one.p_value) == (0, 1)  # sacreBLEU says 0.001: no draw differs by more than nothing


@pytest.mark.parametrize(("first", "second", "references"), [(GOOD, BAD[1:], REFERENCES), ([], [], [])])
def test_lines_that_do_not_match_are_refused(first, second, references):
    with pytest.raises(
        DataError, match="both systems and the references must have the same number of lines, at least 1, got"
    ):
        paired_bootstrap(first, second, references)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_line_is_named():
    with pytest.raises(ArgumentError, match=r"references must be str, got NoneType for references\[0\]"):
        paired_bootstrap(["a"], ["b"], [None])
    with pytest.raises(ArgumentError, match="first must be a sequence of lines, got one str: pass"):
        paired_bootstrap("ab", ["a", "c"], ["a", "b"])


def test_more_lines_than_fit_into_memory_are_refused(monkeypatch):
    lines = ["a"] * 101
    monkeypatch.setattr(memory, "total_memory", lambda: 100 * BYTES_A_LINE)
    message = "resampling 101 lines takes 0.0 GB of memory, and there is 0.0 GB: take fewer"
    with pytest.raises(OutOfMemoryError, match=f"^{message}$"):
        paired_bootstrap(lines, lines, lines)
    paired_bootstrap(lines[1:], lines[1:], lines[1:])


def test_the_memory_of_a_line_is_what_is_said():
    lines = [f"a b c d e {n}" for n in range(300)]
    tracemalloc.start()
    try:
        paired_bootstrap(lines, lines[::-1], lines)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < most / len(lines) / BYTES_A_LINE < 1.2
