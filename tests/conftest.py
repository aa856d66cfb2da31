"""Checks every shape annotation while the tests run, and keeps them off the network."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}

from jaxtyping import install_import_hook

install_import_hook("glassformer", "beartype.beartype")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
