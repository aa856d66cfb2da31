"""Processes on several machines go on only with the same settings, the same run folder and the same checkpoint."""

import json
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from glassformer.errors import ConfigError, RunError
from glassformer.training import agreement
from glassformer.training.agreement import check_folder_agrees, check_settings_agree, common_updates
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import ALONE, Processes


@dataclass(frozen=True)
class Both(Processes):
    """The first of two processes, of which the other does the same with what `others` returns for it."""

    size: int = 2
    others: Callable[[str], str] = str

    def gather(self, lines: Sequence[str]) -> list[str]:
        return [lines[0], "b" if lines[0] == platform.node() else self.others(lines[0])]

    @contextmanager
    def after_the_first(self) -> Iterator[None]:
        yield


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    """A folder is looked at once."""
    monkeypatch.setattr(agreement, "TRIES", 1)


# Settings

CONFIG = TrainConfig(source=Path("a.tsv"), out=Path("run"), seed=3)


@pytest.mark.parametrize("changes", [{}, {"out": "/mnt/run", "source": "b.tsv", "threads": 2, "device": "cpu"}])
def test_machines_may_differ_in_paths_and_in_what_they_compute_on(changes):
    other = json.dumps(CONFIG.to_json() | changes)
    said = []
    check_settings_agree(CONFIG, Both(others=lambda own: said.append(own) or other))
    assert [json.loads(each) for each in said] == [CONFIG.to_json()]
    check_settings_agree(CONFIG, ALONE)


def test_other_settings_are_refused():
    other = json.dumps(replace(CONFIG, seed=5).to_json())
    message = (
        "^all processes need the same settings: seed is 3 for the first and 5 for process 1: start torchrun with the "
        "same command on every machine$"
    )
    with pytest.raises(ConfigError, match=message):
        check_settings_agree(CONFIG, Both(others=lambda _: other))


# Run folders


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "run" / "resume").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text('{"format": 1}')
    (tmp_path / "run" / "resume" / "checksums.json").write_text('{"files": {}}')
    return tmp_path / "run"


def seen_by_the_other(folder: Path) -> Both:
    """The other process sees this folder."""
    return Both(others=lambda _: agreement._mark(folder))


def test_a_folder_that_both_see(run, tmp_path):
    check_folder_agrees(run, seen_by_the_other(run))
    check_folder_agrees(run, seen_by_the_other(Path(shutil.copytree(run, tmp_path / "copied"))))
    check_folder_agrees(run, ALONE)


@pytest.mark.parametrize(
    ("what", "file"), [("no run", None), ("another run", "config.json"), ("another run", "resume/checksums.json")]
)
def test_a_folder_of_which_the_other_has_another_or_none(run, tmp_path, what, file):
    other = tmp_path / "other"
    if file:
        shutil.copytree(run, other)
        (other / file).write_text("{}")
    message = (
        f"process 1 on b sees {what} in {run}, where the first, on {platform.node()}, has its own: all machines need "
        "the same folder, on a file system that they share"
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        check_folder_agrees(run, seen_by_the_other(other))


# Checkpoints


@pytest.mark.parametrize(
    ("first", "second", "common", "missing"),
    [
        ({}, {}, set(), []),
        ({"5": "x", "9": "y"}, {"5": "x", "9": "y"}, {5, 9}, []),
        ({"5": "x", "9": "y"}, {"5": "x"}, {5}, [9]),
        ({"5": "x"}, {"5": "x", "9": "y"}, {5}, []),
        ({"5": "x", "9": "y"}, {"5": "x", "9": "of another training"}, {5}, [9]),
    ],
)
def test_the_checkpoints_that_both_see(first, second, common, missing):
    sentences = [
        f"the checkpoint of update {update} in run is not seen by all processes; going on from before it"
        for update in missing
    ]
    found = common_updates(Path("run"), Both(others=lambda _: json.dumps(second)), lambda: first)
    assert found == (common, sentences)


@pytest.mark.parametrize(
    ("first", "second"), [({"12": "x", "9": "y"}, {}), ({}, {"5": "x"}), ({"9": "x"}, {"9": "of another training"})]
)
def test_where_none_is_seen_by_both_training_does_not_begin_anew(first, second):
    lists = (", ".join(sorted(each, key=int)) or "none" for each in (first, second))
    message = (
        f"there is no checkpoint in run that all processes see, of the updates: process 0 on {platform.node()} "
        f"{next(lists)}; process 1 on b {next(lists)}. All machines need the same folder, on a file system that they "
        "share"
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        common_updates(Path("run"), Both(others=lambda _: json.dumps(second)), lambda: first)


def test_a_file_system_that_lags_behind_is_waited_for(monkeypatch):
    monkeypatch.setattr(agreement, "TRIES", 3)
    monkeypatch.setattr(agreement.time, "sleep", lambda _: None)
    lagging = iter([{"5": "x"}, {"5": "x", "9": "y"}])
    processes = Both(others=lambda _: json.dumps(next(lagging)))
    assert common_updates(Path("run"), processes, lambda: {"5": "x", "9": "y"}) == ({5, 9}, [])
