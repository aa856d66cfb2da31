"""Worker processes that share work, with results in the order of the items.

`python -m glassformer.data.processes` is a worker. It imports only what its work needs, never torch, so that it starts
at once and stays small. Items and results are lists of bytes, sent through pipes: no pickle. multiprocessing won't do:
a fork of a process with torch's threads may hang, and a spawned process runs the user's script again.
"""

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import Field, asdict
from importlib import import_module
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, BinaryIO, ClassVar, Protocol, cast, runtime_checkable

from glassformer import errors
from glassformer.decoding import decode_message
from glassformer.errors import GlassformerError

Parts = list[bytes]

FEW = 16
"""Items below which this process does the work itself: others would take longer to start."""
MOST_WORKERS = 16
"""Number of workers that one process can just keep busy by reading and writing."""
PR_SET_PDEATHSIG = 1


@runtime_checkable
class Work(Protocol):
    """A dataclass that is called with an item. Its fields are JSON values, and its module doesn't import torch."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __call__(self, parts: Parts, /) -> Parts: ...


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_workers(threads: int | None = None) -> int:
    """Return how many processes to start: one for each of `threads`, or for each core that this process may use.

    It is 0, for work in this process alone, where that is one, or where no other Python can be started.
    """
    if threads is None:
        threads = count_cores()
    python = sys.executable and not getattr(sys, "frozen", False)
    return min(threads, MOST_WORKERS) if python and threads > 1 else 0


def map_in_order(work: Work, items: Iterable[Parts], workers: int, *, few: int = FEW) -> Generator[Parts, None, None]:
    """Yield what `work` makes of each item, in the order of the items.

    Fewer than `few` items are done in this process, and so is everything where there are no workers. A GlassformerError
    of the work is raised here; so is one where a process is lost. Close it (contextlib.closing) where its reader may
    fail: that ends the processes.
    """
    items = iter(items)
    head = list(islice(items, few))
    if not workers or len(head) < few:
        yield from map(work, chain(head, items))
        return
    with _Pool(work, workers) as pool:
        waiting: deque[Future[Parts]] = deque()
        for item in chain(head, items):
            waiting.append(pool.submit(item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Pool:
    """Worker processes that do the same work, each with a thread that waits for its answers."""

    def __init__(self, work: Work, count: int) -> None:
        kind = type(work)
        job = json.dumps([kind.__module__, kind.__qualname__, asdict(work)])
        self._processes: list[_Process] = []
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count)
        try:
            for _ in range(count):
                self._processes.append(_Process())
            for process in self._processes:
                self._idle.put(process)
                process.send([job.encode()])
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # which ends its thread
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()

    def submit(self, item: Parts) -> Future[Parts]:
        return self._threads.submit(self._ask, item)

    def _ask(self, item: Parts) -> Parts:
        process = self._idle.get()
        try:
            return process.ask(item)
        finally:
            self._idle.put(process)


class _Process:
    """A worker process, which answers one item after the other."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        # In a group of its own: Ctrl-C on the terminal reaches this process only, which then ends the worker.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "glassformer.data.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        self._to, self._from = cast(BinaryIO, self._popen.stdin), cast(BinaryIO, self._popen.stdout)

    def send(self, parts: Parts) -> None:
        try:
            write_frame(self._to, parts)
        except OSError:  # a broken pipe
            raise self._lost() from None

    def ask(self, item: Parts) -> Parts:
        self.send(item)
        try:
            answer = read_frame(self._from)
        except EOFError:
            answer = None
        if answer is None:
            raise self._lost()
        error, *result = answer
        if error:
            raise getattr(errors, error.decode())(decode_message(result[0]))
        return result

    def kill(self) -> None:
        self._popen.kill()

    def close(self) -> None:
        self._popen.wait()
        self._from.close()
        with suppress(OSError):  # what was still buffered can't be sent any more
            self._to.close()

    def _lost(self) -> GlassformerError:
        code = self._popen.wait()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return GlassformerError(
                f"a process that shares the work was ended by {name}: if the system ran out of memory, lower --threads"
            )
        return GlassformerError(
            f"a process that shares the work failed with exit code {code}: its message stands above"
        )


def write_frame(stream: BinaryIO, parts: Parts) -> None:
    """Write the number of parts, their lengths, then the parts themselves."""
    stream.write(struct.pack(f"<I{len(parts)}Q", len(parts), *map(len, parts)))
    for part in parts:
        stream.write(part)
    stream.flush()


def read_frame(stream: BinaryIO) -> Parts | None:
    """Return the parts that `write_frame` wrote, None at the stream's end; raise EOFError where a frame is cut."""
    if not (head := stream.read(4)):
        return None
    (count,) = struct.unpack("<I", head + _read(stream, 4 - len(head)))
    lengths = struct.unpack(f"<{count}Q", _read(stream, 8 * count))
    return [_read(stream, length) for length in lengths]


def _read(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError("the stream ends in the middle of a frame")
    return data


def end_with_parent() -> None:
    """Let this process end, silently, however the process that started it ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Be a worker process: the first frame names the work, the further frames are items, until the stream ends."""
    end_with_parent()
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    coming, going = sys.stdin.buffer, sys.stdout.buffer
    job = read_frame(coming)
    if job is None:
        return
    module, name, values = decode_message(job[0])
    work: Any = getattr(import_module(module), name)(**values)
    while (item := read_frame(coming)) is not None:
        try:
            answer = [b"", *work(item)]
        except GlassformerError as error:
            answer = [type(error).__name__.encode(), json.dumps(str(error)).encode()]
        write_frame(going, answer)


if __name__ == "__main__":
    main()
