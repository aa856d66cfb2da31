"""Writes the hashes of all that CI installs: requirements/locked.txt from constraints.txt, and tools.txt from tools.in.

    make lock

It needs the network. Hashes are of every file of a version, for all platforms. torch isn't in the list: its builds for
the CPU and for CUDA share a version but not their hashes, and only the index that has a build knows its hash. What the
build for CUDA alone needs comes with it, so it isn't in the list either.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
UV += ["--no-annotate", "--no-header", "--no-config", "--default-index", "https://pypi.org/simple"]
PYTHON = "3.11.5"  # the oldest that every dependency of the site supports
HEADER = "# Written by `make lock` ({}). Not by hand.\n"


def lock(source: str, target: str, *options: str) -> None:
    """Write `target` with each package that `source` needs, and the hashes of its files; torch and CUDA's left out."""
    command = [*UV, "--python-version", PYTHON, *options, source]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        sys.exit(listed.stderr)
    packages = re.split(r"^(?=\S)", listed.stdout, flags=re.MULTILINE)
    kept = [package for package in packages if not re.match(r"(torch==|nvidia-|cuda-)", package)]
    (ROOT / target).write_text(HEADER.format("docs/make/lock.py") + "".join(kept), encoding="utf-8")


if __name__ == "__main__":
    extras = [word for name in ("dev", "docs", "recipes") for word in ("--extra", name)]
    lock("pyproject.toml", "requirements/locked.txt", "--constraints", "constraints.txt", *extras)
    lock("requirements/tools.in", "requirements/tools.txt")
