import itertools
import math

import pytest
import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import BLOCKS_IN_BUDGET, Block, Problem, groups, largest_scores

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass


def problem(
    *sizes: int, keep: Tensor | None = None, causal: bool = False, budget: int | None = None, dtype=torch.float32
) -> Problem:
    batch, heads, q_len, k_len = sizes
    q, k = torch.empty(batch, heads, q_len, D, dtype=dtype), torch.empty(batch, heads, k_len, D, dtype=dtype)
    return Problem(q, k, k, keep, None, causal, 1.0, dtype, budget)


def blocks_of(of: Problem) -> list[Block]:
    return [block for group in groups(of) for block in group.blocks()]


def shape(block: Block) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in (block.entries, block.heads, block.rows, block.keys))


@pytest.mark.parametrize("rows_at_least", [1, 3, 128])
@pytest.mark.parametrize("fit", [1, 2, 3, 4, 6, 14, 15, 29, 30, 1000])
def test_blocks_cover_everything_once_within_their_size(fit, rows_at_least, monkeypatch):
    monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": fit * K * 4})
    monkeypatch.setattr(choose, "BLOCK_ROWS", rows_at_least)
    times = torch.zeros(B, H, Q, K)
    for block in blocks_of(problem(B, H, Q, K)):
        times[block.entries, block.heads, block.rows, block.keys] += 1
        entries, heads, rows, keys = shape(block)
        assert keys == K
        assert entries * heads * rows <= fit
    assert (times == 1).all()


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("budget", [1, 40_000, 10**12])
def test_a_budget_holds_the_blocks_of_the_backward_pass(budget, dtype, bytes_each):
    for sizes in ((1, 1, 500, 600), (2, 8, 130, 300), (64, 2, 10, 10)):
        row = sizes[3] * bytes_each
        largest = max(
            torch.Size(shape(block)).numel() for block in blocks_of(problem(*sizes, budget=budget, dtype=dtype))
        )
        assert largest * bytes_each <= max(row, budget // BLOCKS_IN_BUDGET)
        assert largest * bytes_each <= max(row, choose.BLOCK_BYTES["cpu"])
        if budget == 10**12:
            assert largest == torch.Size(sizes).numel()  # all in one


def test_of_long_sequences_a_block_has_rows_enough_for_a_fast_product():
    for k_len, heads in itertools.product((1 << 14, 1 << 16), (1, 8)):
        rows = {shape(block)[2] for block in blocks_of(problem(1, heads, 1000, k_len))}
        assert max(rows) >= min(choose.BLOCK_ROWS, choose.BLOCK_BYTES["cpu"] // (4 * k_len))


def test_padding_around_all_that_is_seen_is_left_out():
    keep = torch.zeros(3, 1, 1, K, dtype=torch.bool)
    keep[0, ..., [2, 4]] = True
    keep[1, ..., 6] = True

    def keys(mask: Tensor, budget: int) -> list[tuple[int, int]]:
        return [
            (block.keys.start, block.keys.stop) for block in blocks_of(problem(3, H, Q, K, keep=mask, budget=budget))
        ]

    assert keys(keep, 10**9) == [(2, 7)]  # of all entries together
    each = keys(keep, 1)  # an entry, head and row at a time
    assert each == [(2, 5)] * H * Q + [(6, 7)] * H * Q + [(0, 1)] * H * Q  # of nothing, still a key
    assert keys(keep.expand(3, H, 1, K), 10**9) == [(0, 7)]  # not padding


def test_causal_blocks_end_with_what_their_last_query_sees(monkeypatch):
    monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": 2 * K * 4})
    monkeypatch.setattr(choose, "BLOCK_ROWS", 2)
    found = [(block.rows.stop, block.keys.stop, block.offset) for block in blocks_of(problem(1, 1, Q, K, causal=True))]
    assert found == [(5, 7, 2), (4, 6, 2), (2, 4, 2)]  # the widest first
    keep = torch.arange(K).view(1, 1, 1, K) >= 5  # the first queries see nothing
    found = [(block.keys.start, block.keys.stop) for block in blocks_of(problem(1, 1, Q, K, causal=True, keep=keep))]
    assert found == [(5, 7), (5, 6), (5, 6)]


@pytest.mark.parametrize("fit", [1, 15, 1000])
@pytest.mark.parametrize("masked", ["not", "causal", "padded"])
def test_largest_scores_are_those_of_keys_that_a_query_may_look_at(masked, fit, monkeypatch):
    monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": fit * K * 4})
    heads, kept = 6, 3
    q, k = torch.randn(B, heads, Q, D), torch.randn(B, kept, K, D)
    keep = torch.ones(B, 1, Q, K, dtype=torch.bool)
    given = keep[:, :, :1].clone()
    given[0, :, :, 4:] = False
    if masked == "causal":
        keep = keep.tril(K - Q)
    if masked == "padded":
        keep = keep & given
    of = Problem(q, k, k, given if masked == "padded" else None, None, masked == "causal", 0.3, torch.float32)
    scores = 0.3 * q @ k.repeat_interleave(heads // kept, 1).mT
    expected = scores.masked_fill(~keep, -math.inf).amax((0, 2, 3))
    torch.testing.assert_close(largest_scores(of), expected)
    assert not largest_scores(Problem(q.requires_grad_(), k, k, None, None, False, 0.3, torch.float32)).requires_grad


def test_largest_score_of_nothing_is_minus_infinity():
    q = torch.zeros(B, H, 0, D)
    assert largest_scores(Problem(q, q, q, None, None, False, 1.0, torch.float32)).tolist() == [-math.inf] * H
