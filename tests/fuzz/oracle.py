"""What a command may end with, whatever it was given.

Exit status 0, or 2 with one line that says what is wrong; no traceback, no control characters; nothing changed but
what it is there to write, and nothing at all where it failed; within seconds and bounded memory; no network; no process
left behind.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from children import Outcome
from markup import SECRET

ERROR = "glassformer: error: "
TRACEBACK = "Traceback (most recent call last)"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DRAWN = re.compile(r"[0-9a-f]{32}|(?<=\.)\d+(?=\.tmp)|(?<=\btmp)\w{8}")
"""Parts of names that differ from time to time."""
_FRAME = re.compile(r'File "[^"]*?(?:site-packages|src)/([^"]*)", line \d+, in (\w+)')
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


_KEPT = re.compile(
    r"error: (the validation loss is (nan|inf) at update|the last \d+ updates .* were left out|a training .* diverged)"
    r"|the same command (goes on|continues)$",
    re.MULTILINE,
)
"""Errors after which work is left: a run, to go on from its last checkpoint with other settings, or finished stages."""


@dataclass(frozen=True)
class Failure:
    """What is wrong with the end of a command."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


TOO_LONG = Failure("took too long")


def judge(
    outcome: Outcome, before: Mapping[str, str], after: Mapping[str, str], writes: Sequence[str]
) -> Failure | None:
    """Return what is wrong with an outcome, or None. `writes` are patterns of the paths that it may change."""
    for rule in (_crash, _reach, _traceback, _status, _lines):
        if failure := rule(outcome):
            return failure
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    free = () if outcome.status == 2 and not _KEPT.search(outcome.stderr) else writes
    if foreign := [path for path in changed if not any(_matches(path, pattern) for pattern in free)]:
        what = "after an error" if outcome.status == 2 else "beside its output"
        return Failure(f"changed files {what}", _DRAWN.sub("*", ", ".join(foreign[:3])))
    return None


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path is what a pattern names, lies within it, or is a folder on the way to it."""
    named = f"here/{pattern}"
    return fnmatch(path, named) or fnmatch(path, f"{named}/*") or named.startswith(f"{path}/")


def _crash(outcome: Outcome) -> Failure | None:
    if outcome.hung:
        return Failure("did not end after Ctrl-C") if outcome.interrupted else TOO_LONG
    if outcome.status < 0:
        return Failure("crash", signal.Signals(-outcome.status).name)
    if outcome.memory > outcome.limits.memory:
        return Failure("took too much memory")
    return None


def _traceback(outcome: Outcome) -> Failure | None:
    """Return the error that was raised, and the last place of ours that it passed."""
    for stream in (outcome.stderr, outcome.stdout):
        if TRACEBACK not in stream:
            continue
        text = stream.rpartition(TRACEBACK)[2]
        frames = [(file, function) for file, function in _FRAME.findall(text) if file.startswith("glassformer/")]
        raised = next((line for line in text.splitlines() if re.match(r"\w", line)), "")
        return Failure("traceback", " in ".join([raised.partition(":")[0], *(" ".join(one) for one in frames[-1:])]))
    if "Exception ignored" in outcome.stderr:
        return Failure("exception ignored", outcome.stderr.partition("Exception ignored")[2][:100])
    return None


def _status(outcome: Outcome) -> Failure | None:
    if outcome.status in (0, 2) or (outcome.interrupted and outcome.status == INTERRUPTED):
        return None
    return Failure("exit status", str(outcome.status))


def _lines(outcome: Outcome) -> Failure | None:
    """Return what is wrong with what was printed."""
    lines = outcome.stderr.splitlines()
    errors = [line for line in lines if line.startswith(ERROR)]
    if outcome.status == 2 and (len(errors) != 1 or lines[-1] != errors[0] or len(errors[0]) <= len(ERROR)):
        return Failure("not one line of error", "\n".join(lines[-3:])[-300:])
    if outcome.status == 0 and errors:
        return Failure("an error, and exit status 0", errors[0])
    if found := CONTROL.search(outcome.stderr):
        at = found.start()
        return Failure("control characters", repr(outcome.stderr[max(0, at - 40) : at + 20]))
    if len(max(lines, key=len, default="")) > 5000:
        return Failure("an endless line", max(lines, key=len)[:100])
    if SECRET in outcome.stdout + outcome.stderr:
        return Failure("shows another file's content")
    return None


def _reach(outcome: Outcome) -> Failure | None:
    if outcome.network:
        return Failure("network", outcome.network.splitlines()[0])
    if outcome.left:
        return Failure("left processes", str(outcome.left))
    return None
