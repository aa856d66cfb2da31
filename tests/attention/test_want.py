import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.attention.want import NOTHING, SUMMARY, Want, tile_size
from glassformer.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("unchecked")

MASK = torch.rand(2, 1, 5, 7) < 0.5
SUMMARISED = ("entropy", "received", "distance", "lse")
NUMBERS = dict(top=2, rows=(0,), pooled=3, pooled_heads=5)
MAPS = dict(head_mean=True, weights=True)


def test_what_is_asked():
    assert Want() == NOTHING
    assert NOTHING.asked == ()
    assert SUMMARY.asked == SUMMARISED
    assert Want(**dict.fromkeys(SUMMARISED, True), **NUMBERS, **MAPS).asked == (*SUMMARISED, *NUMBERS, *MAPS)


@pytest.mark.parametrize("rows", [[3, 1], (3, 1), torch.tensor([3, 1]), range(3, 0, -2)], ids=repr)
def test_rows_may_come_in_any_sequence(rows):
    want = Want(rows=rows, row_heads=rows)
    assert want.rows == want.row_heads == (3, 1)
    assert want.asked == ("rows",)
    assert hash(want) == hash(Want(rows=(3, 1), row_heads=(3, 1)))


def test_one_row_may_be_a_number():
    assert Want(rows=0, row_heads=-1) == Want(rows=(0,), row_heads=(-1,))


@pytest.mark.parametrize("name", ["top", "pooled", "pooled_heads"])
@pytest.mark.parametrize("number", [-1, True, 2.5, None, "3"])
def test_numbers_are_checked(name, number):
    with pytest.raises(ArgumentError, match=f"{name} must be a number, 0 or more, got {number!r}: {name}=8, say"):
        Want(**{name: number})


@pytest.mark.parametrize("name", ["rows", "row_heads"])
def test_true_is_no_position(name):
    with pytest.raises(ArgumentError, match=rf"{name} must be positions, such as \(0, 5\), got True"):
        Want(**{"rows": (0,), name: True})


def test_heads_of_no_rows_are_an_error():
    with pytest.raises(ArgumentError, match=r"row_heads says whose rows, but rows is empty: .* rows=\(0, 5\)"):
        Want(row_heads=(0,))


def test_what_exists_passes_the_check():
    want = Want(top=7, rows=(-5, 4), row_heads=(-3, 2))
    want.check(heads=3, q_len=5, k_len=7)
    for sizes in ((2, 5, 7), (3, 4, 7), (3, 5, 6)):
        with pytest.raises(ArgumentError):
            want.check(*sizes)


@given(length=st.integers(0, 10**6), tiles=st.integers(1, 10**4))
def test_tiles_are_the_smallest_of_which_there_are_few_enough(length, tiles):
    size = tile_size(length, tiles)
    assert math.ceil(length / size) <= tiles
    assert size == 1 or math.ceil(length / (size - 1)) > tiles


def test_masks_are_compared_by_what_they_hold():
    want = Want(mass=MASK, agreement=MASK[:, 0])
    same = Want(mass=MASK.clone(), agreement=MASK[:, 0].clone())
    assert want == same
    assert hash(want) == hash(same)
    assert want.asked == ("mass", "agreement")
    for other in (Want(), Want(mass=MASK), Want(mass=~MASK, agreement=MASK[:, 0]), "mass"):
        assert want != other
        assert other != want
    assert "mass=<2 x 1 x 5 x 7>, agreement=<2 x 5 x 7>" in repr(want)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            MASK.float(),
            r"mass must be a boolean tensor \(batch, heads, q_len, k_len\), got torch.float32: pass mass > 0",
        ),
        ([True], r"mass must be a boolean tensor .*, got \[True\]"),
    ],
    ids=["float", "list"],
)
def test_masks_are_boolean(mask, message):
    with pytest.raises(ArgumentError, match=message):
        Want(mass=mask)
    with pytest.raises(ArgumentError, match=message.replace("mass", "agreement").replace("heads, ", "")):
        Want(agreement=mask)


def test_only_what_fits_other_lengths_stays():
    want = Want(sink=3, mass=MASK, agreement=MASK[:, 0])
    assert want.fitted(5, 7) == want
    assert want.fitted(1, 2) == Want(sink=2)
    assert Want(mass=MASK[:, :, :1]).fitted(3, 7).asked == ("mass",)
