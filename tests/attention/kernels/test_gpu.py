import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glassformer.attention.kernels import choose
from glassformer.attention.want import Want

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton isn't installed (it runs on Linux)"
)


def run(script: str, **environment: str) -> str:
    """What a script of this folder prints in a process of its own."""
    command = [sys.executable, str(Path(__file__).parent / script)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    assert found.returncode == 0, found.stderr
    return found.stdout


# Slow, since Triton's interpreter runs every program of every kernel in Python: the only check without a GPU.
@with_triton
def test_kernels_agree_with_explicit_weights_in_float64():
    assert run("on_gpu.py").splitlines() == [
        "no mask",
        "causal, each head its mask, a query that looks nowhere",
        "bias and padding",
        "half precision",
        "output alone",
        "huge scores",
        "tiles of several programs",
        "a NaN stays in its head",
    ]


# Slow, since Triton compiles a kernel for each of six sizes: the only check that they fit.
@with_triton
def test_kernels_compile_and_fit_into_a_gpus_shared_memory(tmp_path):
    taken = json.loads(run("on_gpu_compiled.py", TRITON_CACHE_DIR=str(tmp_path)))
    assert len(taken) == 6
    assert {name: size for name, size in taken.items() if size > 99 << 10} == {}  # Ada has the least


@pytest.mark.parametrize(
    ("settings", "dtype", "width", "fit"),
    [
        ({"want": Want(entropy=True, top=64)}, torch.float32, 256, True),
        ({"want": Want(entropy=True), "dropout": 0.1}, torch.float32, 8, False),
        ({"want": Want(weights=True)}, torch.float32, 8, False),
        ({"want": Want(top=65)}, torch.float32, 8, False),
        ({"want": Want()}, torch.float64, 8, False),
        ({"want": Want()}, torch.bfloat16, 257, False),
    ],
)
def test_what_the_kernels_leave_to_the_blocks(settings, dtype, width, fit):
    q = torch.zeros(1, 1, 2, width, dtype=dtype)
    assert choose.kernels_fit(q, q, **{"dropout": 0.0, **settings}) == fit
