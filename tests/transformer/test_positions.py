import math

import pytest
import torch
from torch.testing import assert_close

from glassformer.attention.packing import Packing
from glassformer.transformer.positions import Positions, sinusoids

B, L, D = 2, 5, 7  # distinct primes: a swapped axis cannot pass
EVERY_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)


def paper(position: int, d_model: int) -> list[float]:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same."""
    angles = [position / 10000 ** (2 * (column // 2) / d_model) for column in range(d_model)]
    return [math.cos(a) if column % 2 else math.sin(a) for column, a in enumerate(angles)]


@pytest.mark.parametrize("d_model", [1, 2, 7, 10])
def test_permuted_they_are_the_papers(d_model):
    table = sinusoids(L, d_model)
    assert table.shape == (L, d_model)
    evens_then_odds = [*range(0, d_model, 2), *range(1, d_model, 2)]
    expected = torch.tensor([paper(position, d_model) for position in range(L)])[:, evens_then_odds]
    assert_close(table, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("start", [1, 3, 1000, 100_003])
def test_start_shifts(start):
    whole = sinusoids(start + L, D)
    assert torch.equal(sinusoids(L, D, start=start), whole[start:])


def test_far_positions_are_exact():
    # Angles in float32 would be off by up to 0.0005 radians in the second column.
    far = sinusoids(1, 4, start=100_003)[0]
    expected = [math.sin(100_003), math.sin(1000.03), math.cos(100_003), math.cos(1000.03)]
    assert_close(far, torch.tensor(expected), atol=1e-7, rtol=0)


@EVERY_DTYPE
@pytest.mark.parametrize("start", [0, 3, 8, 11, 12, 13, 100])
def test_ready_or_computed_they_are_added_in_the_dtype_of_the_input(start, dtype):
    # Ready are positions 0 .. 12: inside, up to the edge, across it, and beyond.
    x = torch.randn(B, L, D).to(dtype)
    table = sinusoids(L, D, start=start, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    for positions in (Positions(D), Positions(D, ready=13), Positions(D, ready=13).to(dtype)):
        added = positions(x, start)
        assert added.dtype == dtype
        assert torch.equal(added, x + table)


# Rows of sequences


@EVERY_DTYPE
@pytest.mark.parametrize("ready", [10, 11, 13])  # a table too short by one, just long enough, and longer
def test_each_token_of_a_row_gets_the_position_in_its_own_sequence(ready, dtype):
    lengths = [5, 11, 1, 2]  # 19 tokens in a row of 20
    packing = Packing.of(lengths)
    x = torch.randn(1, 20, D).to(dtype)
    for positions in (Positions(D, ready=ready), Positions(D, ready=ready).to(dtype)):
        found = positions.add_packed(x, packing)
        assert found.dtype == dtype
        alone = [positions(part) for part in x[:, :19].split(lengths, dim=1)]
        assert torch.equal(found[:, :19], torch.cat(alone, dim=1))
        assert torch.equal(found[:, 19:], positions(x[:, 19:]))
