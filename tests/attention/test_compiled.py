import subprocess
import sys
from pathlib import Path


# Slow, since torch compiles and exports a dozen graphs.
def test_compile_and_export():
    script = Path(__file__).parent / "compiled.py"
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "masks: compiled and exported",
        "dynamic shapes: exported",
        "a step's position: exported",
        "traced",
        "training: compiled",
        "dropout: compiled",
        "bfloat16: compiled",
        "nn.Transformer: compiled and exported",
    ]
