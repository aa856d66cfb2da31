"""The lock by which one process at a time trains in a run folder; the kernel frees it however the process ends."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.errors import RunError
from glassformer.run.names import LOCK, RESUME

if sys.platform != "win32":  # which has no flock: nothing is locked there
    import fcntl

ASIDE = ".resume.{}.tmp"
"""Name of `resume/` while it is removed."""
TRIES = 20
"""Attempts to get the lock, 10 ms apart: `is_held` takes it for an instant."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, and return whether it was free.

    It counts as free where there are no locks: on Windows, and on some network filesystems. Shared locks don't exclude
    each other.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # ENOLCK, EOPNOTSUPP, EINVAL: whether somebody else writes can't be known, so it isn't refused
        return True
    return True


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder's `resume/`; RunError says which process holds it already.

    Afterwards the lock is gone, and so is a `resume/` that `remove_resume` has put aside. Where the file system has no
    locks (some network file systems), nothing is held and training goes on.
    """
    descriptor = _acquire(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            path = folder / RESUME / LOCK
            if _is_at(descriptor, path):
                path.unlink()  # before it is freed: afterwards it may be another's
            os.close(descriptor)
        for aside in folder.glob(ASIDE.format("*")):  # NFS keeps a file that was open, and so its folder, until now
            shutil.rmtree(aside, ignore_errors=True)


def is_held(folder: Path) -> bool:
    """Return whether a process is training in this run folder."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(folder / RESUME / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, shared=True)  # shared: two askers don't take each other for a training
    finally:
        os.close(descriptor)


def check_free(folder: Path) -> None:
    """Raise RunError if a process is training in this run folder; call it before the folder is replaced."""
    if is_held(folder):
        raise _busy(folder)


def remove_resume(folder: Path) -> None:
    """Remove `resume/` at once, so that a training killed meanwhile is complete."""
    aside = folder / ASIDE.format(os.getpid())
    (folder / RESUME).rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _acquire(folder: Path) -> int | None:
    """Return a descriptor that holds the lock, and write this process's id into the file."""
    if sys.platform == "win32":
        return None
    path = folder / RESUME / LOCK
    for _ in range(TRIES):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"the training of {folder} is complete: there is nothing to resume") from None
        if try_lock(descriptor) and _is_at(descriptor, path):  # it may have been removed in between
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
            return descriptor
        os.close(descriptor)
        time.sleep(0.01)
    raise _busy(folder)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether this open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _busy(folder: Path) -> RunError:
    """Return the error that says who is training in the folder."""
    pid, _, host = _read(folder / RESUME / LOCK).partition(" ")
    elsewhere = f" on {host}" if host != platform.node() else ""
    if not pid:  # the process has only just begun, or ended
        who = "another process"
    elif pid == str(os.getpid()) and not elsewhere:
        who = "this process already"
    else:
        who = f"another process (pid {pid}{elsewhere})"
    return RunError(f"{folder} is being trained by {who}: wait for it, or stop it")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
