"""Hostile requests, a worker killed under load and an end under load, in their short form; and that faults are seen."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "faults"
EXPECTED = {
    "nothing": "None",
    "another status": "status 200 in place of (404,)",
    "an error of the server": "status 500",
    "text in an error": "text came back with status 404",
    "an error of another form": "an error of another form",
    "no answer": "there was no answer",
    "no HTTP": "the answer is none",
    "a hang": "it hung for",
}
"""What must be said of the servers of `planted`."""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc")


def test_nothing_that_is_sent_and_no_signal_leaves_a_request_without_an_answer(print_alone, run):
    # It takes about 12 seconds: a model is loaded twice, senders are slow, and the time for an answer runs out.
    said = print_alone(HERE, "--count", "200", "--seed", "1", "--kills", "1", "--run", str(run))
    assert said[-1].endswith(" requests, 0 wrong")
    assert "200 hostile requests" in said[-4]


@pytest.fixture(scope="module")
def verdicts(print_alone: Callable[..., list[str]]) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in print_alone(HERE / "planted.py") if "\t" in line)


@pytest.mark.parametrize(("fault", "verdict"), EXPECTED.items(), ids=EXPECTED)
def test_what_no_server_may_do_is_reported(fault, verdict, verdicts):
    assert verdicts.keys() == EXPECTED.keys()
    assert verdicts[fault].startswith(verdict)
