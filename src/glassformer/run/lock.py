"""The lock by which one process at a time trains in a run folder; the kernel frees it however the process ends."""

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.decoding import read_limited
from glassformer.errors import RunError
from glassformer.files import GUARDED, is_at, open_own, remove_unfinished, try_lock
from glassformer.run.names import LOCK, RESUME

TRIES = 20
"""Attempts to get the lock, 10 ms apart: `is_held` takes it for an instant."""


@contextmanager
def held(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of a run folder's `resume/`; RunError says which process holds it already.

    A process that holds it is given so many seconds of `patience` to free it.
    Afterwards the lock is gone. Where the file system has no locks (some network file systems), nothing is held and
    training goes on.
    """
    descriptor = _acquire(folder, patience)
    try:
        yield
    finally:
        if descriptor is not None:
            path = folder / RESUME / LOCK
            if is_at(descriptor, path):
                path.unlink()  # before it is freed: afterwards it may be another's
            os.close(descriptor)
        remove_unfinished(folder, RESUME)  # NFS keeps a file that was open, and so its folder, until now


def is_held(folder: Path) -> bool:
    """Return whether a process is training in this run folder."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(folder / RESUME / LOCK, os.O_RDONLY | GUARDED)
    except OSError:
        return False
    try:
        return try_lock(descriptor, shared=True) is False  # shared: two askers don't take each other for a training
    finally:
        os.close(descriptor)


def check_free(folder: Path) -> None:
    """Raise RunError if a process is training in this run folder; call it before the folder is replaced."""
    if is_held(folder):
        raise _busy(folder)


def _acquire(folder: Path, patience: float) -> int | None:
    """Return a descriptor that holds the lock, and write this process's id into the file.

    A file that a dead process has left is taken over.
    """
    if sys.platform == "win32":
        return None
    path = folder / RESUME / LOCK
    until = time.monotonic() + patience
    tries = 0
    while tries < TRIES or time.monotonic() < until:
        tries += 1
        descriptor = _open(path, folder)
        if try_lock(descriptor) is not False and is_at(descriptor, path):  # it may have been removed in between
            if os.fstat(descriptor).st_nlink == 1:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
                return descriptor
            path.unlink()  # the file has another name too, in a copy of the folder say, and stays as it is there
        os.close(descriptor)
        time.sleep(0.01)
    raise _busy(folder)


def _open(path: Path, folder: Path) -> int:
    """Open the lock's file, made if it is missing; RunError where it isn't a regular file, or there is no `resume/`."""
    try:
        return open_own(path, os.O_RDWR | os.O_CREAT)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"the training of {folder} is complete: there is nothing to resume") from None


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
        return read_limited(path, 1000).decode().strip()
    except (OSError, RunError, UnicodeDecodeError):  # whoever holds it can't be named
        return ""
