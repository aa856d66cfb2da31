"""Commands as processes of their own, forked from one that has loaded torch: so they begin at once with their work.

As a program, `python tests/torture/children.py ARGUMENTS` is the command from Python's very beginning.
Only constants of tuning are changed here, so that tiny data have many blocks, chunks and reports.
"""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


from glassformer import cli, pictures
from glassformer.__main__ import main as command_line
from glassformer.data import preparation
from glassformer.generation import stream
from glassformer.generation.kernels import passes
from glassformer.insight import prune, speed
from glassformer.pairs import files as pairs_files
from glassformer.training import loop, progress

LOADED_BEFORE = ("torch._dynamo", "ctranslate2", "glassformer.interop.ctranslate2", "glassformer.interop.huggingface")
"""Modules that commands load while they work: loaded here, as compiled code is, they cost their forks no time."""
for name in LOADED_BEFORE:
    import_module(name)
passes.compiled()

pictures.can_draw = progress.can_draw = lambda: False  # half a second for what is written as everything else is
pairs_files.BLOCK_BYTES = 1 << 8
preparation.WORTH_KEEPING = 100
loop.REPORT_EVERY = 5
stream.LINES_AT_ONCE = 8
prune.SPEED_LINES = 1
prune.peak_memory = lambda *_: None  # it is another process, which loads torch
speed.TURNS = 2

MARK = "GLASSFORMER_TORTURE"
"""Variable of the environment by which the processes that commands start are known."""
ASKING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that ask a process to end."""
LONGEST = 60.0
"""Seconds after which a command hangs."""
PATIENCE = 5.0
"""Seconds in which the processes of a command must have ended after it."""


class FaultError(Exception):
    """Something that a fault has broken; the message says what."""


@dataclass(frozen=True)
class Ending:
    """The end of a process."""

    status: int
    """The exit status, or minus the signal that ended it."""
    out: str
    err: str

    def check(self, *allowed: int) -> "Ending":
        """Raise FaultError unless it ended with such a status and, if that is an error, with a line that says why."""
        if "Traceback" in self.err or "Exception ignored" in self.err:
            raise FaultError(f"a traceback: {self.err.strip()[-1500:]}")
        if self.status not in allowed:
            raise FaultError(f"status {self.status}, expected {allowed}: {self.err.strip()[-1500:]}")
        if self.status == 2 and not self.err.rpartition("glassformer: error: ")[1]:
            raise FaultError(f"it gives no reason: {self.err.strip()[-1500:]}")
        return self


class Child:
    """A command that runs in a folder."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        before: Callable[[], object] = lambda: None,
        streams: Sequence[int | None] = (None, None, None),
        work: Callable[[], int] | None = None,
    ) -> None:
        """Start it. `before` is called in it first; `streams` replace its standard streams, and `work` the command."""
        self.began = time.monotonic()
        self.argv = list(argv)
        out, err = os.pipe(), os.pipe()
        # Until it knows what it is: interrupted before, the fork would go on as this process.
        before_fork = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
        self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before_fork)
        else:
            given = [
                own if own is not None else pipe for own, pipe in zip(streams, (None, out[1], err[1]), strict=True)
            ]
            _become(argv, folder, before, given, work)
        for _, end in (out, err):
            os.close(end)
        self._pidfd = os.pidfd_open(self.pid)
        self._said = {out[0]: bytearray(), err[0]: bytearray()}
        self._open = set(self._said)

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        signal.pidfd_send_signal(self._pidfd, number)

    def wait(self, *, after: float | None = None, number: int = signal.SIGKILL) -> Ending:
        """Wait for its end; `after` so many seconds since its beginning, send it a signal."""
        limit, sent = self.began + LONGEST, after is None
        while True:
            until = limit if sent or after is None else self.began + after
            found, _, _ = select.select([self._pidfd, *self._open], [], [], max(0.0, until - time.monotonic()))
            self._read(self._open & set(found))
            if self._pidfd in found:
                break
            if time.monotonic() >= limit:
                self.send(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise FaultError(f"it hung for {LONGEST:.0f} s: {' '.join(self.argv)}")
            if not sent and time.monotonic() >= until:
                sent = True
                self.send(number)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.seconds = time.monotonic() - self.began
        while found := select.select([*self._open], [], [], 0)[0]:  # what it said last
            self._read(found)
        for descriptor in (self._pidfd, *self._said):
            os.close(descriptor)
        return Ending(status, *(said.decode(errors="replace") for said in self._said.values()))

    def _read(self, pipes: Iterable[int]) -> None:
        """Read what has come; a pipe that has ended is asked no more."""
        for pipe in pipes:
            if data := os.read(pipe, 1 << 16):
                self._said[pipe] += data
            else:
                self._open.remove(pipe)


def _become(
    argv: Sequence[str],
    folder: Path,
    before: Callable[[], object],
    streams: Sequence[int | None],
    work: Callable[[], int] | None,
) -> None:
    """Be the command; this process ends with it."""
    status: int = 70
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command begins, as in a process that is being loaded
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        os.setpgid(0, 0)
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, stream in enumerate(streams):
            os.dup2(null if stream is None else stream, number)
        os.closerange(3, 256)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
        os.environ[MARK] = str(os.getppid())
        before()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if work is None:
            sys.argv = ["glassformer", *argv]
            command_line()
        else:
            status = work()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt as interrupt:
        if (last := interrupt.__traceback__) is not None and last.tb_next is None:  # before the command, or after it
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        traceback.print_exc()
        status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def run(argv: Sequence[str], folder: Path) -> Ending:
    """Run a command to its end."""
    return Child(argv, folder).wait()


def orphans() -> list[int]:
    """Return the processes that commands of this process have started and left."""
    mark, found = f"{MARK}={os.getpid()}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def kill_orphans() -> None:
    """Kill what commands of this process have started and left."""
    for pid in orphans():
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


def check_no_orphans() -> None:
    """Raise FaultError where a process that a command has started lives on after it."""
    until = time.monotonic() + PATIENCE
    while left := orphans():
        if time.monotonic() > until:
            kill_orphans()
            raise FaultError(f"{len(left)} processes of the command live on")
        time.sleep(0.02)


if __name__ == "__main__":
    cli.main(sys.argv[1:])
