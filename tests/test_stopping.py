"""A signal that ends a command leaves nothing half made."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from glassformer.stopping import ENDING, Stopped, raising_signals
from glassformer.text.tokenizer import SymbolTokenizer


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
def test_an_error_that_a_library_makes_of_a_signal_is_a_signal_again(number, ours):
    """As safetensors does, which calls Python from a compiled function."""

    def read() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except BaseException:
            raise ValueError("could not be read") from None

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(ours), raising_signals():
            read()
    finally:
        signal.signal(signal.SIGINT, before)


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
        _, err = process.communicate(timeout=60)
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
