"""Several files with weights."""

from pathlib import Path

import pytest

from glassformer.data.scan import scan_pairs
from glassformer.errors import ConfigError, DataError
from glassformer.pairs.files import PairFiles
from glassformer.pairs.mixture import PairMixture, open_pairs


@pytest.fixture
def files(tmp_path, monkeypatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        rows = "".join(f"{name} {n}\t{name.upper()} {n}\n" for n in range(3))
        Path(f"{name}.tsv").write_text(rows, encoding="utf-8")
    return [Path("a.tsv:2"), Path("b.tsv")]


def test_a_weight_is_how_often_a_file_is_read(files):
    mixture = open_pairs(tuple(files))
    assert [source for source, _ in mixture] == ["a 0", "a 1", "a 2"] * 2 + ["b 0", "b 1", "b 2"]
    assert mixture.name == "a.tsv and b.tsv"
    assert [block.share for block in mixture.blocks()] == pytest.approx([1 / 3, 2 / 3, 1])
    assert [block.repeated for block in mixture.blocks()] == [False, True, False]


def test_pairs_are_drawn_once_whatever_the_weight(files):
    scanned = scan_pairs(open_pairs(tuple(files)), seed=1, most=0, workers=0)
    assert scanned.pairs == 9
    assert sorted(source for source, _ in scanned.sample) == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]


def test_one_file_without_a_weight_is_no_mixture(files):
    assert open_pairs(files[1]) == PairFiles(files[1])
    assert isinstance(open_pairs(files[0]), PairMixture)
    Path("a.tsv:2").write_text("x\ty\n")
    assert open_pairs(files[0]) == PairFiles(files[0]), "a file of this very name"


def test_parallel_files_in_pairs(files):
    sides = (Path("a.tsv:3"), Path("b.tsv")), (Path("b.tsv"), Path("a.tsv"))
    assert len(list(open_pairs(*sides))) == 12
    with pytest.raises(ConfigError, match="as many files of targets as of sources, got 2 of sources and 1 of targets"):
        open_pairs(tuple(files), Path("b.tsv"))


def test_what_cannot_be_used_is_named(files):
    for weight in ("0", "1001", "99999999999999999999"):
        with pytest.raises(ConfigError, match=rf"must be a whole number from 1 to 1,000, got a\.tsv:{weight}$"):
            open_pairs(Path(f"a.tsv:{weight}"))
    assert len(open_pairs(Path("a.tsv:1000")).parts) == 1
    with pytest.raises(DataError, match=r"^c\.tsv: no such file$"):
        open_pairs((*files, Path("c.tsv:2"))).check()
