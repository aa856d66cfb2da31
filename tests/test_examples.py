"""The programs in examples/ show what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_attention_on_the_irrelevant_clause_falls(tmp_path):
    # A quarter of a minute on a quiet core: the example shows what is learned, so it must learn.
    png = tmp_path / "picture.png"
    command = [sys.executable, str(EXAMPLES / "dog_and_cat.py"), "--png", str(png)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    right = float(re.search(r"right answers to 500 new questions: ([\d.]+)%", done.stdout)[1])
    before, after = map(float, re.search(r"the other clause +([\d.]+)% +([\d.]+)%", done.stdout).groups())
    assert right >= 99
    assert after < 0.7 * before
    assert png.read_bytes().startswith(b"\x89PNG")
