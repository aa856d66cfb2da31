import math

import pytest
import torch
from torch.testing import assert_close

from glassformer.attention.packing import Packing
from glassformer.transformer.positions import Positions, sinusoids

B, L, D = 2, 5, 7  # distinct primes: a swapped axis cannot pass


def paper(position: int, d_model: int) -> list[float]:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same."""
    angles = [position / 10000 ** (2 * (column // 2) / d_model) for column in range(d_model)]
    return [math.cos(a) if column % 2 else math.sin(a) for column, a in enumerate(angles)]


def test_hand_computed_values():
    # Width 4: angles p and p / 100; both sines, then both cosines.
    expected = [
        [0.0, 0.0, 1.0, 1.0],
        [0.841471, 0.009999833, 0.540302, 0.99995],
        [0.909297, 0.019998667, -0.416147, 0.9998],
    ]
    assert_close(sinusoids(3, 4), torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("d_model", [1, 2, 7, 10])
def test_permuted_they_are_the_papers(d_model):
    table = sinusoids(L, d_model)
    assert table.shape == (L, d_model)
    evens_then_odds = [*range(0, d_model, 2), *range(1, d_model, 2)]
    expected = torch.tensor([paper(position, d_model) for position in range(L)])[:, evens_then_odds]
    assert_close(table, expected, atol=1e-6, rtol=0)


def test_odd_width_has_one_sine_more():
    at_zero = sinusoids(1, 7)[0]
    assert at_zero.tolist() == [0.0] * 4 + [1.0] * 3


@pytest.mark.parametrize("start", [1, 3, 1000, 100_003])
def test_start_shifts(start):
    whole = sinusoids(start + L, D)
    assert torch.equal(sinusoids(L, D, start=start), whole[start:])


def test_far_positions_are_exact():
    # Angles in float32 would be off by up to 0.0005 radians in the second column.
    far = sinusoids(1, 4, start=100_003)[0]
    expected = [math.sin(100_003), math.sin(1000.03), math.cos(100_003), math.cos(1000.03)]
    assert_close(far, torch.tensor(expected), atol=1e-7, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_added_in_the_dtype_of_the_input(dtype):
    x = torch.randn(B, L, D).to(dtype)
    added = Positions(D)(x)
    assert added.dtype == dtype
    table = sinusoids(L, D, dtype=torch.float64) if dtype == torch.float64 else sinusoids(L, D).to(dtype)
    assert torch.equal(added, x + table)


@pytest.mark.parametrize("start", [0, 3, 8, 11, 12, 13, 100])
def test_beyond_the_ready_table_the_function_continues(start):
    # Ready are positions 0 .. 12: inside, up to the edge, across it, and beyond.
    x = torch.randn(B, L, D)
    expected = x + sinusoids(200, D)[start : start + L]
    assert torch.equal(Positions(D, ready=13)(x, start), expected)
    assert torch.equal(Positions(D)(x, start), expected)


def test_the_table_is_not_saved():
    positions = Positions(D)
    assert positions.state_dict() == {}
    assert list(positions.parameters()) == []


def test_in_double_precision_ready_and_computed_positions_agree():
    x = torch.zeros(B, L, D, dtype=torch.float64)
    for positions in (Positions(D), Positions(D).double()):
        for start in (1010, 1022, 1030):  # ready, across the edge, computed
            assert torch.equal(positions(x, start)[1], sinusoids(L, D, start=start, dtype=torch.float64))


# Rows of sequences


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("ready", [3, 11, 13])  # a table too short, just long enough, and longer
def test_each_token_of_a_row_gets_the_position_in_its_own_sequence(ready, dtype):
    lengths = [5, 11, 1, 2]  # 19 tokens in a row of 20
    packing = Packing.of(lengths)
    x = torch.randn(1, 20, D).to(dtype)
    positions = Positions(D, ready=ready)
    found = positions.add_packed(x, packing)
    assert found.dtype == dtype
    alone = [positions(part) for part in x[:, :19].split(lengths, dim=1)]
    assert torch.equal(found[:, :19], torch.cat(alone, dim=1))
    assert torch.equal(found[:, 19:], positions(x[:, 19:]))


def test_a_row_of_a_double_precision_model_is_exact():
    packing = Packing.of([2, 3])
    x = torch.zeros(1, 5, D, dtype=torch.float64)
    expected = torch.cat([sinusoids(2, D, dtype=torch.float64), sinusoids(3, D, dtype=torch.float64)])
    assert torch.equal(Positions(D).double().add_packed(x, packing)[0], expected)
