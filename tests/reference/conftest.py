"""The oracle of every form, and a default dtype for modules that make their own tables."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor


@torch.no_grad()
def look_one_by_one(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """One head of one sentence: each query by itself, over the list of keys it may look at. No mask, no softmax.

    q (q_len, d), k (k_len, d), v (k_len, width), keep (q_len, k_len), True = may look: attended, weights.
    """
    weights = torch.zeros(len(q), len(k), dtype=q.dtype)
    attended = torch.zeros(len(q), v.shape[1], dtype=q.dtype)
    for i, query in enumerate(q):
        keys = [j for j in range(len(k)) if keep[i, j]]
        powers = [math.exp(float((query * k[j]).sum()) / math.sqrt(len(query))) for j in keys]
        for j, power in zip(keys, powers, strict=True):
            weights[i, j] = power / sum(powers)
            attended[i] += weights[i, j] * v[j]
    return attended, weights


@pytest.fixture
def look() -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    return look_one_by_one


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The default dtype while the test runs."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def close(dtype: torch.dtype) -> dict[str, float]:
    """How equal two ways to compute the same are in that dtype: in float32, torch's own tolerance."""
    return {"atol": 1e-10, "rtol": 1e-10} if dtype == torch.float64 else {}
