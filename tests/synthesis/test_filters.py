"""The filters of written pairs."""

import math
from pathlib import Path

import pytest

from glassformer.synthesis.config import BacktranslateConfig, DistillConfig
from glassformer.synthesis.filters import PairFilter, WrittenPair, read_pairs
from glassformer.training.config import TrainConfig

LINES = ["hello there", "good morning", "see you soon", "thank you all"]


def config(kind: type = DistillConfig, **changes) -> DistillConfig:
    return kind(run=Path("run"), text=(Path("text"),), student=TrainConfig(out=Path("out")), **changes)


def good() -> list[WrittenPair]:
    return [WrittenPair(line, line.upper(), -0.5, 100.0) for line in LINES]


def left_out(bad: WrittenPair, **changes) -> str | None:
    """Return the reason for which a pair is left out among good ones; None: it stays."""
    pairs = [*good(), bad]
    filters = PairFilter(config(**changes), pairs)
    kept = [pair for pair in pairs if filters.keeps(pair)]
    assert kept[:4] == good()
    counts = dict(filters.counts["written pairs"])
    assert (counts.pop("read"), counts.pop("left")) == (5, len(kept))
    reasons = [reason for reason, count in counts.items() if count]
    assert len(reasons) == 5 - len(kept) <= 1
    return next(iter(reasons), None)


def test_a_good_pair_stays():
    assert left_out(WrittenPair("how are you", "HOW ARE YOU", -0.5, 100.0)) is None


@pytest.mark.parametrize("pair", [("a b", " "), ("", "A B"), ("  ", "")])
def test_empty(pair):
    assert left_out(WrittenPair(*pair, -0.5, 100.0)) == "empty"


def test_copies():
    pair = WrittenPair("Anna Smith", "Anna Smith ", -0.5, 100.0)
    assert left_out(pair) == "copies"
    assert left_out(pair, keep_copies=True) is None


def test_unknown_tokens():
    pair = WrittenPair("how are you", "HOW ⁇ YOU", -0.5, 100.0)
    assert left_out(pair) == "with unknown tokens"
    assert left_out(WrittenPair("how ⁇ you", "HOW ⁇ YOU", -0.5, 100.0)) is None  # the text has them
    pairs = [WrittenPair(text, line, -0.5, 100.0) for text, line in (("HOW ⁇ YOU", "how"), ("how", "HOW ⁇ YOU"))]
    filters = PairFilter(config(BacktranslateConfig), pairs)
    assert [filters.keeps(pair) for pair in pairs] == [False, True]


@pytest.mark.parametrize(
    ("source", "target", "factor", "reason"),
    [
        ("ten chars.", "x" * 40, 3.0, None),  # 45 / 15 is 3, and usual is 1
        ("ten chars.", "x" * 41, 3.0, "of unusual length"),
        ("x" * 41, "ten chars.", 3.0, "of unusual length"),
        ("ten chars.", "x" * 41, 3.1, None),
        ("hi", "x" * 14, 3.0, None),  # 7 times as long, and yet short
    ],
)
def test_unusual_lengths(source, target, factor, reason):
    assert left_out(WrittenPair(source, target, -0.5, 100.0), length_factor=factor) == reason


def test_lengths_are_usual_or_not_beside_the_others():
    pairs = [WrittenPair("x" * 45, "y" * 5, -0.5, 100.0) for _ in range(3)]  # as from German to Chinese
    assert pairs[0].stretch == pytest.approx(math.log(10 / 50))
    filters = PairFilter(config(), pairs)
    assert [filters.keeps(pair) for pair in pairs] == [True, False, False]
    assert filters.counts["written pairs"]["repeated"] == 2
    assert not filters.keeps(WrittenPair("x" * 45, "y" * 45, -0.5, 100.0))


def test_scores():
    pair = WrittenPair("how are you", "HOW ARE YOU", -1.5, 100.0)
    assert left_out(pair, min_score=-1.5) is None
    assert left_out(pair, min_score=-1.25) == "of a low score"
    pairs = [WrittenPair(str(n), "x", -n / 4, 100.0) for n in range(1, 8)]
    scores = PairFilter(config(), pairs).counts["scores"]
    assert scores == {"a quarter below": -1.5, "half below": -1.0, "three quarters below": -0.5}


def test_agreement():
    pair = WrittenPair("how are you", "HOW ARE YOU", -0.5, 35.0)
    assert left_out(pair, round_trip=Path("back"), min_agreement=35.0) is None
    assert left_out(pair, round_trip=Path("back"), min_agreement=36.0) == "not coming back"


def test_pairs_that_stand_already():
    assert left_out(good()[2]) == "repeated"
    filters = PairFilter(config(), good())
    assert filters.is_new((LINES[0], LINES[0].upper()))  # a real pair
    assert [filters.keeps(pair) for pair in good()] == [False, True, True, True]


def test_pairs_are_read_from_the_files_of_the_stages(tmp_path):
    text, written, returned = (tmp_path / name for name in ("text", "written", "returned"))
    text.write_text("a dog\na cat\n")
    written.write_text("-0.5\tein Hund\n-0.75\teine Katze\n")
    returned.write_text("-0.1\ta dog\n-0.1\tsomething else\n")
    [dog, cat] = read_pairs(config(), text, written, None)
    assert dog == WrittenPair("a dog", "ein Hund", -0.5, 100.0)
    assert cat == WrittenPair("a cat", "eine Katze", -0.75, 100.0)
    [dog, cat] = read_pairs(config(BacktranslateConfig), text, written, returned)
    assert dog == WrittenPair("ein Hund", "a dog", -0.5, 100.0)
    assert (cat.source, cat.target) == ("eine Katze", "a cat")
    assert cat.agreement < 20
