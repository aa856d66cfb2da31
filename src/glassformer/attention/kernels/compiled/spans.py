"""The division of attention's queries among threads: pieces of about as many weights each.

A thread that is done takes the next piece, since another may be held up by other work. What is in a piece does not
depend on that, so neither do sums over them.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.attention.kernels.blocks import Problem, open_keys
from glassformer.attention.kernels.compiled.team import on_each_thread


class Span(NamedTuple):
    """Some queries of a head, and the keys that are open to its entry of the batch."""

    entry: int
    head: int
    first: int
    last: int
    first_key: int
    last_key: int


def pieces_of(problem: Problem, height: int, number: int) -> list[list[Span]]:
    """Return at most so many pieces of all queries, each a list of spans.

    Heads are cut between blocks of `height` queries. Keys of padding before and after all that an entry may look at are
    left out.
    """
    _, heads, q_len, _ = problem.q.shape
    keys = _keys_of(problem)
    costs = [cost for open_ in keys for cost in _costs(problem, height, open_) * heads]
    blocks = len(range(0, q_len, height))
    return [_spans(begin, end, blocks, height, (heads, q_len), keys) for begin, end in _cut(costs, number)]


def pieces_through_heads(problem: Problem, height: int, number: int) -> list[list[Span]]:
    """Return at most so many pieces of all queries, where each block of queries has all of its heads side by side."""
    _, heads, q_len, _ = problem.q.shape
    keys = _keys_of(problem)
    costs = [cost for open_ in keys for cost in _costs(problem, height, open_)]
    blocks = [
        [Span(entry, head, start, min(start + height, q_len), open_.start, open_.stop) for head in range(heads)]
        for entry, open_ in enumerate(keys)
        for start in range(0, q_len, height)
    ]
    return [[span for block in blocks[begin:end] for span in block] for begin, end in _cut(costs, number)]


def heads_of_keys(problem: Problem) -> list[list[Span]]:
    """Return a piece for each head of keys, which has none of the queries."""
    keys = _keys_of(problem)
    heads = range(problem.k.shape[1])
    return [[Span(entry, head, 0, 0, open_.start, open_.stop)] for entry, open_ in enumerate(keys) for head in heads]


def _keys_of(problem: Problem) -> list[slice]:
    """Return the keys of each entry without padding."""
    batch, _, k_len, _ = problem.k.shape
    return [open_keys(problem.keep, slice(entry, entry + 1), k_len) for entry in range(batch)]


def _costs(problem: Problem, height: int, open_: slice) -> list[int]:
    """Return how many weights each block of a head has, if these keys are open to it."""
    q_len, k_len = problem.q.shape[2], problem.k.shape[2]
    costs = []
    for start in range(0, q_len, height):
        end = min(start + height, q_len)
        seen = min(open_.stop, end + k_len - q_len) if problem.causal else open_.stop
        costs.append((end - start) * max(1, seen - open_.start))
    return costs


def _cut(costs: list[int], number: int) -> list[tuple[int, int]]:
    """Return where at most so many parts of about the same cost begin and end."""
    until = [*accumulate(costs)] or [0]
    cuts = [0, *(bisect_left(until, until[-1] * n / number) for n in range(1, number)), len(costs)]
    return [(begin, end) for begin, end in pairwise(cuts) if begin < end]


def _spans(begin: int, end: int, blocks: int, height: int, sizes: tuple[int, int], keys: list[slice]) -> list[Span]:
    """Return the spans from one block to another, counted through all entries and heads, `blocks` in each."""
    heads, q_len = sizes
    found = []
    while begin < end:
        through, block = divmod(begin, blocks)
        stop = min(end, begin - block + blocks)
        entry, head = divmod(through, heads)
        last = min(q_len, (block + stop - begin) * height)
        found.append(Span(entry, head, block * height, last, keys[entry].start, keys[entry].stop))
        begin = stop
    return found


def with_places(pieces: list[list[Span]], served: int) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """Return each piece as a tensor (spans, 7), and whose sums its last column means: entries and heads.

    It says where a span adds what it sums over queries: -1 if no other piece has queries of that head, so that it may
    add to the result itself, else a place for this piece's part, from 0 on. Heads are those of keys, each of which
    serves so many heads.
    """
    owners = [[(span.entry, span.head // served) for span in piece] for piece in pieces]
    pieces_with = Counter(owner for of_piece in owners for owner in set(of_piece))
    shared: list[tuple[int, int]] = []
    numbered = []
    for piece, of_piece in zip(pieces, owners, strict=True):
        places = dict.fromkeys(of_piece, -1)
        for owner in places:
            if pieces_with[owner] > 1:
                places[owner] = len(shared)
                shared.append(owner)
        rows = [(*span, places[owner]) for span, owner in zip(piece, of_piece, strict=True)]
        numbered.append(torch.tensor(rows, dtype=torch.int64, device="cpu"))
    return numbered, shared


def side_by_side(work: list[Callable[[], None]], threads: int) -> None:
    """Do pieces of work on this thread and up to `threads` - 1 others, each taking the next that nobody has taken."""
    waiting = deque(work)
    threads = min(threads, len(work))

    def take() -> None:
        while waiting:
            try:
                piece = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            piece()

    if threads <= 1:
        take()
        return
    on_each_thread(take, threads)
