import io
import re
import sys
import time
from types import SimpleNamespace

import pytest

from glassformer import meter
from glassformer.meter import Meter, progress_facts


@pytest.mark.parametrize(
    ("figures", "facts"),
    [
        ((2048, 2048, 4.0, 1_000_000), "2,048 of 1,000,000 lines, 0:32:29 left, 512 lines/s"),
        ((500_000, 100, 1000.0, 1_000_000), "500,000 of 1,000,000 lines, 57 days, 20:53:20 left, 0.1 lines/s"),
        ((7, 7, 0.0, 7), "7 of 7 lines, 7,000,000,000 lines/s"),
        ((7, 7, 2.0, 3), "7 of 3 lines, 3.5 lines/s"),
        ((4096, 4096, 4.0, None), "4,096 lines, 1,024 lines/s"),
        ((300, 300, 6.0, None, 0.2), "300 lines, 0:00:24 left, 50 lines/s"),
        ((300, 300, 6.0, None, 1.0), "300 lines, 50 lines/s"),
        ((0, 0, 1.0, None, 0.0), "0 lines, 0 lines/s"),
    ],
    ids=["started", "resumed", "done", "grown since", "unknown", "a share known", "all of it", "nothing yet"],
)
def test_facts_of_the_progress(figures, facts):
    done, new, seconds, *total_and_share = figures
    assert ", ".join(progress_facts(done, new, seconds, "lines", *total_and_share)) == facts


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("transient", [False, True])
def test_a_terminal_shows_a_bar(monkeypatch, transient):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    for name, value in (("TERM", "xterm"), ("COLUMNS", "150")):
        monkeypatch.setenv(name, value)
    said = []
    with Meter("reading", "pairs", transient=transient, say=said.append) as shown:
        for done in (500, 1_000):
            shown.show(done, done / 2_000)
            time.sleep(0.15)  # it is drawn ten times a second
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue())
    assert re.search(r"reading .* 1,000 pairs, 0:00:\d\d left, [\d,]+ pairs/s", text), text
    assert not said
    erased = "\x1b[2K" in terminal.getvalue().rpartition("1,000 pairs")[2]
    assert erased == transient


def test_colours_that_are_forced_are_no_terminal(monkeypatch):
    # A notebook sets FORCE_COLOR, for which rich takes anything for a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", output := io.StringIO())
    with Meter("reading", "pairs", total=2) as shown:
        shown.show(1)
        time.sleep(0.15)
    assert "\x1b" not in output.getvalue()


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (40, "reading 0:00:00 1,000 of 2,000 pairs"),
        (80, "reading ━━━━╺━━━ 0:00:00 1,000 of 2,000 pairs, 0:00:00 left, "),
        (100, "reading ━━━━━━╺━━━━━ 0:00:00 1,000 of 2,000 pairs, 0:00:00 left, "),
        (150, "reading ━━━━━━━━━━━━╺━━━━━━━━━━━ 0:00:00 1,000 of 2,000 pairs, 0:00:00 left, "),
    ],
)
def test_a_narrow_terminal_has_less_bar_and_fewer_facts_but_whole_ones(monkeypatch, width, line):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    for name, value in (("TERM", "xterm"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    with Meter("reading", "pairs", total=2_000) as shown:
        shown.show(1_000)
        print("in the middle", file=sys.stderr)
    *above, last = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue()).rstrip("\n").split("\n")
    drawn = last.rpartition("\r")[2]
    assert drawn.startswith(line)
    assert drawn.endswith("pairs" if width == 40 else "pairs/s")
    assert any("in the middle" in part for part in above), "it stands above the bar"


@pytest.mark.parametrize(("term", "moves"), [("xterm", True), ("dumb", False)])
def test_a_terminal_that_can_only_print_gets_lines(monkeypatch, term, moves):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(meter, "SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    said: list[str] = []
    with Meter("reading", "pairs", say=said.append) as shown:
        shown.show(1)
    assert (not said, "\x1b" in terminal.getvalue()) == (moves, moves)


def test_elsewhere_it_is_said_every_ten_seconds(monkeypatch, capfd):
    now = 0.0
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: now))
    said: list[str] = []
    with Meter("tokenising", "pairs", total=100, say=said.append) as shown:
        for now in range(1, 36):
            shown.show(2 * now, more=["one busy"] if now > 25 else [])
    assert said == [
        "tokenising: 20 of 100 pairs, 0:00:40 left, 2 pairs/s",
        "tokenising: 40 of 100 pairs, 0:00:30 left, 2 pairs/s",
        "tokenising: 60 of 100 pairs, 0:00:20 left, 2 pairs/s, one busy",
    ]
    with Meter("tokenising", "pairs") as silent:
        now = 99
        silent.show(1)
    assert capfd.readouterr() == ("", "")
