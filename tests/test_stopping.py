"""A signal that ends a command leaves nothing half made."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassformer.stopping import AGAIN, ENDING, Stopped, raising_signals, unbroken
from glassformer.text.tokenizer import SymbolTokenizer


@pytest.fixture
def python_interrupts() -> Iterator[None]:
    """Let Ctrl-C do what it does in Python, whatever pytest does with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_an_exception_that_only_cleaning_up_sees(number):
    before, cleaned = signal.getsignal(number), []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), number)  # once more: it is being done already
            cleaned.append(True)

    with pytest.raises(Stopped, match=f"^ended by {signal.Signals(number).name}$") as stopped, raising_signals():
        work()
    assert (stopped.value.number, cleaned) == (number, [True])
    assert not isinstance(stopped.value, Exception)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("number", "ours"), [*((number, Stopped) for number in ENDING), (signal.SIGINT, KeyboardInterrupt)]
)
def test_an_error_that_a_library_makes_of_a_signal_is_a_signal_again(number, ours, python_interrupts):
    """As safetensors does, which calls Python from a compiled function."""

    def read() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except BaseException:
            raise ValueError("could not be read") from None

    with pytest.raises(ours), raising_signals():
        read()


def _dropped_by_compiled_code(work: Callable[[], None]) -> None:
    """Work in a function that compiled code calls, as LLVM does when numba looks into its cache."""

    def compare(*_: object) -> int:
        work()
        return 0

    number = ctypes.c_int
    kind = ctypes.CFUNCTYPE(number, ctypes.POINTER(number), ctypes.POINTER(number))
    ctypes.CDLL(None).qsort((number * 2)(1, 2), 2, ctypes.sizeof(number), kind(compare))


def _dropped_by_a_destructor(work: Callable[[], None]) -> None:
    class Ended:
        def __del__(self) -> None:
            work()

    Ended()


def _caught_by_a_library(work: Callable[[], None]) -> None:
    with contextlib.suppress(BaseException):
        work()


def _caught_and_another_raised(work: Callable[[], None]) -> None:
    with contextlib.suppress(ValueError):
        try:
            work()
        except BaseException:
            raise ValueError("could not be read") from None


@pytest.mark.parametrize("number", [*ENDING, signal.SIGINT])
@pytest.mark.parametrize(
    "lose", [_dropped_by_compiled_code, _dropped_by_a_destructor, _caught_by_a_library, _caught_and_another_raised]
)
def test_a_signal_whose_exception_is_lost_is_raised_again_at_once(lose, number, python_interrupts, capfd):
    went_on = []

    def work() -> None:
        lose(lambda: os.kill(os.getpid(), number) or time.sleep(10))
        time.sleep(10)
        went_on.append(True)

    began = time.monotonic()
    with pytest.raises((Stopped, KeyboardInterrupt)) as stopped, raising_signals():
        work()
    assert not went_on
    assert time.monotonic() - began < 5
    assert getattr(stopped.value, "number", signal.SIGINT) == number
    assert capfd.readouterr().err == "", "it is no error of whoever has lost it"


def test_errors_that_are_dropped_beside_a_signal_are_told_as_before(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with raising_signals():
        _dropped_by_a_destructor(lambda: 1 // 0)
    assert [unraisable.exc_type for unraisable in told] == [ZeroDivisionError]
    assert sys.unraisablehook == told.append


@pytest.mark.parametrize("number", [*ENDING, signal.SIGINT])
def test_a_signal_waits_for_the_end_of_what_is_unbroken(number, python_interrupts):
    done = []

    def work() -> None:
        with unbroken:
            with unbroken:
                os.kill(os.getpid(), number)
                time.sleep(3 * AGAIN)
                done.append("inner")
            time.sleep(3 * AGAIN)
            done.append("outer")
        time.sleep(10)
        done.append("more")

    with pytest.raises((Stopped, KeyboardInterrupt)), raising_signals():
        work()
    assert done == ["inner", "outer"]


def test_what_another_thread_does_unbroken_lets_no_signal_wait():
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with unbroken:
            inside.set()
            over.wait(10)

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    holding = threading.Thread(target=hold)
    holding.start()
    inside.wait(10)
    began = time.monotonic()
    with pytest.raises(Stopped), raising_signals():
        work()
    assert time.monotonic() - began < 5
    over.set()
    holding.join()


def test_whoever_handles_the_signal_when_it_can_be_raised_gets_it_once():
    """Handle it as a training does, which saves first: its handler is set right after its folder has been made."""
    told = []

    def work() -> None:
        with unbroken:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        time.sleep(10 * AGAIN)

    with pytest.raises(Stopped), raising_signals():
        work()
    assert told == [signal.SIGTERM]


def test_a_signal_at_any_moment_leaves_nothing_half_made(print_alone):
    """A process of its own, in which the suite's type checks put no code in between."""
    lines = print_alone(Path(__file__).with_name("at_every_moment.py"))
    counts = dict(line.removesuffix(" moments").split(": ", 1) for line in lines)
    assert all(count.isdigit() for count in counts.values()), lines
    assert len(counts) == 6
    assert all(int(count) > 50 for count in counts.values()), "Python looks for signals so often"


def test_a_signal_that_is_ignored_stays_so():
    """As nohup has it, so that a closed terminal changes nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raising_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            inside = signal.getsignal(signal.SIGHUP)
        afterwards = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (inside, afterwards) == (signal.SIG_IGN, signal.SIG_IGN)


SLOW = """
import time
from glassformer.cli import main
from glassformer.data.encode import PairEncoder

PairEncoder.encode = lambda *_, **__: print("now", flush=True) or time.sleep(60)
main()
"""
"""A command line whose tokenising never ends."""


@pytest.mark.parametrize("number", ENDING)
def test_a_training_that_is_ended_while_it_tokenises_leaves_nothing(tmp_path, number):
    """A process of its own, since the signal ends it."""
    (tmp_path / "pairs.tsv").write_text("a b c\tc b a\nb c\tc b\n" * 40)
    files = ["--source", "pairs.tsv", "--valid-source", "pairs.tsv"]
    command = [sys.executable, "-c", SLOW, "train", *files, "--out", "new/run", "--max-updates", "2"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline() == "now\n", process.communicate()[1]
        assert list((tmp_path / "new").glob(".run.*.tmp/prepared")), "it is half made"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    name = signal.Signals(number).name
    assert (process.returncode, err.splitlines()[-1]) == (128 + number, f"glassformer: error: ended by {name}")
    assert [path.name for path in tmp_path.rglob("*")] == ["pairs.tsv"]


@pytest.mark.parametrize("number", ENDING)
def test_a_translation_that_is_ended_leaves_nothing(random_run, tmp_path_factory, tmp_path, number):
    run, symbols = tmp_path_factory.mktemp("run"), SymbolTokenizer("ab")
    random_run(run, symbols, symbols)
    command = [sys.executable, "-m", "glassformer", "translate", str(run), "--output", "out.txt"]
    pipes = dict(stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        wait_for(lambda: list(tmp_path.glob(".out.txt.*.tmp/out.txt")))
        process.send_signal(number)
        process.wait(60)  # its input is open still: at the end of that it would have ended well
        _, err = process.communicate()
    name = signal.Signals(number).name
    assert (process.returncode, err.splitlines()[-1]) == (128 + number, f"glassformer: error: ended by {name}")
    assert list(tmp_path.iterdir()) == []


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_interruption_while_the_command_line_is_loaded_ends_it_in_one_line():
    program = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "glassformer.commands.align":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from glassformer.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "glassformer: error: interrupted\n")
