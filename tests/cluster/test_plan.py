"""The plan of a bulk translation, and what is done of it after a stop."""

import subprocess
import sys

import pytest

from glassformer.cluster.lines import Problem
from glassformer.cluster.plan import Plan, PlannedFile, done_blocks, finish, finish_file, start, write_block
from glassformer.cluster.storage import Storage
from glassformer.errors import ConfigError, DataError

FILE = PlannedFile("a.txt.gz", "a.txt", "text", 5000, "digest", None)
PLAN = Plan({"beam": 5}, (FILE,))


def test_neither_the_plan_nor_its_forms_load_torch():
    program = "import sys; import glassformer.cluster.forms, glassformer.cluster.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_rows_fall_into_blocks():
    assert FILE.blocks == 3
    assert [FILE.rows_of(block) for block in range(3)] == [(1, 2048), (2049, 4096), (4097, 5000)]
    assert sum(FILE.rows_in(block) for block in range(3)) == 5000
    assert PlannedFile("a", "a", "text", 0, "", None).blocks == 1
    assert PLAN.name_of((0, 1)) == "a.txt.gz, rows 2,049 to 4,096"


def test_blocks_become_a_file_in_their_order_and_nothing_else_is_left(tmp_path):
    storage = Storage.of(str(tmp_path))
    start(storage, PLAN, resume=False)
    for block in (2, 0, 1, 0):  # one is done twice, as after a loss
        write_block(storage, (0, block), b"%d\n" % block, [Problem(block + 7, "wrong")] if block else [])
    assert done_blocks(storage, PLAN) == {(0, 0), (0, 1), (0, 2)}
    for _ in range(2):  # the second time as after a loss
        finish_file(storage, 0, FILE)
    assert done_blocks(storage, PLAN) == {(0, 0), (0, 1), (0, 2)}
    assert finish(storage, PLAN) == 2
    assert (tmp_path / "a.txt").read_bytes() == b"0\n1\n2\n"
    assert (tmp_path / "_problems.jsonl").read_text(encoding="utf-8").splitlines() == [
        '{"file": "a.txt.gz", "row": 8, "what": "wrong"}',
        '{"file": "a.txt.gz", "row": 9, "what": "wrong"}',
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_problems.jsonl", "a.txt"]


def test_a_damaged_block_is_removed_and_named(tmp_path):
    storage = Storage.of(str(tmp_path))
    start(storage, PLAN, resume=False)
    for block in range(3):
        write_block(storage, (0, block), b"%d\n" % block, [])
    [path] = tmp_path.glob("_unfinished/blocks/0/1.*")
    path.write_bytes(b"")
    with pytest.raises(DataError, match="was damaged, and is removed: run the same command with --resume"):
        finish_file(storage, 0, FILE)
    assert done_blocks(storage, PLAN) == {(0, 0), (0, 2)}
    assert not (tmp_path / "a.txt").exists()


def test_only_the_same_translation_continues(tmp_path):
    storage = Storage.of(str(tmp_path))
    start(storage, PLAN, resume=False)
    start(storage, PLAN, resume=True)
    with pytest.raises(DataError, match="has a translation that was stopped: continue with --resume, or remove"):
        start(storage, PLAN, resume=False)
    with pytest.raises(ConfigError, match="was started with beam 5, and is to be continued with beam 4"):
        start(storage, Plan({"beam": 4}, (FILE,)), resume=True)
    changed = PlannedFile("a.txt.gz", "a.txt", "text", 5000, "another", None)
    with pytest.raises(DataError, match=r"a.txt.gz is not as it was when the translation to .* was started"):
        start(storage, Plan({"beam": 5}, (changed,)), resume=True)
    (tmp_path / "_unfinished" / "plan.json").write_bytes(b"{")
    with pytest.raises(DataError, match=r"plan.json is damaged .*: remove"):
        start(storage, PLAN, resume=True)


def test_a_translation_that_is_there_stays(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"precious")
    storage = Storage.of(str(tmp_path))
    with pytest.raises(DataError, match=r"has a.txt already: a translation is never overwritten"):
        start(storage, PLAN, resume=False)
    with pytest.raises(DataError, match=r"has a.txt already: there is nothing to resume"):
        start(storage, PLAN, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
