"""The matrix of jumps in blocks against the whole one."""

import pytest
import torch
from torch.testing import assert_close

from glassformer.alignment import jumps as module
from glassformer.alignment.hmm import Direction
from glassformer.alignment.jumps import LONGEST_JUMP, JumpMatrix

WIDTHS = 2 * LONGEST_JUMP + 1


@pytest.fixture(params=[5, 24, 25, 71, 101])
def places(request, monkeypatch) -> int:
    monkeypatch.setattr(module, "WHOLE", 24)
    monkeypatch.setattr(module, "BLOCK", 24)
    return request.param


@pytest.fixture
def jumps() -> torch.Tensor:
    return torch.rand(WIDTHS, generator=torch.Generator().manual_seed(3), dtype=torch.double)


def kinds(places: int) -> torch.Tensor:
    at = torch.arange(places)
    return (at - at[:, None]).clamp(-LONGEST_JUMP, LONGEST_JUMP) + LONGEST_JUMP


def test_products_are_those_of_the_whole_matrix(jumps, places):
    rows, whole, matrix = torch.rand(3, places, dtype=torch.double), jumps[kinds(places)], JumpMatrix(jumps, places)
    assert_close(matrix.multiply(rows), rows @ whole)
    assert_close(matrix.mT.multiply(rows), rows @ whole.mT)


def test_jumps_are_counted_as_over_the_whole_matrix(jumps, places):
    left, reached = torch.rand(2, 7, places, dtype=torch.double)
    expected = [
        float(((left.mT @ reached) * jumps[kinds(places)])[kinds(places) == kind].sum()) for kind in range(WIDTHS)
    ]
    assert_close(JumpMatrix(jumps, places).count(left, reached), torch.tensor(expected, dtype=torch.double))


def test_a_chain_in_blocks_is_the_chain_of_the_whole_matrix(jumps, places, monkeypatch):
    """That of the whole one is tested against all alignments, one by one, in test_model.py."""
    draw = torch.Generator().manual_seed(5)
    none = torch.full((3,), 1 / 3, dtype=torch.double)
    direction = Direction(torch.arange(9), torch.ones(9), none, jumps / jumps.sum(), torch.ones(3, 6))
    emissions = torch.rand(2, 11, places, generator=draw, dtype=torch.double) ** 7
    target = torch.randint(3, (2, 11), generator=draw)
    lengths = torch.tensor([11, 4]), torch.tensor([places - 2, places])
    shares, counts = direction.chain(emissions, target, *lengths)
    monkeypatch.setattr(module, "WHOLE", places)
    whole_shares, whole_counts = direction.chain(emissions, target, *lengths)
    assert_close(shares, whole_shares)
    assert_close(counts, whole_counts)
    assert (shares[0, :, places - 2 :] == 0).all()
