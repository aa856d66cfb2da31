"""Neighbouring lines that are joined, so that a model learns to read and write several sentences at once.

Neighbours are pairs on consecutive lines of a file (or rows, or units) that are all kept for training. What is left out
ends a row of neighbours: a line with an empty side, such as parts documents from one another, one that is too long or
of unlike lengths, and one that is held out for validation.
"""

import random
from collections.abc import Iterator, Sequence


def rows_of_neighbours(
    numbers: Sequence[int], lengths: Sequence[int], *, most_lines: int, most_tokens: int, draw: random.Random
) -> Iterator[tuple[int, int]]:
    """Yield the first place and the end of each row of lines to join; every line is in at most one row.

    `numbers` are those of the lines in their file, ascending, and `lengths` how many tokens each has. A row is of 2 to
    `most_lines` lines, as many as `draw` says or as there are, and of at most `most_tokens` tokens.

    >>> rows = rows_of_neighbours(
    ...     [1, 2, 3, 5, 6, 8], [4, 4, 4, 4, 4, 4], most_lines=2, most_tokens=9, draw=random.Random(1)
    ... )
    >>> list(rows)
    [(0, 2), (3, 5)]
    """
    first = 0
    while first < len(numbers):
        count, end, tokens = draw.randint(2, most_lines), first + 1, lengths[first]
        while end < len(numbers) and end - first < count and numbers[end] == numbers[end - 1] + 1:
            tokens += lengths[end]
            if tokens > most_tokens:
                break
            end += 1
        if end - first > 1:
            yield first, end
        first = end
