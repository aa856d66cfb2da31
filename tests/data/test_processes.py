import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from glassformer.data import processes
from glassformer.data.processes import Work, count_workers, map_in_order, read_frame, write_frame
from glassformer.errors import ConfigError, DataError, GlassformerError

MODULE = """
import os, signal, sys, time
from dataclasses import dataclass
from glassformer.errors import ConfigError, DataError

@dataclass(frozen=True)
class Odd:
    word: str
    factor: float = 1.0

    def __call__(self, parts):
        text = parts[0].decode()
        if text == "wrong":
            raise DataError("line 3: süß is wrong")
        if text == "setting":
            raise ConfigError("lower it")
        if text == "bug":
            raise ZeroDivisionError("a bug")
        if text == "lost":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "slow":
            time.sleep(60)
        time.sleep(0.02 * (len(text) % 3))
        return [f"{self.word} {text} {self.factor}".encode(), b"".join(parts[1:]), str(os.getpid()).encode(),
                b"torch" if "torch" in sys.modules else b"", str(os.getpgrp()).encode()]
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Work]:
    """Work that does as its items say, in a module that the worker processes find where this one does."""
    (tmp_path / "odd_work.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_work", raising=False)
    return import_module("odd_work").Odd


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that the test started, all of which must have ended and been waited for."""
    made: list[subprocess.Popen[bytes]] = []
    threads = threading.active_count()

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(processes.subprocess, "Popen", Noted)
    yield made
    assert all(process.returncode is not None for process in made)
    assert threading.active_count() == threads, "its threads have ended too"


def items(*texts: str, few: int = 16) -> list[list[bytes]]:
    """These items, after as many others as it takes for processes to be started."""
    return [[f"item {'x' * i}".encode(), b"\x00", bytes(range(256)) * i] for i in range(few)] + [
        [text.encode()] for text in texts
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_results_are_the_same_and_in_order_however_many_processes(odd, started, count):
    large = os.urandom(3_000_000)  # more than a pipe holds, both ways
    given = [*items(few=40), [b"item", large], [b"item", large], *items("last", few=0)]
    here = list(map_in_order(odd("süß", float("inf")), given, 0))
    assert not started
    there = list(map_in_order(odd("süß", float("inf")), given, count))
    assert len(started) == count
    assert [parts[:2] for parts in there] == [parts[:2] for parts in here]
    assert here[-2][1] == large
    assert here[-1][0].decode() == "süß last inf"
    assert {parts[2] for parts in here} == {str(os.getpid()).encode()}
    assert {int(parts[2]) for parts in there} <= {process.pid for process in started}
    assert {parts[3] for parts in there} == {b""}, "torch is not loaded"
    assert all(parts[4] == parts[2] for parts in there), "Ctrl-C on the terminal doesn't reach them"


def test_few_items_are_done_in_this_process(odd, started):
    results = list(map_in_order(odd("a"), items(few=15), 3))
    assert len(results) == 15
    assert not started
    assert len(list(map_in_order(odd("a"), items(few=1), 1, few=0))) == 1
    assert len(started) == 1


def test_no_more_is_read_than_is_under_way(odd, started):
    taken = 0

    def counted() -> Iterator[list[bytes]]:
        nonlocal taken
        for item in items(few=200):
            taken += 1
            yield item

    with closing(map_in_order(odd("a"), counted(), 2)) as results:
        for done, _ in enumerate(results, start=1):
            assert taken <= max(done + 2 * 2, 16)
            if done == 50:
                break
    assert len(started) == 2, "a reader that stops ends them"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [("wrong", DataError, "^line 3: süß is wrong$"), ("setting", ConfigError, "^lower it$")],
)
@pytest.mark.parametrize("count", [0, 2])
def test_an_error_in_the_work_is_raised_here(odd, started, text, error, message, count):
    with pytest.raises(error, match=message), closing(map_in_order(odd("a"), items(text, "slow"), count)) as results:
        list(results)


@pytest.mark.parametrize(
    ("text", "message", "said"),
    [
        ("lost", "was ended by SIGKILL: if the system ran out of memory, lower --threads", ""),
        ("bug", "failed with exit code 1: its message stands above", "ZeroDivisionError: a bug"),
    ],
)
def test_a_process_that_is_lost_is_named_with_its_end(odd, started, capfd, text, message, said):
    began = time.monotonic()
    with (
        pytest.raises(GlassformerError, match=f"^a process that shares the work {message}$"),
        closing(map_in_order(odd("a"), items(text, "slow"), 2)) as results,
    ):
        list(results)
    assert time.monotonic() - began < 20, "it doesn't wait for the others"
    assert said in capfd.readouterr().err


def test_a_process_that_cannot_start_is_an_error(odd, started, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(GlassformerError, match="a process that shares the work failed with exit code 1"):
        list(map_in_order(odd("a"), items(), 2))


def test_ctrl_c_ends_the_processes_at_once(odd, started, capfd):
    began = time.monotonic()
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    with closing(map_in_order(odd("a"), items("slow", "slow"), 2)) as results:
        next(results)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(results)
    timer.join()
    assert time.monotonic() - began < 20
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_one_it_works_for(odd, number):
    script = textwrap.dedent("""
        from odd_work import Odd
        from glassformer.data.processes import map_in_order
        try:
            for _, _, pid, *_ in map_in_order(Odd("a"), [[b"item"]] * 40 + [[b"slow"]] * 9, 2):
                print(pid.decode(), flush=True)
        except KeyboardInterrupt:
            raise SystemExit(7)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment, start_new_session=True) as process:
        found = {int(process.stdout.readline()) for _ in range(40)}
        assert process.pid not in found
        os.killpg(process.pid, number)  # the whole group, as a terminal does with Ctrl-C
        assert process.stderr.read() == b"", "no process has anything to say"
    assert process.returncode == (7 if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # a process that nobody waits for is still known
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_workers_are_as_many_as_cores_or_threads(monkeypatch):
    assert [count_workers(threads) for threads in (1, 2, 5, 1000)] == [0, 2, 5, processes.MOST_WORKERS]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert count_workers() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert count_workers() == 0
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert count_workers() == 4
    monkeypatch.setattr(sys, "frozen", True, raising=False)  # the program's own executable
    assert count_workers() == 0
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "")  # Python inside another program
    assert count_workers(4) == 0


def test_no_work_loads_torch():
    modules = ", ".join(
        f"glassformer.data.{name}" for name in ("scan", "sample", "vocabularies", "encode", "processes")
    )
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", b"\x00" * 70_000]], ids=["none", "empty", "several"])
def test_a_frame_comes_back(parts, tmp_path):
    path = tmp_path / "frames"
    with path.open("wb") as stream:
        for _ in range(2):
            write_frame(stream, parts)
    with path.open("rb") as stream:
        assert [read_frame(stream) for _ in range(3)] == [parts, parts, None]
    length = path.stat().st_size // 2
    for cut in sorted({1, 3, length // 2, length - 1}, reverse=True):
        os.truncate(path, cut)
        with pytest.raises(EOFError), path.open("rb") as stream:
            read_frame(stream)
