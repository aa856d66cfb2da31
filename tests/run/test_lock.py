"""One process at a time trains in a run folder; however it ends, the folder is free again."""

import errno
import fcntl
import os
import platform
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from glassformer.errors import RunError
from glassformer.files import remove_at_once
from glassformer.run.lock import check_free, held, is_held


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose training is unfinished."""
    (tmp_path / "run" / "resume" / "train").mkdir(parents=True)
    (tmp_path / "run" / "resume" / "valid.json").write_text("{}")
    return tmp_path / "run"


def left(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "resume").iterdir())


def test_what_another_process_holds_is_refused(run, holding):
    with holding(run) as process:
        message = f"{run} is being trained by another process (pid {process.pid}): wait for it, or stop it"
        with pytest.raises(RunError, match=f"^{re.escape(message)}$"), held(run):
            pass
        with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
            check_free(run)
        assert is_held(run)
        assert (run / "resume" / "lock").read_text().split() == [str(process.pid), platform.node()]


def test_a_process_that_is_ending_is_waited_for(run, holding):
    with holding(run) as process:
        end = threading.Timer(0.5, process.kill)
        end.start()
        with held(run, patience=60.0):
            assert process.wait(10) == -signal.SIGKILL


def test_a_process_that_was_killed_holds_nothing(run, holding):
    with holding(run) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert left(run) == ["lock", "train", "valid.json"]
        assert not is_held(run)
        check_free(run)
        (run / "resume" / "lock").write_text("123456789 of-a-machine-with-a-long-name.example.org\n" * 2)
        with held(run):
            assert (run / "resume" / "lock").read_text() == f"{os.getpid()} {platform.node()}\n"


def test_an_error_in_the_training_frees_it(run):
    with pytest.raises(ZeroDivisionError), held(run):
        raise ZeroDivisionError
    assert left(run) == ["train", "valid.json"]
    with held(run):
        assert is_held(run)


def test_twice_in_one_process_it_is_refused_and_no_file_stays_open(run):
    before = os.listdir("/dev/fd")
    message = "is being trained by this process already: wait for it, or stop it"
    with held(run):
        assert is_held(run)
        with pytest.raises(RunError, match=message), held(run):
            pass
        assert is_held(run)
        assert len(os.listdir("/dev/fd")) == len(before) + 1
    assert os.listdir("/dev/fd") == before


def test_a_process_of_another_machine_is_named_with_it(run):
    with (run / "resume" / "lock").open("w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("12345 node7\n")
        file.flush()
        with pytest.raises(RunError, match=r"by another process \(pid 12345 on node7\): wait"):
            check_free(run)
        file.truncate(0)  # it has the lock, and hasn't written its id yet
        with pytest.raises(RunError, match="by another process: wait for it"):
            check_free(run)


def test_a_finished_training_removes_resume_while_it_holds_it(run):
    (run / "resume" / "checkpoint").mkdir()
    with held(run):
        remove_at_once(run / "resume")
        assert not (run / "resume").exists()
    assert list(run.iterdir()) == []


def test_what_is_removed_is_gone_at_once(run, monkeypatch):
    """Killed while its files are removed, a training is complete; the next one to hold the lock has nothing of it."""
    (run / "resume" / "checkpoint").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    remove_at_once(run / "resume")
    assert not (run / "resume").exists()
    assert len(list(run.iterdir())) == 1
    monkeypatch.undo()
    (run / "resume").mkdir()
    with held(run):
        pass
    assert [path.name for path in run.iterdir()] == ["resume"]


def test_a_resume_folder_that_is_gone_before_the_lock_is_no_error(run):
    with held(run):
        shutil.rmtree(run / "resume")
        assert not is_held(run)
    assert list(run.iterdir()) == []


def test_the_lock_of_whoever_came_after_is_left_alone(run):
    with held(run):
        shutil.rmtree(run / "resume")
        (run / "resume").mkdir()
        (run / "resume" / "lock").write_text("another's")
    assert (run / "resume" / "lock").read_text() == "another's"


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_anew(run, monkeypatch):
    removed = []

    def flock(descriptor: int, kind: int) -> None:
        if not removed:  # its holder ends between our opening and our locking it
            removed.append((run / "resume" / "lock").unlink())
        real(descriptor, kind)

    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    with held(run):
        assert removed
        assert is_held(run)


def test_what_is_complete_cannot_be_held(run):
    shutil.rmtree(run / "resume")
    with pytest.raises(RunError, match=f"the training of {run} is complete: there is nothing to resume"), held(run):
        pass
    assert not is_held(run)
    check_free(run)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_filesystem_without_locks_is_trained_on_all_the_same(run, monkeypatch, number):
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(run):
        assert not is_held(run)
    assert left(run) == ["train", "valid.json"]


def test_looking_hinders_nobody(run):
    with (run / "resume" / "lock").open("w") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)  # as is_held does, for an instant
        assert not is_held(run)
        threading.Timer(0.03, fcntl.flock, [looks, fcntl.LOCK_UN]).start()
        with held(run):
            assert is_held(run)


# Whatever stands in the lock's place


@pytest.mark.parametrize("kind", ["link", "link to nothing", "folder", "pipe"])
def test_what_is_no_file_is_refused_and_left_as_it_is(run, tmp_path, kind):
    """A run folder may come from a stranger: its lock could lead anywhere, or keep waiting whoever opens it."""
    lock, precious = run / "resume" / "lock", tmp_path / "precious"
    precious.write_text("mine")
    make = {
        "link": lambda: lock.symlink_to(precious),
        "link to nothing": lambda: lock.symlink_to(tmp_path / "none"),
        "folder": lock.mkdir,
        "pipe": lambda: os.mkfifo(lock),
    }
    make[kind]()
    assert not is_held(run)
    with pytest.raises(RunError, match="resume/lock must be a file, and is a link, a folder, a pipe or a device"):
        held(run).__enter__()
    assert precious.read_text() == "mine"
    assert not (tmp_path / "none").exists()
    assert left(run) == ["lock", "train", "valid.json"]


def test_a_file_with_another_name_too_is_not_changed(run, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (run / "resume" / "lock").hardlink_to(tmp_path / "precious")
    with held(run):
        assert is_held(run)
        assert (run / "resume" / "lock").read_text() == f"{os.getpid()} {platform.node()}\n"
    assert (tmp_path / "precious").read_text() == "mine"
