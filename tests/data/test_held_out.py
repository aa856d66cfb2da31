from collections import Counter
from pathlib import Path

import pytest

from glassformer.data.held_out import HeldOut, choose_held_out, source_rank
from glassformer.data.scan import scan_pairs
from glassformer.errors import DataError
from glassformer.pairs.files import Pair, PairFiles


@pytest.fixture
def files(tmp_path) -> PairFiles:
    """1,000 pairs of 500 sources: every source stands twice, with another target each time."""
    rows = [f"source {i % 500}\ttarget {i}\n" for i in range(1000)]
    return PairFiles(write(tmp_path / "pairs.tsv", rows))


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("".join(rows))
    return path


def chosen_of(files: PairFiles, count: int = 100, seed: int = 3) -> HeldOut:
    scanned = scan_pairs(files, seed=seed, most=1000, workers=0)
    return choose_held_out(scanned.lowest, scanned.usable, count, seed, files.name)


def halves(files: PairFiles, count: int = 100, seed: int = 3) -> tuple[list[Pair], list[Pair]]:
    """Pairs for training and for validation."""
    chosen = chosen_of(files, count, seed)
    return [p for p in files if not chosen.includes(p[0])], [p for p in files if chosen.includes(p[0])]


def test_each_pair_is_on_one_side_with_all_of_its_source(files):
    train, valid = halves(files)
    assert Counter(train + valid) == Counter(files)
    assert not {source for source, _ in train} & {source for source, _ in valid}
    assert halves(files) == (train, valid), "depends on the seed and nothing else"
    assert halves(files, seed=5)[1] != valid


def test_the_sources_of_lowest_rank_that_fit_are_held_out(files):
    ranks = sorted({source_rank(source, 3) for source, _ in files})
    for count, sources in ((100, 50), (7, 3)):
        assert sorted(chosen_of(files, count).ranks) == ranks[:sources]


def test_ranks_stay_as_they_were():
    # Of keyed BLAKE2b with eight bytes: another function would hold out other pairs with the same seed.
    assert (source_rank("a", 1), source_rank("Grüße", 7)) == (4432693205339462510, 11587297147288940003)


def test_without_a_choice_nothing_is_held_out():
    assert not HeldOut(3).includes("a")


def test_as_many_are_held_out_as_asked_for(files):
    for count in (2, 50, 100, 998):
        assert len(halves(files, count=count)[1]) == count
    assert len(halves(files, count=51)[1]) == 50  # both pairs of a source, or none


def test_a_source_too_frequent_to_be_held_out_stays_in_training(tmp_path):
    rows = ["frequent\tx\n"] * 200 + [f"rare {i}\ty\n" for i in range(100)]
    files = PairFiles(write(tmp_path / "pairs.tsv", rows))
    for seed in range(9):
        train, valid = halves(files, count=15, seed=seed)
        assert 14 <= len(valid) <= 15
        assert len(train) + len(valid) == 300
        assert ("frequent", "x") not in valid


def test_a_source_that_fits_is_found_wherever_its_rank_is(tmp_path):
    rows = [f"double {i}\t{side}\n" for i in range(20) for side in "xy"]
    files = PairFiles(write(tmp_path / "pairs.tsv", [*rows, "single\tz\n"]))
    for seed in range(9):
        assert halves(files, count=1, seed=seed)[1] == [("single", "z")]


def test_nothing_left_to_train_on_is_refused(tmp_path):
    files = PairFiles(write(tmp_path / "pairs.tsv", ["one\ttwo\n"]))
    with pytest.raises(DataError, match=r"pairs.tsv has too few pairs with different sources .*: give --valid-source"):
        chosen_of(files, 1)
