"""What needs no cluster of a bulk translation: the files that a pattern names, and rounds until all is done."""

from collections.abc import Generator
from typing import Any

import pytest

from glassformer.errors import ConfigError, DataError, RunError
from glassformer.generation.config import SearchConfig

pytest.importorskip("ray", reason="pip install 'glassformer[cluster]'")

import ray.data.exceptions

from glassformer.cluster import bulk
from glassformer.cluster.bulk import find_files, translate_folder
from glassformer.cluster.config import ClusterConfig
from glassformer.cluster.plan import Plan, PlannedFile
from glassformer.cluster.pool import Pool
from glassformer.cluster.storage import Storage

NAMES = ["a.txt", "b.txt.gz", "c.parquet", "d.jsonl", "_problems.jsonl", ".hidden"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    for name in NAMES:
        (tmp_path / "corpus" / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("corpus", ["a.txt", "b.txt.gz", "c.parquet", "d.jsonl"]),
        ("corpus/", ["a.txt", "b.txt.gz", "c.parquet", "d.jsonl"]),
        ("corpus/*.txt*", ["a.txt", "b.txt.gz"]),
        ("corpus/*.parquet|*.txt.gz", ["b.txt.gz", "c.parquet"]),
        ("corpus/*.parquet|corpus/a.txt", ["a.txt", "c.parquet"]),
        ("corpus/a.txt", ["a.txt"]),
        ("corpus/a.txt|d.jsonl", ["a.txt", "d.jsonl"]),
    ],
)
def test_patterns_name_files_of_one_folder(folder, place, expected):
    for whole in (place, f"file://{folder}/{place}".replace("|corpus", f"|file://{folder}/corpus")):
        storage, found = find_files(whole)
        if not (whole.startswith("file:") and place == "corpus/a.txt"):  # whether a URI is a file is not asked
            assert (storage.root, found) == (str(folder / "corpus"), expected)


def test_a_pattern_without_files_says_what_is_there(folder):
    with pytest.raises(DataError, match=r"corpus/\*.csv: no such files \(4 others are in .*corpus\): give a folder"):
        find_files("corpus/*.csv")
    with pytest.raises(DataError, match=r"missing: no such files \(.*missing has none at all\)"):
        find_files("missing")


def test_two_files_with_one_translation_are_refused(folder):
    (folder / "corpus" / "b.txt").touch()
    with pytest.raises(DataError, match=r"b.txt and b.txt.gz would have the same translation: leave out one of them"):
        find_files("corpus")


def test_what_has_no_single_translation_is_refused_before_a_cluster_is_looked_for(folder):
    with pytest.raises(ConfigError, match=r"n_best must be 1 for c\.parquet, .* a translation in each row, got 2"):
        translate_folder("run", "corpus", "out", config=SearchConfig(beam=2, n_best=2))


@pytest.mark.parametrize("name", ["page.HTML", "film.srt", "strings.json", "page.html.gz"])
def test_a_document_is_refused_before_a_cluster_is_looked_for(folder, name):
    (folder / "corpus" / name).touch()
    with pytest.raises(
        DataError, match=rf"{name} in .*corpus is a document, and a cluster translates lines: .*/\*\.txt'"
    ):
        translate_folder("run", "corpus", "out")


def make_work(folder, rounds: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[bulk._Work, list[list[Any]]]:
    """Work whose rounds yield the blocks, or raise the errors, of a list each; and what each was asked for."""
    plan = Plan({}, (PlannedFile("a.txt", "a.txt", "text", 5000, "", None),))
    storage, asked = Storage.of(str(folder)), []

    def round_(self: bulk._Work, missing: list[Any]) -> Generator[dict[str, Any], None, None]:
        asked.append(missing)
        for one in rounds[len(asked) - 1]:
            if isinstance(one, Exception):
                raise one
            yield {"file": 0, "block": one, "rows": plan.files[0].rows_in(one), "worker": "1 2"}

    monkeypatch.setattr(bulk._Work, "_round", round_)
    monkeypatch.setattr(bulk._Work, "_finish", lambda self, place: self.finishing.append(place))
    monkeypatch.setattr(bulk.ray, "get", lambda places: [None] * len(places))
    monkeypatch.setattr(bulk, "shrunk", lambda pool: Pool(1, pool.cores, pool.device))
    job = bulk.Job(storage, plan.files, SearchConfig(), bulk.LineDemands(), False, "cpu", "float32", 1)
    work = bulk._Work(storage, plan, job, Pool(2, 1, "cpu"), ClusterConfig(), None, set())
    return work, asked


def test_what_is_stuck_with_a_lost_machine_is_done_by_those_that_are_left(folder, monkeypatch, unchecked):
    stuck = ray.data.exceptions.ExecutionTimeoutError("no progress")
    work, asked = make_work(folder, [[2, stuck], [0, 0], [1]], monkeypatch)
    work.do(None)
    assert asked == [[(0, 0), (0, 1), (0, 2)], [(0, 0), (0, 1)], [(0, 1)]]
    assert (work.done, work.finishing, work.pool.workers) == ({(0, 0), (0, 1), (0, 2)}, [0], 1)


def test_blocks_that_end_each_worker_are_named_once_all_others_are_done(folder, monkeypatch, unchecked):
    work, asked = make_work(folder, [[0, 2], [], [], []], monkeypatch)
    with pytest.raises(
        RunError, match=r"a.txt, rows 2,049 to 4,096 and 0 blocks more can't be translated: see what Ray"
    ):
        work.do(None)
    assert asked[1:] == [[(0, 1)]] * 3
    assert work.finishing == []
