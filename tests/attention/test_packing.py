"""Rows and grids against explicit indexing, one sequence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.attention.packing import Packing, row_length

LENGTHS = [5, 2, 7, 1, 3, 11]  # 29 tokens in a row of 30: filling and empty cells both
W = 13


def row_of(packing: Packing) -> Tensor:
    """Random, its filling too."""
    return torch.randn(1, len(packing.positions), W, dtype=torch.float64, requires_grad=True)


def grid_of(packing: Packing) -> Tensor:
    """Random, its empty cells too."""
    return torch.randn(len(packing.keep), packing.longest, W, dtype=torch.float64, requires_grad=True)


def explicit_grid(row: Tensor, lengths: list[int]) -> Tensor:
    """Each sequence cut out of the row, zeros after it."""
    return pad_sequence(row[0, : sum(lengths)].split(lengths), batch_first=True)


def explicit_row(grid: Tensor, lengths: list[int], row: int) -> Tensor:
    """The sequences of the grid one after the other, zeros after the last."""
    tokens = torch.cat([line[:length] for line, length in zip(grid, lengths, strict=True)])
    return torch.cat([tokens, tokens.new_zeros(row - len(tokens), grid.shape[2])])[None]


# Where everything stands


def test_a_packing_by_hand():
    packing = Packing.of([2, 3, 1])
    assert (packing.tokens, packing.longest) == (6, 3)
    assert packing.positions.tolist() == [0, 1, 0, 1, 2, 0]
    assert packing.keep.tolist() == [[[[True, True, False]]], [[[True, True, True]]], [[[True, False, False]]]]


def test_ids_are_filled_up_to_the_rows_length():
    packing = Packing.of([17, 2])
    row = packing.fill(torch.arange(100, 119), 7)
    assert row.dtype == torch.long
    assert row.tolist() == [[*range(100, 119), 7]]
    assert packing.positions.tolist() == [*range(17), 0, 1, 0]


def test_sequences_may_all_be_empty():
    packing = Packing.of([0, 0])
    assert packing.spread(torch.zeros(1, len(packing.positions), 4)).shape == (2, packing.longest, 4)


# Row to grid and back


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 23), min_size=1, max_size=13))
def test_row_and_grid_are_those_of_explicit_indexing_and_so_are_their_gradients(lengths):
    packing = Packing.of(lengths)
    row, grid = row_of(packing), grid_of(packing)
    for found, expected, x in (
        (packing.spread(row), explicit_grid(row, lengths), row),
        (packing.gather(grid), explicit_row(grid, lengths, row.shape[1]), grid),
    ):
        assert torch.equal(found, expected)
        for towards in (torch.randn_like(found), torch.ones(1, 1, 1).double().expand_as(found)):  # as a sum's
            grads = (torch.autograd.grad(y, x, towards, retain_graph=True)[0] for y in (found, expected))
            assert torch.equal(*grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_filling_and_empty_cells_hold_does_not_come_through(dtype):
    packing = Packing.of(LENGTHS)
    row, grid = (x.detach().to(dtype) for x in (row_of(packing), grid_of(packing)))
    expected = explicit_grid(row, LENGTHS)
    row[:, packing.tokens :] = torch.nan
    grid.masked_fill_(~packing.keep.view(*grid.shape[:2], 1), torch.nan)
    assert torch.equal(packing.spread(row), expected)
    assert packing.gather(grid).isfinite().all()
    infinite = row.clone()
    infinite[:, 0] = torch.inf  # the first token, which stands in for the empty cells
    assert packing.spread(infinite).isfinite().sum() == grid.numel() - W


def test_strided_rows_and_grids():
    packing = Packing.of(LENGTHS)
    row, grid = row_of(packing).detach(), grid_of(packing).detach()
    expected, gathered = explicit_grid(row, LENGTHS), explicit_row(grid, LENGTHS, row.shape[1])
    for strided in (torch.cat([row, -row], 2)[..., :W], row.mT.contiguous().mT):
        assert torch.equal(packing.spread(strided), expected)
    for strided in (torch.cat([grid, -grid], 2)[..., :W], grid.mT.contiguous().mT):
        assert torch.equal(packing.gather(strided), gathered)
    assert torch.equal(packing.gather(grid.transpose(0, 1).contiguous().transpose(0, 1)), gathered)


def test_gradients_of_gradients():
    packing = Packing.of([3, 1, 2, 11])  # a row of 18 for 17 tokens
    row, grid = (x.detach()[..., :2].clone().requires_grad_() for x in (row_of(packing), grid_of(packing)))
    assert row.shape[1] > packing.tokens
    for function, x in ((packing.spread, row), (packing.gather, grid)):
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(lambda x, function=function: function(x) ** 3, (x,))


def test_another_device_is_another_packing_with_the_same_numbers():
    packing = Packing.of(LENGTHS)
    moved = packing.to(torch.device("meta"))
    assert (moved.tokens, moved.longest, moved.keep.shape) == (packing.tokens, packing.longest, packing.keep.shape)
    assert moved.positions.device.type == moved.keep.device.type == "meta"
    row, grid = row_of(packing), grid_of(packing)
    for found, shape in ((moved.spread(row.to("meta")), grid.shape), (moved.gather(grid.to("meta")), row.shape)):
        assert (found.shape, found.device.type) == (shape, "meta")
    assert packing.positions.device.type == "cpu"
    assert torch.equal(packing.to(torch.device("cpu")).spread(row), packing.spread(row))


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
