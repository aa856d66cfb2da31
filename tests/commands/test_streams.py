"""Commands whose standard streams are closed, full, or without a reader."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.text.tokenizer import SymbolTokenizer

STREAMS = {
    "input closed": "<&-",
    "output closed": ">&-",
    "errors closed": "2>&-",
    "all closed": "<&- >&- 2>&-",
    "output full": ">/dev/full",
    "errors full": "2>/dev/full",
    "no reader": "| true",
}
FULL = "the disk is full: free some space, or write elsewhere"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, random_run: Callable) -> Path:
    """A folder with a run."""
    folder = tmp_path_factory.mktemp("streams")
    random_run(folder / "run", SymbolTokenizer("abc"), SymbolTokenizer("abc"))
    return folder


def shell(folder: Path, command: str, stream: str) -> tuple[int, str]:
    """Run a command of glassformer in a shell, and return its status and what it says on standard error."""
    line = f"set -o pipefail; '{sys.executable}' -m glassformer {command} {STREAMS[stream]}"
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("stream", STREAMS)
def test_a_command_that_works(folder, stream):
    status, errors = shell(folder, "runs .", stream)
    assert (status, FULL in errors) == ((2, True) if stream == "output full" else (0, False))
    assert "Traceback" not in errors


@pytest.mark.parametrize("stream", STREAMS)
def test_a_command_that_fails(folder, stream):
    status, errors = shell(folder, "runs nowhere", stream)
    assert status == 2
    silent = stream in ("errors closed", "all closed", "errors full")
    assert errors.startswith("" if silent else "glassformer: error: nowhere is not there")
    assert errors.count("\n") == (0 if silent else 1)


def test_the_version_to_a_full_disk(folder):
    status, errors = shell(folder, "--version", "output full")
    assert status == 2
    assert errors.endswith(f"{FULL}\n")


def test_messages_do_not_land_in_a_file_that_gets_the_number_of_a_closed_stream(folder):
    (folder / "lines.txt").write_text("a b\nq\n")
    command = "translate run --input lines.txt --output out.txt"
    assert shell(folder, command, "no reader")[0] == 0
    expected = (folder / "out.txt").read_bytes()
    assert expected.count(b"\n") == 2
    (folder / "out.txt").unlink()
    assert shell(folder, command, "all closed")[0] == 0
    assert (folder / "out.txt").read_bytes() == expected


def test_a_process_that_a_command_starts_has_all_streams(tmp_path):
    """Else the first file that it opens gets their number, and messages of C libraries land in it."""
    program = "import os, subprocess, sys; from glassformer import cli; cli._open_closed_streams(); sys.exit("
    program += (
        "subprocess.run([sys.executable, '-c', 'import os; sys = os.open(os.devnull, 0); exit(sys < 3)']).returncode)"
    )
    closed = f"'{sys.executable}' -c \"{program}\" <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", closed], cwd=tmp_path).returncode == 0


def test_a_warning_that_nobody_can_read_is_no_failure(folder):
    (folder / "unknown.txt").write_text("zzz\n")
    status, _ = shell(folder, "translate run --input unknown.txt --output known.txt", "errors full")
    assert (status, (folder / "known.txt").exists()) == (0, True)
