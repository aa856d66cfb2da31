"""Locks on open files, which the kernel frees however the process ends. Loads no torch."""

import os
import sys
from pathlib import Path

if sys.platform != "win32":  # which has no flock: nothing is locked there
    import fcntl

TO_LOCK = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""How a file is opened to be locked: a link is not followed, and a pipe doesn't wait for its other end."""


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


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether this open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False
