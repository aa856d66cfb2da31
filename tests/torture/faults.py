"""The faults: each makes something go wrong with a command, judges what is left, and then does what a user would do."""

import ctypes
import math
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import children
from children import Child, Ending, FaultError, check_no_orphans
from lab import Command, differences, tree

UNREADABLE = "/proc/self/mem"
"""A regular file of Linux whose first byte can't be read: the system says EIO, as of a damaged disk."""
NOBODY = 65534
FORKS, THREADS = 4, 8


class Impossible(Exception):
    """This machine doesn't allow the fault; the message says what is missing."""


@dataclass(frozen=True)
class Case:
    """A command that something happens to."""

    command: Command
    folder: Path
    draw: Random
    number: int

    def start(self, **given: object) -> Child:
        return Child(self.command.argv, self.folder, **given)

    def instant(self) -> float:
        """Return a random moment of the command's work, in seconds since its beginning."""
        return self.draw.random() * self.command.seconds * self.command.share

    def finish(self, *, tidy: bool = False) -> None:
        """Judge what the fault has left, then complete the work."""
        check_no_orphans()
        self.command.check_stopped(self.folder, tidy=tidy)
        self.command.go_on(self.folder)
        check_no_orphans()

    def next(self) -> list[str]:
        return self.command.again(self.command, self.folder) or self.command.argv


# Killed and stopped


def kill(case: Case) -> None:
    """Kill it at a random moment; a third of the time what goes on is killed too, and that which goes on after it."""
    while case.start().wait(after=case.instant()).status != -signal.SIGKILL:  # else it was quicker than that
        shutil.rmtree(case.folder)
        case.command.lay_out(case.folder)
    while case.draw.random() < 1 / 3:
        check_no_orphans()
        case.command.check_stopped(case.folder)
        Child(case.next(), case.folder).wait(after=case.instant()).check(-signal.SIGKILL, 0, 2)
    case.finish()


def end(case: Case) -> None:
    """Send a signal that asks it to end; what it was making is removed, and so are its processes.

    Before it has begun, and when it has done all, the signal may end it as any process.
    """
    number = children.ASKING[case.number % 3]
    began = time.monotonic()
    ending = case.start().wait(after=case.instant(), number=number)
    if time.monotonic() - began > case.command.seconds + 20:
        raise FaultError(f"it took {time.monotonic() - began:.0f} s to end")
    ending.check(0, 128 + number, -number)
    now, command = tree(case.folder), case.command
    if ending.status < 0 and all(differences(now, whole) for whole in (command.start, command.end)):
        raise FaultError(f"the signal {number} ended it at once, in the middle of its work")
    case.finish(tidy=True)


# Disks


def full(case: Case) -> None:
    """No file may grow beyond some bytes, as on a full disk."""
    largest = max(len(content or b"") for content in case.command.end.values())
    limit = int(math.exp(case.draw.uniform(0, math.log(1.2 * largest))))
    limits = (resource.RLIMIT_FSIZE, (limit, limit))
    _judge_full(case.start(before=partial(resource.setrlimit, *limits)).wait())
    case.finish(tidy=True)


def disk(case: Case) -> None:
    """The command's folder is a disk of its own, which fills up."""
    trees = case.command.start, case.command.end
    used, needed = (sum(4096 + len(content or b"") for content in one.values()) for one in trees)
    shutil.rmtree(case.folder)
    with mounted(case.folder, used + int(case.draw.uniform(0.0, 1.5) * (needed - used)) + 65536) as remount:
        case.command.lay_out(case.folder)
        _judge_full(case.start().wait())
        remount("size=64m")
        case.finish(tidy=True)


def _judge_full(ending: Ending) -> None:
    ending.check(0, 2)
    if ending.status == 2 and "free some space" not in ending.err:
        raise FaultError(f"it doesn't say that the disk is full: {ending.err.strip()[-800:]}")


def unwritable(case: Case) -> None:
    """Nothing in its folder may be written, by a user who owns nothing or on a disk that is mounted read-only."""
    if case.number % 2:
        shutil.rmtree(case.folder)
        with mounted(case.folder, 1 << 26) as remount:
            case.command.lay_out(case.folder)
            remount("ro")
            _refused(case)
            remount("rw")
            case.finish()
    elif os.geteuid():
        raise Impossible("the folder would be of the user who tortures, not root's")
    else:
        for path in (case.folder, *case.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        _refused(case, before=_lose_privileges)
        case.finish()


def _lose_privileges() -> None:
    """Give up all that root may do and others may not."""
    version, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(version, nothing):
        raise Impossible("privileges can't be given up")


def _refused(case: Case, **given: object) -> None:
    """Start it, and raise FaultError unless it is refused and changes nothing."""
    before = tree(case.folder)  # before it starts, which may be quicker than this
    case.start(**given).wait().check(2)
    if changed := differences(before, tree(case.folder)):
        raise FaultError(f"it was refused, and has changed {', '.join(changed[:5])}")


def eio(case: Case) -> None:
    """A file that it reads can't be read; then it can."""
    name = case.command.inputs[case.number % len(case.command.inputs)]
    path, content = case.folder / name, (case.folder / name).read_bytes()
    path.unlink()
    path.symlink_to(UNREADABLE)
    _refused(case)
    path.unlink()
    path.write_bytes(content)
    case.finish()


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[Callable[[str], None]]:
    """Mount a disk of so many bytes at the folder; what is given changes its options."""
    libc = ctypes.CDLL(None, use_errno=True)
    remount = 32

    def mount(flags: int, options: str) -> None:
        if "ro" in options.split(","):
            flags, options = flags | 1, ""
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode()):
            raise Impossible(f"a disk can't be mounted: {os.strerror(ctypes.get_errno())}")

    folder.mkdir()
    mount(0, f"size={size}")
    try:
        yield lambda options: mount(remount, "" if options == "rw" else options)
    finally:
        libc.umount2(os.fsencode(folder), 2)


# Streams


def streams(case: Case) -> None:
    """Some of its standard streams are closed as it begins: a process of its own, from Python's very beginning."""
    closed = [n for n in range(3) if (case.number % 7 + 1) >> n & 1]
    command = [sys.executable, "-W", "ignore", children.__file__, *case.command.argv]
    code = f"import os\nfor n in {closed}: os.close(n)\nos.execv({sys.executable!r}, {command!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=case.folder, capture_output=True, stdin=subprocess.DEVNULL)
    Ending(done.returncode, "", done.stderr.decode()).check(0)
    _complete(case)


def hung_up(case: Case) -> None:
    """Its terminal is gone: what it prints gives EIO."""
    master, slave = pty.openpty()
    os.close(master)
    ending = Child(case.command.argv, case.folder, streams=(slave, slave, slave)).wait()
    if ending.status not in (0, 2):
        raise FaultError(f"status {ending.status}")
    os.close(slave)
    case.finish(tidy=True)


def reader_left(case: Case) -> None:
    """Nobody reads what it prints."""
    ends = []
    for _ in range(2):
        reader, writer = os.pipe()
        os.close(reader)
        ends.append(writer)
    both = case.number % 2
    Child(case.command.argv, case.folder, streams=(None, ends[0], ends[1] if both else None)).wait().check(0)
    for writer in ends:
        os.close(writer)
    _complete(case)


def _complete(case: Case) -> None:
    if differ := differences(tree(case.folder), case.command.end):
        raise FaultError(f"what it left isn't as if undisturbed: {', '.join(differ[:6])}")
    check_no_orphans()


# Time, and others at work


def clock(case: Case) -> None:
    """Files are from 1970 or 2096, and its clock jumps back by years while it works; then it is killed."""

    def stamp() -> None:
        for path in case.folder.rglob("*"):
            when = case.draw.choice([0, 1_000_000_000, 4_000_000_000])
            os.utime(path, (when, when), follow_symlinks=False)

    def jump() -> None:
        real, began, years = time.time, time.monotonic(), 86400 * 365 * case.draw.uniform(1, 20)
        at = case.instant()
        time.time = lambda: real() - (years if time.monotonic() - began > at else 0.0)

    stamp()
    case.start(before=jump).wait(after=case.instant()).check(-signal.SIGKILL, 0)
    case.command.check_stopped(case.folder)
    stamp()
    Child(case.next(), case.folder, before=jump).wait().check(0, 2)
    case.finish()


def two(case: Case) -> None:
    """The same command twice at once: one of both does it, and the other is refused or does the same."""
    first = case.start()
    time.sleep(case.draw.random() * case.command.seconds * case.draw.choice([0.02, 0.5, 1.0]))
    second = Child(case.command.argv, case.folder)
    endings = [first.wait().check(0, 2), second.wait().check(0, 2)]
    if not any(ending.status == 0 for ending in endings):
        raise FaultError(f"each refused the other: {' | '.join(ending.err.strip()[-300:] for ending in endings)}")
    case.finish()


def two_go_on(case: Case) -> None:
    """It was killed, and is continued twice at once."""
    case.start().wait(after=case.instant())
    argv = case.next()
    first, second = Child(argv, case.folder), Child(argv, case.folder)
    for child in (first, second):
        child.wait().check(0, 2)
    case.finish()


# A program that translates


def threads(case: Case) -> None:
    """Eight threads share a Translator."""
    _program(case, _translate_in_threads)


def forks(case: Case) -> None:
    """A program loads a Translator, and its forks translate with it."""
    _program(case, _translate_in_forks)


def _program(case: Case, work: Callable[[Random], int]) -> None:
    Child([work.__name__], case.folder, work=lambda: work(case.draw)).wait().check(0)
    check_no_orphans()


def _translate_in_threads(draw: Random) -> int:
    from glassformer import SearchConfig, Translator

    translator, lines, config = Translator.load("run", "cpu", "float32"), _lines(draw), SearchConfig(max_length=12)
    expected, found = translator.translate(lines, config), {}

    def work(number: int) -> None:
        for _ in range(3):
            part = lines[number::THREADS]
            found[number] = translator.translate(part, config)

    workers = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return int(any(found.get(number) != expected[number::THREADS] for number in range(THREADS)))


def _translate_in_forks(draw: Random) -> int:
    from glassformer import SearchConfig, Translator

    translator, lines, config = Translator.load("run", "cpu", "float32"), _lines(draw), SearchConfig(max_length=12)
    expected, pids = translator.translate(lines, config), []
    for _ in range(FORKS):
        if not (pid := os.fork()):
            os._exit(translator.translate(lines, config) != expected)
        pids.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    return int(any(statuses) or translator.translate(lines, config) != expected)


def _lines(draw: Random) -> list[str]:
    return draw.sample(Path("source.txt").read_text().splitlines(), 24)


@dataclass(frozen=True)
class Fault:
    """A fault, and how often it strikes."""

    strike: Callable[[Case], None]
    times: int
    """Of each command, in the long form."""
    commands: tuple[str, ...] = ()
    """Left out: all."""


FAULTS = {
    "kill": Fault(kill, 50),
    "signal": Fault(end, 12),
    "full": Fault(full, 20),
    "disk": Fault(disk, 8),
    "unwritable": Fault(unwritable, 2),
    "eio": Fault(eio, 4),
    "streams": Fault(streams, 7),
    "terminal": Fault(hung_up, 2),
    "sigpipe": Fault(reader_left, 2),
    "clock": Fault(clock, 6),
    "two": Fault(two, 10),
    "two-go-on": Fault(two_go_on, 4, ("train", "overwrite", "translate", "prune", "distill")),
    "threads": Fault(threads, 4, ("translate",)),
    "fork": Fault(forks, 4, ("translate",)),
}
