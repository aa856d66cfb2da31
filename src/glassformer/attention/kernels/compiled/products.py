"""Matrix products of flat arrays, tile by tile, and how their right factors lie in memory."""

from typing import no_type_check

from glassformer.attention.kernels.compiled.jit import F, inner, np
from glassformer.attention.kernels.compiled.registers import COLUMNS, ROWS, multiply_tile


@inner()
@no_type_check
def multiply(a, a_at, a_row, a_inner, b, b_at, b_row, c, c_at, c_row, rows, columns, inner):
    """Add a b to c, for multiples of ROWS rows and of COLUMNS columns.

    Element (row, n) of a is at a_at + row * a_row + n * a_inner, n counting to `inner`, the rows of b.
    """
    for row in range(0, rows, ROWS):
        for column in range(0, columns, COLUMNS):
            multiply_tile(
                a, a_at + row * a_row, a_row, a_inner, b, b_at + column, b_row, c, c_at + row * c_row + column, c_row,
                inner, 1,
            )  # fmt: skip


@inner()
@no_type_check
def multiply_panels(a, a_row, panels, panel, inner, c, c_at, c_row, rows, columns):
    """Set c = a b for multiples of ROWS rows and of COLUMNS columns, where b lies in panels: see `panels_of`."""
    for column in range(0, columns, COLUMNS):
        b_at = (panel + column // COLUMNS) * inner * COLUMNS
        for row in range(0, rows, ROWS):
            multiply_tile(
                a, row * a_row, a_row, 1, panels, b_at, COLUMNS, c, c_at + row * c_row + column, c_row, inner, 0
            )


@inner()
@no_type_check
def up_to(number, step):
    """Return the next multiple of step."""
    return (number + step - 1) // step * step


@inner()
@no_type_check
def panels_of(x):
    """Return the columns of xᵀ, COLUMNS side by side: flat (panel, width of x, column), with zeros at the end."""
    found = np.zeros(up_to(x.shape[0], COLUMNS) * x.shape[1], F)
    put_panels(x, found)
    return found


@inner()
@no_type_check
def put_panels(x, found):
    """Put what `panels_of` returns into `found`, which holds zeros."""
    length, width = x.shape
    for n in range(length):
        start = n // COLUMNS * COLUMNS * width + n % COLUMNS
        for d in range(width):
            found[start + d * COLUMNS] = x[n, d]


@inner()
@no_type_check
def padded(x, length, width, scale):
    """Return x times scale with zeros at the end of both axes, flat."""
    found = np.zeros(length * width, F)
    put_padded(x, width, scale, found)
    return found


@inner()
@no_type_check
def put_padded(x, width, scale, found):
    """Put x times scale into `found`, which holds zeros, in rows of such a width."""
    for n in range(x.shape[0]):
        for d in range(x.shape[1]):
            found[n * width + d] = x[n, d] * scale


@inner()
@no_type_check
def part_of_row(mask, entry, head, row, first, stop):
    """Return keys first to stop of a row of a mask, whose first three axes may have size 1; nothing of an empty one."""
    batch, heads, rows, _ = mask.shape
    if not batch:
        return mask.reshape(-1)
    return mask[entry % batch, head % heads, row % rows, first:stop]


def packed_sizes(keys: int, width: int, v_width: int) -> tuple[int, int]:
    """Return how many numbers the keys in panels are, and the values in padded rows."""
    return -(-keys // COLUMNS) * COLUMNS * width, keys * -(-v_width // COLUMNS) * COLUMNS
