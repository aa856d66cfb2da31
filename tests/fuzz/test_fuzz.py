"""A few inputs of each target, and those that once failed; `make fuzz` tries thousands."""

import subprocess
import sys
from pathlib import Path

FUZZER = Path(__file__).parent


def test_no_input_breaks_a_command():
    """In a process without the runtime check of types, which would come first."""
    argv = [sys.executable, "-W", "ignore", str(FUZZER), "--inputs", "1", "--seed", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    count, failures = done.stdout.splitlines()[-1].split(" inputs, ")
    assert int(count.replace(",", "")) >= 70
    assert failures == "0 failures"
