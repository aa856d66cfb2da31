"""Running an action in a process of its own: a fork of this one, which has imported torch already, with limits.

A fork takes milliseconds where a new process takes seconds, and whatever it does (crash, hang, take all memory) harms
nobody else. torch's threads don't survive a fork, so this process computes nothing.
"""

import gc
import io
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NETWORK = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto", "socket.bind"})
"""Events of Python that reach for the network."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an action may take."""

    seconds: float = 30.0
    memory: int = 2 << 30
    """Bytes of memory."""
    stop_after: float | None = None
    """Seconds after which it gets a Ctrl-C, if it may rightly take hours."""
    grace: float = 30.0
    """Seconds in which it must have ended after a Ctrl-C."""


@dataclass(frozen=True)
class Outcome:
    """The end of an action, and what it said."""

    status: int
    """The exit status; minus the signal's number where a signal ended it."""
    stdout: str
    stderr: str
    seconds: float
    memory: int
    """Most bytes of memory that it had at once."""
    interrupted: bool
    """It was sent a Ctrl-C."""
    hung: bool
    """It was killed, because it took too long or did not end after a Ctrl-C."""
    left: int
    """Number of processes that it left running."""
    network: str
    """Its reaches for the network, a line each."""
    limits: Limits


def run_in_child(action: Callable[[], object], folder: Path, streams: Path, limits: Limits) -> Outcome:
    """Run an action in a child process whose current folder is `folder`, and return what came of it.

    `streams` is an empty folder for its output; a file `stdin` in it is its input.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    gc.freeze()  # so that the child's collector touches, and copies, none of the memory that both share
    child = os.fork()
    if child == 0:
        _be_child(action, folder, streams, limits)
    gc.unfreeze()
    status, usage, interrupted, hung = _wait(child, began, limits)
    left = _kill_session(child, min(1.0, limits.grace))
    return Outcome(
        status=os.waitstatus_to_exitcode(status),
        stdout=(streams / "stdout").read_text(encoding="utf-8", errors="surrogateescape"),
        stderr=(streams / "stderr").read_text(encoding="utf-8", errors="surrogateescape"),
        seconds=time.monotonic() - began,
        memory=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        interrupted=interrupted,
        hung=hung,
        left=left,
        network=(streams / "network").read_text(encoding="utf-8"),
        limits=limits,
    )


def _be_child(action: Callable[[], object], folder: Path, streams: Path, limits: Limits) -> None:
    """Run the action and end this process, whatever happens."""
    status = 70
    try:
        os.setsid()
        stdin = streams / "stdin"
        files = [
            os.open(stdin if stdin.exists() else os.devnull, os.O_RDONLY),
            *(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("stdout", "stderr")),
        ]
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), "utf-8")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8")
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), "utf-8", "backslashreplace", None, True)
        _record_network(os.open(streams / "network", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        _set_limits(limits)
        warnings.resetwarnings()  # shown, as in a process of its own
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ |= {"HOME": str(folder.parent / "home"), "TMPDIR": str(folder.parent / "tmp")}
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(streams / "torch")  # torch makes it, and leaves it
        tempfile.tempdir = None  # what this process has found is not the child's
        os.chdir(folder)
        status = _status_of(action)
        sys.stdout.flush()
        for thread in threading.enumerate():  # as at the end of a process
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _status_of(action: Callable[[], object]) -> int:
    """Return the exit status of a process that does this."""
    try:
        action()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _set_limits(limits: Limits) -> None:
    """Let this process take neither the machine's memory nor its disk."""
    for limit, most in (
        (resource.RLIMIT_DATA, limits.memory + (1 << 30)),
        (resource.RLIMIT_FSIZE, 1 << 28),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def _record_network(file: int) -> None:
    """Write every reach for the network into an open file, and refuse it."""

    def record(event: str, arguments: tuple[object, ...]) -> None:
        if event in NETWORK and not any(
            isinstance(one, str | bytes) and event == "socket.connect" for one in arguments
        ):
            os.write(file, f"{event} {arguments!r}\n".encode())
            raise OSError("no network here")

    sys.addaudithook(record)


def _wait(child: int, began: float, limits: Limits) -> tuple[int, resource.struct_rusage, bool, bool]:
    """Wait for the child; return its status and usage, and whether it was sent a Ctrl-C and was killed."""
    interrupted = hung = False
    ends = began + limits.seconds
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage, interrupted, hung
        now = time.monotonic()
        if limits.stop_after is not None and not interrupted and now > began + limits.stop_after:
            os.kill(child, signal.SIGINT)
            interrupted, ends = True, now + limits.grace
        if now > ends and not hung:
            os.kill(child, signal.SIGKILL)
            hung = True
        time.sleep(0.0005 if now < began + 0.1 else 0.01)


def _kill_session(leader: int, seconds: float) -> int:
    """Kill what is left of a child's session after so many seconds, in which it may end; return its number."""
    ends = time.monotonic() + seconds
    while (left := _session(leader)) and time.monotonic() < ends:
        time.sleep(0.02)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return len(left)


def _session(leader: int) -> list[int]:
    """Return the processes of a session that are alive, where the system has a /proc that tells."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended
            continue
        if int(session) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found
