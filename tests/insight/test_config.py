"""Settings of a pruning that can't work."""

from pathlib import Path

import pytest

from glassformer.errors import ConfigError
from glassformer.insight.config import PruneConfig
from glassformer.pairs.files import PairFiles

BESIDE = r"unpruned must be neither inside \S+pruned(.pruning)? nor above it, got \S+: choose another folder"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 1.0}, r"keep must be at least 0 and less than 1 \(a share of the heads\), got 1.0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, got 0.0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"updates": 0}, "updates must be at least 1, got 0"),
        ({"sentences": -3}, "sentences must be at least 1, got -3"),
        ({"data": ()}, "--data takes a file of sources and one of targets, or one file of both sides, got 0 files"),
        ({"valid": ("a", "b", "c")}, "--valid takes a file of sources and one of targets, .* got 3 files"),
        *(
            ({"unpruned": path}, BESIDE)
            for path in ("pruned", "pruned/inside", ".", ".pruned.pruning", ".pruned.pruning/whole")
        ),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(tmp_path, changes, message):
    paths = {name: tuple(map(Path, changes[name])) for name in ("data", "valid") if name in changes}
    if "unpruned" in changes:
        paths["unpruned"] = tmp_path / changes["unpruned"]
    plain = dict(run=tmp_path / "run", out=tmp_path / "pruned", data=(tmp_path / "pairs.tsv",))
    with pytest.raises(ConfigError, match=message):
        PruneConfig(**{**plain, **changes, **paths})


def test_the_columns_are_those_of_both_tables(tmp_path):
    files = dict(run=tmp_path / "run", out=tmp_path / "pruned", data=(Path("a.csv"),))
    config = PruneConfig(**files, columns=("en", "de"), valid=(Path("b.csv"),))
    assert config.pairs.columns == ("en", "de")
    assert config.valid_pairs == PairFiles(Path("b.csv"), columns=("en", "de"))
    parallel = PruneConfig(**files, columns=("en", "de"), valid=(Path("b.en"), Path("b.de")))
    assert parallel.valid_pairs == PairFiles(Path("b.en"), Path("b.de"))
