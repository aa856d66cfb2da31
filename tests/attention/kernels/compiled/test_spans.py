import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.compiled.spans import (
    Span,
    heads_of_keys,
    pieces_of,
    pieces_through_heads,
    side_by_side,
    with_places,
)


def problem(batch: int, heads: int, q_len: int, k_len: int, causal: bool = False, keep=None) -> Problem:
    q, k = torch.empty(batch, heads, q_len, 1), torch.empty(batch, heads, k_len, 1)
    return Problem(q, k, k, keep, None, causal, 1.0, torch.float32)


@settings(max_examples=100, deadline=None)
@given(
    batch=st.integers(0, 3), heads=st.integers(1, 5), q_len=st.integers(0, 29), more=st.integers(0, 9),
    causal=st.booleans(), number=st.integers(1, 40),
)  # fmt: skip
def test_pieces_hold_every_query_once_and_cut_heads_between_blocks(batch, heads, q_len, more, causal, number):
    pieces = pieces_of(problem(batch, heads, q_len, q_len + more, causal), 6, number)
    assert len(pieces) <= number
    rows = [(s.entry, s.head, row) for piece in pieces for s in piece for row in range(s.first, s.last)]
    assert rows == [(b, h, row) for b in range(batch) for h in range(heads) for row in range(q_len)]
    assert all(span.first % 6 == 0 for piece in pieces for span in piece)


def test_pieces_are_about_as_much_work_under_a_triangle():
    pieces = pieces_of(problem(1, 1, 6000, 6000, causal=True), 6, 4)
    work = [sum(row + 1 for span in piece for row in range(span.first, span.last)) for piece in pieces]
    assert max(work) < 1.02 * min(work)


def test_spans_leave_out_padding():
    keep = torch.tensor([[0, 1, 1, 0, 0], [1, 1, 1, 1, 0]]).bool()[:, None, None]
    (piece,) = pieces_of(problem(2, 1, 3, 5, keep=keep), 6, 1)
    assert piece == [Span(0, 0, 0, 3, 1, 3), Span(1, 0, 0, 3, 0, 4)]


@settings(max_examples=50, deadline=None)
@given(batch=st.integers(0, 3), q_len=st.integers(0, 29), causal=st.booleans(), number=st.integers(1, 40))
def test_pieces_through_heads_hold_all_heads_of_a_block_in_turn(batch, q_len, causal, number):
    pieces = pieces_through_heads(problem(batch, 3, q_len, q_len + 2, causal), 6, number)
    assert len(pieces) <= number
    expected = [
        Span(entry, head, start, min(start + 6, q_len), 0, q_len + 2)
        for entry in range(batch) for start in range(0, q_len, 6) for head in range(3)
    ]  # fmt: skip
    assert [span for piece in pieces for span in piece] == expected
    assert all(len(piece) % 3 == 0 for piece in pieces)


def test_heads_of_keys_leave_out_padding():
    keep = torch.tensor([[0, 1, 1, 0, 0], [1, 1, 1, 1, 0]]).bool()[:, None, None]
    found = heads_of_keys(problem(2, 2, 3, 5, keep=keep))
    assert found == [[Span(entry, head, 0, 0, *keys)] for entry, keys in ((0, (1, 3)), (1, (0, 4))) for head in (0, 1)]


def test_only_heads_of_several_pieces_need_places():
    # Six heads, pairs of which share keys; the second pair is cut in two.
    spans = [Span(0, head, 0, 6, 0, 9) for head in range(6)]
    numbered, shared = with_places([spans[:3], spans[3:]], served=2)
    assert [piece[:, 6].tolist() for piece in numbered] == [[-1, -1, 0], [1, -1, -1]]
    assert shared == [(0, 1), (0, 1)]
    assert numbered[1][0].tolist() == [0, 3, 0, 6, 0, 9, 1]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_all_work_is_done_by_so_many_threads(threads):
    together = threading.Barrier(threads, timeout=10)
    done: list[int] = []

    def piece(n: int) -> None:
        if n < threads:
            together.wait()  # so that no thread does all
        done.append(n)

    side_by_side([partial(piece, n) for n in range(7)], threads)
    assert sorted(done) == list(range(7))


def test_an_error_in_any_thread_is_raised():
    def fail() -> None:
        raise MemoryError("no room")

    for threads in (1, 2):
        with pytest.raises(MemoryError, match="no room"):
            side_by_side([fail, fail], threads)
