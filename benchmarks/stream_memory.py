"""Peak memory of `glassformer translate` as a stream, with few lines and with ten times as many.

    python benchmarks/stream_memory.py RUN --lines FILE [--few 20000]

FILE's lines are repeated as often as it takes. Prints the ratio of the two peaks last, and appends the measurement to
benchmarks/results/stream_memory.jsonl.
"""

import json
import os
import platform
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path

import torch
import tyro

RESULTS = Path(__file__).parent / "results" / "stream_memory.jsonl"


def main(run: tyro.conf.Positional[Path], lines: Path, few: int = 20_000, beam: int = 5) -> None:
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
    """Peak resident memory (MiB) and time (s) of translating `count` lines from standard input."""
    command = [str(Path(sys.executable).with_name("glassformer")), "translate", str(run), "--beam", str(beam)]
    began = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.writelines(f"{line}\n".encode() for line in islice(cycle(source), count))
        process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"translate failed with {process.returncode}")
    return {"lines": count, "peak_mib": usage.ru_maxrss / 1024, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    tyro.cli(main)
