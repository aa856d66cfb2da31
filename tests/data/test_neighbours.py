"""Rows of neighbouring lines that are joined: consecutive, disjoint, short enough, the same for the same seed."""

import random

from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.neighbours import rows_of_neighbours


def rows(numbers: list[int], lengths: list[int], seed: int = 1, **limits: int) -> list[tuple[int, int]]:
    return list(rows_of_neighbours(numbers, lengths, draw=random.Random(seed), **limits))


@given(
    lines=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=30),
    most_lines=st.integers(2, 5),
    most_tokens=st.integers(1, 30),
)
def test_a_row_is_of_consecutive_lines_within_the_limits(lines, most_lines, most_tokens):
    numbers = [sum(step for step, _ in lines[: n + 1]) for n in range(len(lines))]
    lengths = [length for _, length in lines]
    found = rows(numbers, lengths, most_lines=most_lines, most_tokens=most_tokens)
    places = [place for first, end in found for place in range(first, end)]
    assert places == sorted(set(places))
    for first, end in found:
        assert 2 <= end - first <= most_lines
        assert numbers[end - 1] - numbers[first] == end - 1 - first
        assert sum(lengths[first:end]) <= most_tokens
    assert found == rows(numbers, lengths, most_lines=most_lines, most_tokens=most_tokens)


def test_most_lines_are_joined_and_the_seed_says_how_many_together():
    numbers, ones = list(range(999)), [1] * 999
    found = rows(numbers, ones, most_lines=4, most_tokens=9)
    assert sum(end - first for first, end in found) >= 998
    assert {end - first for first, end in found} == {2, 3, 4}
    assert found != rows(numbers, ones, seed=2, most_lines=4, most_tokens=9)
    assert rows(numbers, ones, most_lines=4, most_tokens=1) == []
