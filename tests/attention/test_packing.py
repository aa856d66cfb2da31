"""Rows and grids against explicit indexing, one sequence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.packing import Packing, row_length

LENGTHS = [5, 2, 7, 1, 3, 11]  # 29 tokens in a row of 30: filling and empty cells both
W = 13
EXACT = dict(rtol=0, atol=0)

lengths_of_sequences = st.lists(st.integers(1, 23), min_size=1, max_size=13)


def row_of(packing: Packing, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random, its filling too."""
    return torch.randn(1, len(packing.positions), W, dtype=dtype, requires_grad=True)


def grid_of(packing: Packing, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random, its empty cells too."""
    return torch.randn(len(packing.keep), packing.longest, W, dtype=dtype, requires_grad=True)


def explicit_grid(row: Tensor, lengths: list[int]) -> Tensor:
    """Each sequence cut out of the row, zeros after it."""
    grid = row.new_zeros(len(lengths), max(lengths), row.shape[2])
    begin = 0
    for line, length in enumerate(lengths):
        grid[line, :length] = row[0, begin : begin + length]
        begin += length
    return grid


def explicit_row(grid: Tensor, lengths: list[int], row: int) -> Tensor:
    """The sequences of the grid one after the other, zeros after the last."""
    tokens = torch.cat([line[:length] for line, length in zip(grid, lengths, strict=True)])
    return torch.cat([tokens, tokens.new_zeros(row - len(tokens), grid.shape[2])])[None]


# Where everything stands


def test_a_packing_by_hand():
    packing = Packing.of([2, 3, 1])
    assert packing.keep.sum(-1).flatten().tolist() == [2, 3, 1]
    assert (packing.tokens, packing.longest) == (6, 3)
    assert packing.positions.tolist() == [0, 1, 0, 1, 2, 0]
    assert packing.keep.tolist() == [[[[True, True, False]]], [[[True, True, True]]], [[[True, False, False]]]]
    row = torch.arange(1.0, 7.0).view(1, 6, 1)
    assert packing.spread(row)[..., 0].tolist() == [[1, 2, 0], [3, 4, 5], [6, 0, 0]]
    grid = torch.arange(1.0, 10.0).view(3, 3, 1)
    assert packing.gather(grid)[0, :, 0].tolist() == [1, 2, 4, 5, 6, 7]


def test_ids_are_filled_up_to_the_rows_length():
    packing = Packing.of([17, 2])
    row = packing.fill(torch.arange(100, 119), 7)
    assert row.dtype == torch.long
    assert row.tolist() == [[*range(100, 119), 7]]
    assert packing.positions.tolist() == [*range(17), 0, 1, 0]


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of_sequences)
def test_positions_count_within_each_sequence_and_keep_is_true_on_tokens(lengths):
    packing = Packing.of(lengths)
    tokens, row = sum(lengths), row_length(sum(lengths))
    assert (packing.tokens, packing.longest) == (tokens, max(lengths))
    counted = [position for length in lengths for position in range(length)]
    assert packing.positions.tolist() == counted + [0] * (row - tokens)
    assert packing.keep.shape == (len(lengths), 1, 1, max(lengths))
    for keep, length in zip(packing.keep[:, 0, 0].tolist(), lengths, strict=True):
        assert keep == [True] * length + [False] * (max(lengths) - length)


# Row to grid and back


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of_sequences)
def test_row_and_grid_are_those_of_explicit_indexing_and_so_are_their_gradients(lengths):
    packing = Packing.of(lengths)
    row, grid = row_of(packing), grid_of(packing)
    spread, gathered = packing.spread(row), packing.gather(grid)
    expected_spread = explicit_grid(row, lengths)
    expected_gathered = explicit_row(grid, lengths, row.shape[1])
    assert_close(spread, expected_spread, **EXACT)
    assert_close(gathered, expected_gathered, **EXACT)
    towards_grid, towards_row = torch.randn_like(grid), torch.randn_like(row)
    (found,) = torch.autograd.grad(spread, row, towards_grid)
    (expected,) = torch.autograd.grad(expected_spread, row, towards_grid)
    assert_close(found, expected, **EXACT)
    (found,) = torch.autograd.grad(gathered, grid, towards_row)
    (expected,) = torch.autograd.grad(expected_gathered, grid, towards_row)
    assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_filling_and_empty_cells_hold_does_not_come_through(dtype):
    packing = Packing.of(LENGTHS)
    row, grid = row_of(packing, dtype).detach(), grid_of(packing, dtype).detach()
    row[:, packing.tokens :] = torch.nan
    grid.masked_fill_(~packing.keep.view(*grid.shape[:2], 1), torch.nan)
    for found, expected in ((packing.spread(row), explicit_grid(row, LENGTHS)), (packing.gather(grid), None)):
        assert found.dtype == dtype
        assert found.isfinite().all()
        if expected is not None:
            assert torch.equal(found, expected)
    infinite = row.clone()
    infinite[:, 0] = torch.inf  # the first token, which stands in for the empty cells
    assert packing.spread(infinite).isfinite().sum() == grid.numel() - W


def test_strided_rows_and_grids():
    packing = Packing.of(LENGTHS)
    row, grid = row_of(packing).detach(), grid_of(packing).detach()
    wide_row, wide_grid = torch.cat([row, -row], 2), torch.cat([grid, -grid], 2)
    assert_close(packing.spread(wide_row[..., :W]), explicit_grid(row, LENGTHS), **EXACT)
    assert_close(packing.spread(row.mT.contiguous().mT), explicit_grid(row, LENGTHS), **EXACT)
    for strided in (wide_grid[..., :W], grid.mT.contiguous().mT, grid.transpose(0, 1).contiguous().transpose(0, 1)):
        assert_close(packing.gather(strided), explicit_row(grid, LENGTHS, row.shape[1]), **EXACT)


def test_gradients_of_gradients():
    packing = Packing.of([3, 1, 2, 11])  # a row of 18 for 17 tokens
    row, grid = (x.detach()[..., :2].clone().requires_grad_() for x in (row_of(packing), grid_of(packing)))
    assert row.shape[1] > packing.tokens
    for function, x in ((packing.spread, row), (packing.gather, grid)):
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(lambda x, function=function: function(x) ** 3, (x,))


def test_the_gradient_is_taken_as_it_comes():
    # Of a sum it is expanded, without memory of its own.
    packing = Packing.of(LENGTHS)
    row, grid = row_of(packing), grid_of(packing)
    packing.spread(row).sum().backward()
    packing.gather(grid).sum().backward()
    real = torch.arange(row.shape[1])[None, :, None] < packing.tokens
    assert torch.equal(row.grad, real.double().expand_as(row))
    assert torch.equal(grid.grad, packing.keep.view(*grid.shape[:2], 1).double().expand_as(grid))


def test_another_device_is_another_packing_with_the_same_numbers():
    packing = Packing.of(LENGTHS)
    moved = packing.to(torch.device("meta"))
    assert (moved.tokens, moved.longest, moved.keep.shape) == (packing.tokens, packing.longest, packing.keep.shape)
    assert moved.positions.device.type == moved.keep.device.type == "meta"
    row, grid = row_of(packing).to("meta"), grid_of(packing).to("meta")
    assert moved.spread(row).shape == grid.shape
    assert moved.spread(row).device.type == "meta"
    assert moved.gather(grid).shape == row.shape
    assert packing.positions.device.type == "cpu"
    same = packing.to(torch.device("cpu"))
    row = row_of(packing)
    assert torch.equal(same.spread(row), packing.spread(row))


# How long a row is


@given(tokens=st.integers(1, 1 << 40))
def test_a_row_is_at_most_an_eighth_longer_than_its_tokens(tokens):
    assert tokens <= row_length(tokens) <= tokens + tokens // 8
    assert row_length(row_length(tokens)) == row_length(tokens)


def test_rows_have_eight_lengths_an_octave():
    assert [row_length(n) for n in range(1, 18)] == [*range(1, 17), 18]
    for octave in range(4, 14):
        lengths = {row_length(n) for n in range((1 << octave) + 1, (2 << octave) + 1)}
        assert lengths == {(1 << octave) * eighths // 8 for eighths in range(9, 17)}
