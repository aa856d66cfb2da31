"""Faults put in on purpose, and what the oracle says about each: a line of its name, a tab, the verdict."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from children import Limits, run_in_child
from oracle import ERROR, judge
from sandbox import tree


def _fail(*lines: str, status: int = 2) -> None:
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(status)


def _fail_after(path: str) -> None:
    Path(path).write_text("half", encoding="utf-8")
    _fail(f"{ERROR}the disk is full")


def _raise() -> None:
    raise ValueError("no such thing")


def _look_up() -> None:
    import socket

    socket.create_connection(("127.0.0.1", 9))


def _swallow() -> None:
    try:
        _look_up()
    except OSError:
        _fail(f"{ERROR}no network")


def _go_on() -> None:
    """Take a Ctrl-C for nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(60)


FAULTS: Mapping[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "output": lambda: Path("new").mkdir(),
    "an error in one line": lambda: _fail("reading", f"{ERROR}no such file"),
    "a traceback": _raise,
    "a crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "a hang": lambda: time.sleep(60),
    "deaf to Ctrl-C": _go_on,
    "memory": lambda: b"x" * (1 << 29),
    "more memory than there is": lambda: bytearray(1 << 31),
    "another status": lambda: sys.exit(1),
    "an error without a line": lambda: sys.exit(2),
    "an error in two lines": lambda: _fail(f"{ERROR}one", f"{ERROR}two"),
    "an error that isn't the last line": lambda: _fail(f"{ERROR}one", "and more"),
    "an error that is none": lambda: _fail(f"{ERROR}one", status=0),
    "an escape code": lambda: _fail(f"{ERROR}no file \x1b[31mred"),
    "half a file after an error": lambda: _fail_after("new"),
    "another file changed": lambda: Path("kept").write_text("other", encoding="utf-8"),
    "another file removed": lambda: Path("kept").unlink(),
    "a temporary file left": lambda: tempfile.mkstemp(),
    "a process left": lambda: subprocess.Popen(["sleep", "60"]),
    "a process of another group left": lambda: subprocess.Popen(["sleep", "60"], process_group=0),
    "network": _look_up,
    "network, and said so": _swallow,
}


def main() -> None:
    """Print a line for each fault."""
    for name, action in FAULTS.items():
        with tempfile.TemporaryDirectory() as root:
            box, streams = Path(root, "box"), Path(root, "streams")
            for folder in (box / "here", box / "home", box / "tmp", streams):
                folder.mkdir(parents=True)
            (box / "here" / "kept").write_text("kept", encoding="utf-8")
            before = tree(box)
            # Only what hangs is cut short: on a busy computer the others may take more than a second, too.
            seconds = 1.0 if name == "a hang" else 30.0
            stop_after = 0.1 if name == "deaf to Ctrl-C" else None
            limits = Limits(seconds=seconds, memory=1 << 28, stop_after=stop_after, grace=0.2)
            outcome = run_in_child(action, box / "here", streams, limits)
            print(name, judge(outcome, before, tree(box), ("new",)), sep="\t")


if __name__ == "__main__":
    main()
