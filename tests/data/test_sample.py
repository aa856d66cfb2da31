import random
from collections import Counter
from pathlib import Path

import pytest

from glassformer.data.held_out import HeldOut, source_rank
from glassformer.data.sample import LINES, NOTHING, SYMBOLS, sample_text
from glassformer.pairs import files as pairs
from glassformer.pairs.files import Pair, PairFiles

SPLIT = HeldOut(7)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 500)


@pytest.fixture
def rows() -> list[Pair]:
    draw = random.Random(3)
    return [(" ".join(draw.choices("abcdeé", k=5)), f"{i} {' '.join(draw.choices('01', k=4))}") for i in range(1500)]


@pytest.fixture
def files(rows: list[Pair], tmp_path: Path) -> PairFiles:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    return PairFiles(tmp_path / "pairs.tsv")


def test_a_share_is_drawn_all_over_the_files(files, rows):
    sources, targets = sample_text(files, wants=[LINES, LINES], share=0.2, held_out=SPLIT, workers=0)
    drawn = list(zip(sources, targets, strict=True))
    assert 240 < len(drawn) < 360
    places = [rows.index(pair) for pair in drawn]
    assert places == sorted(places)
    assert all(40 < sum(begin <= place < begin + 300 for place in places) < 80 for begin in range(0, 1500, 300))
    others = sample_text(files, wants=[LINES, LINES], share=0.2, held_out=HeldOut(8), workers=0)
    assert others[1] != targets, "another seed draws others"


def test_symbols_are_counted_in_all_lines(files, rows):
    lines, symbols = sample_text(files, wants=[LINES, SYMBOLS], share=0.01, held_out=SPLIT, workers=0)
    assert len(lines) < 50
    assert symbols == Counter(symbol for _, target in rows for symbol in target.split())
    assert sample_text(files, wants=[NOTHING, SYMBOLS], share=0.01, held_out=SPLIT, workers=0) == ([], symbols)


def test_what_is_held_out_is_not_drawn(files, rows):
    sources = [source for source, _ in rows]
    split = HeldOut(7, [source_rank(source, 7) for source in sources[::2]])
    left = [source for source in sources if source not in sources[::2]]
    assert sample_text(files, wants=[LINES, NOTHING], share=1.0, held_out=split, workers=0) == (left, [])
    counted = sample_text(files, wants=[SYMBOLS, NOTHING], share=0.1, held_out=split, workers=0)[0]
    assert counted == Counter(symbol for source in left for symbol in source.split())
