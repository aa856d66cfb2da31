import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glassformer.attention.kernels.blocks import Problem


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton isn't installed (it runs on Linux)")
def test_kernels_agree_with_explicit_weights_in_float64():
    script = Path(__file__).parent / "on_gpu.py"
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "no mask",
        "causal",
        "padding",
        "causal, each head its mask, a query that looks nowhere",
        "bias and padding",
        "half precision",
        "output alone",
        "huge scores",
        "tiles of several programs",
        "a NaN stays in its head",
    ]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton isn't installed (it runs on Linux)")
def test_kernels_compile_and_fit_into_a_gpus_shared_memory(tmp_path):
    script = Path(__file__).parent / "on_gpu_compiled.py"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert found.returncode == 0, found.stderr
    taken = json.loads(found.stdout)
    assert len(taken) == 6
    assert {name: size for name, size in taken.items() if size > 99 << 10} == {}  # Ada has the least


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton isn't installed (it runs on Linux)")
def test_what_the_kernels_leave_to_the_blocks():
    from glassformer.attention.kernels.gpu import fits_kernels
    from glassformer.attention.want import Want

    def problem(dtype: torch.dtype = torch.float32, width: int = 8) -> Problem:
        q = torch.zeros(1, 1, 2, width, dtype=dtype)
        return Problem(q, q, q, None, None, False, 1.0, dtype)

    assert fits_kernels(problem(), Want(entropy=True), dropout=0.0)
    assert not fits_kernels(problem(), Want(entropy=True), dropout=0.1)
    assert not fits_kernels(problem(), Want(weights=True), dropout=0.0)
    assert not fits_kernels(problem(torch.float64), Want(entropy=True), dropout=0.0)
    assert not fits_kernels(problem(width=512), Want(entropy=True), dropout=0.0)
    assert not fits_kernels(problem(), Want(top=65), dropout=0.0)
