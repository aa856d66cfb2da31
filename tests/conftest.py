"""Checks every shape annotation while the tests run, keeps them off the network, and on one thread each.

The models here are tiny: a second thread gains nothing, and two of them on busy cores wait for each other.
"""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

from jaxtyping import install_import_hook

install_import_hook("glassformer", "beartype.beartype")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
