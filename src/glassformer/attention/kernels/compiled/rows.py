"""Passes over a row of scores, which LLVM turns into vector instructions. Rows are flat arrays of float32."""

import math
from typing import no_type_check

from glassformer.attention.kernels.compiled.jit import SUMS, F, I, inner
from glassformer.attention.kernels.compiled.registers import bits, from_bits

LEAST = F(-87.0)
"""exp of less is 0, as float32 ends at 1e-38."""

PART = 32
"""Numbers of a row that are passed over if none of them is among the largest."""

_TO_BITS = F(1.5 * 2**23)  # added to a number below 2^22, it leaves its whole part in the last bits
_LOG2_E = F(1 / math.log(2))
_LN_2 = F(0.693145751953125)  # few digits, so that its product with a whole number is exact; the next line has the rest
_LN_2_REST = F(math.log(2) - 0.693145751953125)
_P2, _P3, _P4, _P5, _P6, _P7 = (F(1 / math.factorial(n)) for n in range(2, 8))  # off by 5e-9 where |f| < ln(2) / 2
_ZERO, _ONE, _LOWEST = F(0), F(1), F(-math.inf)


@inner({"contract"})  # in another order, adding _TO_BITS would do nothing
@no_type_check
def exp(x):
    """Return exp(x) for x from -87 to 87, to the last bit or two."""
    shifted = x * _LOG2_E + _TO_BITS
    n = shifted - _TO_BITS
    f = (x - n * _LN_2) - n * _LN_2_REST
    p = ((((((_P7 * f + _P6) * f + _P5) * f + _P4) * f + _P3) * f + _P2) * f + _ONE) * f + _ONE
    return from_bits(bits(p) + (bits(shifted) << I(23)))


@inner()
@no_type_check
def ordered(number):
    """Return an int32 that is the larger the larger a number is; from_bits(ordered(...)) turns positive ones back."""
    found = bits(number)
    return found ^ ((found >> I(31)) & I(0x7FFFFFFF))


@inner()
@no_type_check
def largest_of(row):
    """Return the largest number of a row. A NaN may count as the largest, or not at all."""
    largest = ordered(_LOWEST)
    for n in range(len(row)):  # whole numbers: where a NaN may be, LLVM makes no vectors of a maximum
        largest = max(largest, ordered(row[n]))
    return from_bits(largest ^ ((largest >> I(31)) & I(0x7FFFFFFF)))


@inner(SUMS)
@no_type_check
def shifted_exp(score, reference):
    """Return a score less the reference, at least LEAST, and its exponential, 0 below LEAST."""
    x = score - reference
    blocked = x < LEAST
    x = LEAST if blocked else x
    return x, _ZERO if blocked else exp(x)


@inner(SUMS)
@no_type_check
def exponentiate(row, reference, apart):
    """Turn scores s into e = exp(s - reference) in place; return Σ e, Σ e (s - reference) and Σ e |apart + n|.

    n counts the keys of the row, so `apart` is how far the first stands to the right of the query.
    """
    total, tilt, distance = _ZERO, _ZERO, _ZERO
    for n in range(len(row)):
        x, e = shifted_exp(row[n], reference)
        row[n] = e
        total += e
        tilt += e * x
        distance += e * F(abs(apart + I(n)))
    return total, tilt, distance


@inner(SUMS)
@no_type_check
def exponentiate_alone(row, reference):
    """Turn scores s into e = exp(s - reference) in place; return Σ e."""
    total = _ZERO
    for n in range(len(row)):
        _, row[n] = shifted_exp(row[n], reference)
        total += row[n]
    return total


@inner(SUMS)
@no_type_check
def weigh_sum(row, reference, tilt, numbers):
    """Return Σ p number for scores s, where p = exp(s - reference - tilt)."""
    total = _ZERO
    for n in range(len(row)):
        x = (row[n] - reference) - tilt
        blocked = x < LEAST
        x = LEAST if blocked else x
        total += (_ZERO if blocked else exp(x)) * numbers[n]
    return total


@inner(SUMS)
@no_type_check
def push(row, pushed, reference, tilt, apart, of_keys, of_entropy, of_distance, constant):
    """Turn scores s into weights p = exp(s - reference - tilt), and what is pushed on them into their scores' gradient.

    That is p (pushed + of_keys - of_entropy log p + of_distance |apart + n| - constant).
    """
    for n in range(len(row)):
        x = (row[n] - reference) - tilt
        blocked = x < LEAST
        x = LEAST if blocked else x
        p = _ZERO if blocked else exp(x)
        row[n] = p
        far = F(abs(apart + I(n)))
        pushed[n] = p * (pushed[n] + of_keys[n] - of_entropy * x + of_distance * far - constant)


@inner(SUMS)
@no_type_check
def add_scaled(factor, row, onto):
    """Add a row, times a factor, to another."""
    for n in range(len(onto)):
        onto[n] += factor * row[n]


@inner()
@no_type_check
def mask_row(row, keep, bias):
    """Add the bias to a row of scores, and set those that are not kept to -inf. An empty mask does nothing."""
    if len(bias):
        for n in range(len(row)):
            row[n] += bias[n]
    if len(keep):
        for n in range(len(row)):
            row[n] = row[n] if keep[n] else _LOWEST


@inner()
@no_type_check
def keep_largest(row, factor, first, least, weights, keys):
    """Put the numbers of a row, times a factor, among the largest so far, `weights`, and their positions in `keys`.

    Those below `least` can't be among them. The first of the row has position `first`. Zeros are left out.
    """
    last = len(weights) - 1
    for start in range(0, len(row), PART):
        part = row[start : start + PART]
        bar = max(least, weights[last])
        if largest_of(part) * factor < bar:
            continue
        for n in range(len(part)):
            weight = part[n] * factor
            if weight < least or weight <= weights[last]:
                continue
            place = last
            while place > 0 and weights[place - 1] < weight:
                weights[place], keys[place] = weights[place - 1], keys[place - 1]
                place -= 1
            weights[place], keys[place] = weight, first + start + n
