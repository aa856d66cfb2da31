import random
from collections import Counter
from pathlib import Path

import pytest

from glassformer.data import scan
from glassformer.data.held_out import source_rank
from glassformer.data.scan import ScanResult, scan_pairs
from glassformer.errors import DataError
from glassformer.pairs import files as pairs
from glassformer.pairs.files import PairFiles
from glassformer.pairs.mixture import PairMixture


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 200)


def rows(count: int) -> list[tuple[str, str]]:
    """Pairs of which many have the same source."""
    draw = random.Random(5)
    return [(f"source {draw.randint(1, count // 2)}", f"Ziel {i} ü") for i in range(count)]


def scanned(files: PairFiles, most: int = 30, seed: int = 7, workers: int = 0, **more) -> ScanResult:
    return scan_pairs(files, seed=seed, most=most, workers=workers, **more)


@pytest.mark.parametrize("most", [0, 1, 30, 1000])
def test_the_lowest_ranks_of_all_blocks_are_found_with_all_their_pairs(tmp_path, write_pairs, most):
    ranks = Counter(source_rank(source, 7) for source, _ in rows(300))
    expected = {low: ranks[low] for low in sorted(ranks)[:most]}
    files = write_pairs(tmp_path, rows(300))
    result = scanned(files, most)
    characters = sum(len(source) + len(target) for source, target in rows(300))
    assert (result.pairs, result.characters, result.lowest) == (300, characters, expected)
    if most == 30:
        assert scanned(files, most, workers=2) == result


def test_the_digest_is_of_the_content_wherever_it_is(tmp_path, write_pairs):
    here, there = write_pairs(tmp_path / "here", rows(100)), write_pairs(tmp_path / "there", rows(100), ".gz")
    assert scanned(here).digest == scanned(there).digest
    assert len(scanned(here).digest) == 32


def test_a_file_that_is_counted_twice_has_another_digest_than_two_of_the_same_pairs(tmp_path):
    one, other = tmp_path / "one.tsv", tmp_path / "other.tsv"
    for path in (one, other):
        path.write_text("a b\tc\nd\te f\n")
    twice = scan_pairs(PairMixture.of([Path(f"{one}:2")], ()), seed=1, most=0, workers=0)
    two = scan_pairs(PairMixture.of([one, other], ()), seed=1, most=0, workers=0)
    assert twice.pairs == two.pairs == 4
    assert twice.digest != two.digest


def test_any_other_content_has_another_digest(tmp_path, write_pairs):
    pairs = rows(100)
    last, swapped = pairs[-1], [(target, source) for source, target in pairs]
    changed = [
        [*pairs[:-1], (last[0] + "x", last[1])],
        [*pairs[:-1], (last[0], last[1].replace("ü", "u"))],
        [*pairs, ("", "")],
        pairs[:-1],
        [pairs[1], pairs[0], *pairs[2:]],
        swapped,
        [(pairs[0][0] + "\n" + pairs[1][0], pairs[0][1] + "\n" + pairs[1][1] + "\r"), *pairs[2:]],
    ]
    digests = [scanned(write_pairs(tmp_path, each)).digest for each in [pairs, *changed]]
    assert len(set(digests)) == len(digests) == 8


def test_each_pair_may_be_drawn_whatever_its_file(tmp_path, write_pairs, monkeypatch):
    monkeypatch.setattr(scan, "SAMPLED", 200)
    long = [(f"long {n}", "x") for n in range(900)]
    write_pairs(tmp_path / "a", long), write_pairs(tmp_path / "b", [(f"short {n}", "x") for n in range(100)])
    files = [tmp_path / name / "source" for name in "ab"], [tmp_path / name / "target" for name in "ab"]
    sample = scanned(PairMixture.of(*files)).sample
    assert len(set(sample)) == len(sample) == 200
    assert 8 <= sum(source.startswith("short") for source, _ in sample) <= 34  # 20 expected, 4 standard deviations
    assert 80 <= sum(int(source.split()[1]) >= 450 for source, _ in sample if source.startswith("long")) <= 114


def test_progress_is_told_of_every_block(tmp_path, write_pairs):
    seen: list[tuple[int, float]] = []
    scanned(write_pairs(tmp_path, rows(300)), progress=lambda pairs, share: seen.append((pairs, share)))
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert seen[-1] == (300, 1.0)


def test_files_that_cannot_be_used(tmp_path, write_pairs):
    with pytest.raises(DataError, match=r"source is empty: at least one pair is needed"):
        scanned(write_pairs(tmp_path, []))
    files = write_pairs(tmp_path, rows(300))
    with files.target.open("ab") as file:
        file.write(b"caf\xe9\n")
    with files.source.open("ab") as file:
        file.write(b"coffee\n")
    for workers in (0, 2):
        with pytest.raises(DataError, match=r"target, line 301: not UTF-8 \(byte 0xe9 at column 4\)"):
            scanned(files, workers=workers)


def test_pairs_that_may_be_held_out_have_both_sides_and_count_once(tmp_path, write_pairs):
    good = rows(40)
    files = write_pairs(tmp_path, [*good, ("alone", " "), ("", "also")])
    once, thrice = scanned(files), scanned(PairMixture(((files, 3),)))
    assert (once.pairs, once.usable, thrice.pairs, thrice.usable) == (42, 40, 126, 40)
    assert (once.with_text, thrice.with_text) == (40, 120)
    assert sorted(once.usable_sample()) == sorted(good)
    assert once.lowest == thrice.lowest
    assert source_rank("alone", 7) not in once.lowest
