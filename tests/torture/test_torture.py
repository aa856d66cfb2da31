"""The torture's short form: each fault at least once, and faults put in on purpose, each of which must be reported."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXPECTED = {
    "nothing": "None",
    "an output written in place": "half a folder",
    "half an output": "half an output",
    "a run removed before the new one is there": "what was there is lost: runs/new",
    "other bits after going on": "completed, it isn't as if undisturbed: runs/new/metrics.jsonl",
    "a temporary file left": "left half made: new/.exported.",
    "a file left": "left: left",
    "an input changed": "what it only reads was changed: source.txt",
    "an input removed": "what it only reads was changed: source.txt",
    "another output": "what it left isn't as if undisturbed: out.txt",
    "a process left": "1 processes of the command live on",
    "a file written when refused": "it was refused, and has changed left",
    "a full disk not named": "it doesn't say that the disk is full",
    "a signal that isn't handled": "the signal 15 ended it at once, in the middle of its work",
    "deaf to a signal": "it hung for",
    "a hang": "it hung for",
    "each refuses the other": "each refused the other",
    "a traceback": "a traceback: ",
    "a refusal without a reason": "it gives no reason",
    "another status": "status 1, expected (0,)",
    "other answers in a thread": "status 1, expected (0,)",
}
"""What the torture must say of the faults of `planted`."""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it strikes by means of Linux")


def test_nothing_is_lost(print_alone):
    # It takes about 30 seconds of a core: 18 faults, and each command undisturbed.
    assert print_alone(HERE, "--seconds", "5", "--seed", "3")[-1].endswith(" faults, 0 failures")


@pytest.fixture(scope="module")
def verdicts(print_alone: Callable[..., list[str]]) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in print_alone(HERE / "planted.py") if "\t" in line)


@pytest.mark.parametrize(("fault", "verdict"), EXPECTED.items(), ids=EXPECTED)
def test_the_torture_reports(fault, verdict, verdicts):
    assert verdicts.keys() == EXPECTED.keys()
    assert verdicts[fault].startswith(verdict)
