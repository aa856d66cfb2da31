"""Peak memory of `glassformer translate` from file to file, with few lines and with ten times as many.

    python benchmarks/stream_memory.py RUN --lines FILE [--few 100000]

FILE's lines are repeated as often as it takes. Prints the ratio of the two peaks last, and appends the measurement to
benchmarks/results/stream_memory.jsonl.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import torch
import tyro

RESULTS = Path(__file__).parent / "results" / "stream_memory.jsonl"


def main(run: tyro.conf.Positional[Path], lines: Path, few: int = 100_000, beam: int = 1) -> None:
    """Translate `few` lines and ten times as many, and compare the peaks of memory.

    Args:
        run: A run folder.
        lines: A file of source lines.
        few: The smaller number of lines.
        beam: Beam of the search.
    """
    source = lines.read_text(encoding="utf-8").splitlines()
    measured = [measure(run, source, count, beam) for count in (few, 10 * few)]
    for figures in measured:
        print("{lines:,} lines: peak {peak_mib:.1f} MiB, {seconds:.0f} s".format(**figures))
    ratio = measured[1]["peak_mib"] / measured[0]["peak_mib"]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    versions = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.processor()}
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        record = {"measured": measured, "ratio": ratio, "beam": beam, "cores": os.cpu_count()}
        file.write(json.dumps({**record, **versions, "commit": commit}) + "\n")
    print(f"ratio of the peaks: {ratio:.3f}")


def measure(run: Path, source: list[str], count: int, beam: int) -> dict[str, float]:
    """Return the peak resident memory (MiB) and the time (s) of translating a file of `count` lines."""
    with tempfile.TemporaryDirectory() as scratch:
        given, made = Path(scratch) / "source", Path(scratch) / "translated"
        with given.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in islice(cycle(source), count))
        command = [str(Path(sys.executable).with_name("glassformer")), "translate", str(run), "--beam", str(beam)]
        began = time.monotonic()
        with subprocess.Popen([*command, "--input", str(given), "--output", str(made)]) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"translate failed with {process.returncode}")
        with made.open(encoding="utf-8") as file:
            if (lines := sum(1 for _ in file)) != count:
                sys.exit(f"translate wrote {lines} lines of {count}")
    return {"lines": count, "peak_mib": usage.ru_maxrss / 1024, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    tyro.cli(main)
