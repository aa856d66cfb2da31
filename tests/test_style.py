"""Lint and format, as `make check` runs them (types need node and stay there)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")])
def test_ruff_is_content(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "ruff", *arguments, "src", "tests", "recipes", "examples"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
