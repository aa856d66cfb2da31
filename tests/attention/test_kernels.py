import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glassformer.attention.blocks import Problem


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton isn't installed (it runs on Linux)")
def test_kernels_agree_with_explicit_weights_in_float64():
    script = Path(__file__).parent / "kernels.py"
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
    ]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton isn't installed (it runs on Linux)")
def test_what_the_kernels_leave_to_the_blocks():
    from glassformer.attention.gpu import fits_kernels
    from glassformer.attention.want import Want

    def problem(dtype: torch.dtype = torch.float32, width: int = 8) -> Problem:
        q = torch.zeros(1, 1, 2, width, dtype=dtype)
        return Problem(q, q, q, None, None, False, 1.0, dtype)

    assert fits_kernels(problem(), Want(entropy=True), dropout=0.0)
    assert not fits_kernels(problem(), Want(entropy=True), dropout=0.1)
    assert not fits_kernels(problem(), Want(weights=True), dropout=0.0)
    assert not fits_kernels(problem(torch.float64), Want(entropy=True), dropout=0.0)
    assert not fits_kernels(problem(width=512), Want(entropy=True), dropout=0.0)
