import random

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.generation.config import SearchConfig
from glassformer.generation.constraints import Constraints
from glassformer.text.tokenizer import EOS

SOURCES, W, V, FILLED = 5, 3, 7, 11  # the classes from V on are nobody's


def may_follow(past: list[int], token: int, least: int, n: int, prefix: list[int]) -> bool:
    """The rules for one token after one hypothesis, one by one."""
    if len(past) < len(prefix):
        return token == prefix[len(past)]
    if token == EOS and len(past) < least:
        return False
    if n:
        seen = {tuple(past[i : i + n]) for i in range(len(past) - n + 1)}
        if len(past) >= n - 1 and tuple([*past, token][len(past) + 1 - n :]) in seen:
            return False
    return True


def scores(rows: int) -> Tensor:
    """Log-probabilities of V classes, those that fill up -inf."""
    found = torch.randn(rows, FILLED).log_softmax(-1)
    found[:, V:] = -torch.inf
    return found


def applied(config: SearchConfig, prefixes: list[list[int]] | None, pasts: list[list[list[int]]], open_: list[int]):
    """What is left of random log-probabilities, and what they were."""
    before = scores(len(open_) * W)
    after = before.clone()
    constraints = Constraints(config, prefixes, W)
    constraints.apply(after, torch.tensor(pasts, dtype=torch.long).view(len(open_), W, -1), open_)
    return after.view(len(open_), W, FILLED), before.view(len(open_), W, FILLED)


@pytest.mark.parametrize("least", [0, 1, 4])
@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("forced", [False, True])
def test_what_is_forbidden_is_what_the_rules_forbid_one_by_one(least, n, forced):
    draw = random.Random(least + 10 * n)
    forbidden = 0
    for length in range(9):
        # Sources 1 and 3 have left; two tokens make repeats likely.
        prefixes = [[draw.choice((2, 3)) for _ in range(b * 2)] for b in range(SOURCES)] if forced else None
        open_ = [0, 2, 4]
        pasts = [[[draw.choice((2, 3)) for _ in range(length)] for _ in range(W)] for _ in open_]
        after, before = applied(SearchConfig(min_length=least, no_repeat_ngram=n), prefixes, pasts, open_)
        for place, b in enumerate(open_):
            for w in range(W):
                prefix = prefixes[b] if prefixes else []
                allowed = [may_follow(pasts[place][w], token, least, n, prefix) for token in range(V)]
                expected = before[place, w].masked_fill(~torch.tensor(allowed + [True] * (FILLED - V)), -torch.inf)
                assert_close(after[place, w], expected, rtol=0, atol=0)
                forbidden += allowed.count(False)
    assert bool(forbidden) == bool(least or n or forced)


def test_where_the_rules_leave_nothing_the_target_ends():
    config = SearchConfig(min_length=9, no_repeat_ngram=1)
    pasts = [[[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 5], [6, 5, 4, 3, 2, 1]]]
    after, before = applied(config, None, pasts, [0])
    finite = [[token for token in range(FILLED) if row[token] > -torch.inf] for row in after[0].tolist()]
    assert finite == [[EOS], [6], [EOS]]
    assert_close(after[0, [0, 2], EOS], before[0, [0, 2], EOS], rtol=0, atol=0)
    after, _ = applied(config, [[1] * 7], pasts, [0])
    assert (after.argmax(-1) == 1).all(), "but a prefix has the last word"


def test_what_is_impossible_is_not_forced():
    """A hypothesis that nothing may follow isn't revived by its prefix."""
    before = torch.full((W, FILLED), -torch.inf)
    Constraints(SearchConfig(), [[2, 3]], W).apply(before, torch.full((1, W, 1), 2), [0])
    assert (before == -torch.inf).all()


@pytest.mark.parametrize(
    ("config", "prefixes", "needs_all", "forbids_end"),
    [
        (SearchConfig(), None, [], []),
        (SearchConfig(), [[], []], [], []),
        (SearchConfig(), [[2], [3, 2, 4]], [0, 1, 2], []),
        (SearchConfig(min_length=2), None, [], [0, 1]),
        (SearchConfig(no_repeat_ngram=2), None, [0, 1, 2, 3, 4], []),
        (SearchConfig(min_length=3), [[2]], [0], [0, 1, 2]),
    ],
)
def test_where_the_length_alone_or_nothing_at_all_decides_is_known(config, prefixes, needs_all, forbids_end):
    constraints = Constraints(config, prefixes, W)
    assert [length for length in range(5) if constraints.needs_all(length)] == needs_all
    assert [length for length in range(5) if constraints.forbids_end(length)] == forbids_end
