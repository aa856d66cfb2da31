"""The fuzzer's short form: the cases that failed once, and a few new inputs for every reader and command."""

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXPECTED = {
    "nothing": "None",
    "output": "None",
    "an error in one line": "None",
    "a traceback": "traceback: ValueError",
    "a crash": "crash: SIGSEGV",
    "a hang": "took too long",
    "deaf to Ctrl-C": "did not end after Ctrl-C",
    "memory": "took too much memory",
    "more memory than there is": "traceback: MemoryError",
    "another status": "exit status: 1",
    "an error without a line": "not one line of error",
    "an error in two lines": "not one line of error",
    "an error that isn't the last line": "not one line of error",
    "an error that is none": "an error, and exit status 0",
    "an escape code": "control characters",
    "half a file after an error": "changed files after an error: here/new",
    "another file changed": "changed files beside its output: here/kept",
    "another file removed": "changed files beside its output: here/kept",
    "a temporary file left": "changed files beside its output: tmp/",
    "a process left": "left processes: 1",
    "a process of another group left": "left processes: 1",
    "network": "network: socket.getaddrinfo",
    "network, and said so": "network: socket.getaddrinfo",
}
"""What the oracle must say about the faults of `planted`."""


def test_nothing_fails_on_what_nobody_meant(print_alone):
    # It takes some 15 seconds: 129 processes, and the samples that they read.
    assert print_alone(HERE, "--examples", "1", "--seed", "1")[-1].endswith(" 0 failures")


@pytest.fixture(scope="module")
def verdicts(print_alone: Callable[..., list[str]]) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in print_alone(HERE / "planted.py") if "\t" in line)


@pytest.mark.parametrize(("fault", "verdict"), EXPECTED.items(), ids=EXPECTED)
def test_the_oracle_sees(fault, verdict, verdicts):
    assert verdicts.keys() == EXPECTED.keys()
    assert verdicts[fault].startswith(verdict)
