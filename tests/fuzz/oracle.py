"""Running a command in a process of its own, and judging how it ends."""

import hashlib
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS, BYTES = 30, 2 << 30
"""A command's limits of time and memory."""
ERROR = "glassformer: error: "
LONGEST = 2000
"""Most characters of an error's line."""
BROKEN = 77
"""Exit status of a command that let an exception through."""


@dataclass(frozen=True)
class Ending:
    """The end of a command."""

    status: int | None
    """Its exit status, the negative number of the signal that ended it, or None where it was too slow."""
    errors: str
    """The text on standard error."""
    memory: int
    orphans: bool
    """Whether a process that it started is left."""

    def check(self) -> None:
        """Raise RuntimeError unless all went well."""
        if self.status != 0:
            raise RuntimeError(f"status {self.status}: {self.errors}")

    def fault(self) -> str | None:
        """Return what is wrong with it: it must end with 0, or with 2 and one line that says why."""
        if self.status is None:
            return f"it took more than {SECONDS} s"
        if self.status == BROKEN or "Traceback (most recent call last)" in self.errors:
            return "a traceback: " + self.errors.strip().rpartition("\n")[2][:300]
        if self.status not in (0, 2):
            return f"it ended with {self.status}"
        if self.memory > BYTES:
            return f"it took {self.memory / 1e9:.1f} GB"
        if self.orphans:
            return "a process is left"
        lines = [line for line in self.errors.splitlines() if line.startswith(ERROR)]
        if self.status == 2 and len(lines) != 1:
            return f"{len(lines)} lines of error"
        if any(len(line) > LONGEST or not line.isprintable() for line in lines):
            return "an error that can't be shown: " + repr(lines[0])[:300]
        return None


def snapshot(folder: Path) -> Mapping[str, object]:
    """Return what is in a folder: the content of files, the targets of links, the kinds of all else."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.blake2b(path.read_bytes()).hexdigest()
        else:
            found[name] = path.is_dir()
    return found


def run(argv: Sequence[str], folder: Path, standard_input: bytes = b"") -> Ending:
    """Run a command in a folder, in a process that is forked from this one, which has loaded torch once."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
        given.write(standard_input)
        given.seek(0)
        child = _fork(argv, folder, errors.fileno(), given.fileno())
        status, memory = _wait(child, time.monotonic() + SECONDS)
        orphans = _is_group_alive(child)
        if orphans:
            os.killpg(child, signal.SIGKILL)
        errors.seek(0)
        return Ending(status, errors.read().decode(errors="replace"), memory, orphans)


def until(argv: Sequence[str], folder: Path, is_enough: Callable[[], bool]) -> None:
    """Run a command and end it with SIGKILL as soon as it has come far enough."""
    with tempfile.TemporaryFile() as errors:
        child = _fork(argv, folder, errors.fileno(), os.open(os.devnull, os.O_RDONLY))
        end = time.monotonic() + SECONDS
        while not is_enough() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        errors.seek(0)
        assert is_enough(), errors.read().decode()


def _fork(argv: Sequence[str], folder: Path, errors: int, given: int) -> int:
    """Start a command and return its process id, which is also that of its group."""
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor, number in ((given, 0), (nothing, 1), (errors, 2)):
            os.dup2(descriptor, number)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a runaway ends before the machine does
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os._exit(_command(argv))
    finally:
        os._exit(BROKEN)


def _command(argv: Sequence[str]) -> int:
    from glassformer.cli import main

    for name in ("getaddrinfo", "create_connection"):
        setattr(socket, name, _no_network)
    try:
        main(list(argv))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return BROKEN
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return 0


def _no_network(*_: object, **__: object) -> None:
    raise AssertionError("Traceback (most recent call last): the network was reached for")


def _wait(child: int, end: float) -> tuple[int | None, int]:
    """Return how a process ended, None if it had to be killed, and the most memory that it had."""
    while time.monotonic() < end:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    _, _, used = os.wait4(child, 0)
    return None, used.ru_maxrss * 1024


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
