"""The memory that this process can have, and refusals of what can't fit into it. Loads no torch."""

import os
from collections.abc import Iterator
from pathlib import Path

from glassformer.errors import OutOfMemoryError

UNLIMITED = 1 << 60
"""Bytes from which on a limit of the system means that there is none."""
GROUPS, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def total_memory() -> int | None:
    """Return the bytes of memory that this process can have: the machine's, or less where its container has less.

    None where the system doesn't tell, as on Windows.
    """
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no such function, or no such name
        return None
    known = [size for size in (installed, _address_space(), *_limits_of_groups()) if 0 < size < UNLIMITED]
    return min(known, default=None)


def check_room(needed: int, what: str, fix: str) -> None:
    """Raise OutOfMemoryError where so many bytes are more than there are; say what they are for, and what to do."""
    there = total_memory()
    if there is not None and needed > there:
        raise OutOfMemoryError(f"{what} takes {in_words(needed)} of memory, and there is {in_words(there)}: {fix}")


def in_words(size: int) -> str:
    """Return a number of bytes in words.

    >>> in_words(25_276_000_000), in_words(300_000_000)
    ('25.3 GB', '0.3 GB')
    """
    return f"{size / 1e9:,.1f} GB"


def _address_space() -> int:
    """Return the limit that `ulimit -v` has set, or UNLIMITED."""
    try:
        import resource
    except ImportError:  # Windows
        return UNLIMITED
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _limits_of_groups() -> Iterator[int]:
    """Yield the limits of the control groups that the process is in, as containers set them (Linux, cgroup v1 and v2).

    A group may use no more than those that it is inside of.
    """
    try:
        lines = OF_PROCESS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:  # "0::/path" in version 2, "4:memory:/path" in version 1
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for group in (inside, *inside.parents):  # in a container the path may be the host's, and only the root is there
            try:
                yield int((root / group / name).read_text(encoding="ascii"))
            except (OSError, ValueError):  # no such group; "max"
                continue
