import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.attention.packing import row_length
from glassformer.data.corpus import Corpus
from glassformer.text import batching
from glassformer.text.batching import Batch, pad_source, plan_batches
from glassformer.text.tokenizer import SymbolTokenizer

SOURCE = SymbolTokenizer(list("abcde"))
TARGET = SymbolTokenizer(list("0123456789"))
PAIRS = 61


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, prepare_corpus) -> Corpus:
    """61 pairs of 1 to 11 source and 1 to 13 target symbols."""
    draw = random.Random(5)

    def line(symbols: str, most: int) -> str:
        return " ".join(draw.choices(symbols, k=draw.randint(1, most)))

    pairs = [(line("abcde", 11), line("0123456789", 13)) for _ in range(PAIRS)]
    folder = tmp_path_factory.mktemp("corpus")
    return prepare_corpus(pairs, folder, SOURCE, TARGET)[0]


def batch_of(corpus: Corpus, indices: list[int]) -> Batch:
    sides = ([side[i] for i in indices] for side in (corpus.source, corpus.target))
    return Batch.of(*sides, source_pad=SOURCE.pad, target_pad=TARGET.pad)


def filled(sequences: list[list[int]], filling: int) -> list[list[int]]:
    """The sequences one after the other, filled up to a row's length."""
    ids = [token for sequence in sequences for token in sequence]
    return [ids + [filling] * (row_length(len(ids)) - len(ids))]


some_pairs = st.lists(st.integers(0, PAIRS - 1), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(indices=some_pairs)
def test_a_batch_is_its_pairs_side_by_side(corpus, indices):
    batch = batch_of(corpus, indices)
    sources, targets = ([side[i].tolist() for i in indices] for side in (corpus.source, corpus.target))
    assert batch.source.tolist() == filled(sources, SOURCE.pad)
    assert batch.target_in.tolist() == filled([[TARGET.pad, *target[:-1]] for target in targets], TARGET.pad)
    assert batch.target_out.tolist() == [token for target in targets for token in target]
    assert batch.source.dtype == batch.target_in.dtype == batch.target_out.dtype == torch.long
    for side, packing, row in ((sources, batch.sources, batch.source), (targets, batch.targets, batch.target_in)):
        assert packing.keep.sum(-1).flatten().tolist() == list(map(len, side))
        assert packing.positions[: packing.tokens].tolist() == [place for ids in side for place in range(len(ids))]
        assert len(packing.positions) == row.shape[1]
    assert batch.tokens == len(batch.target_out)


def test_a_batch_moves_with_everything_in_it(corpus):
    batch = batch_of(corpus, [3, 5])
    moved = batch.to(torch.device("meta"))
    tensors = (moved.source, moved.target_in, moved.target_out)
    tensors += tuple(x for packing in (moved.sources, moved.targets) for x in (packing.keep, packing.positions))
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.tokens == batch.tokens


def test_sources_alone_are_padded_with_their_keep_mask():
    source, keep = pad_source([torch.tensor([2, 0]), torch.tensor([3, 4, 5, 0]), torch.tensor([0])], pad=7)
    assert source.tolist() == [[2, 0, 7, 7], [3, 4, 5, 0], [0, 7, 7, 7]]
    assert keep.shape == (3, 1, 1, 4)
    assert keep[:, 0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=50)


def plan(pairs: list[tuple[int, int]], batch_tokens: int, seed: int = 1, epoch: int = 0) -> list[list[int]]:
    source, target = torch.tensor(pairs).T.contiguous()
    return plan_batches(source, target, batch_tokens=batch_tokens, seed=seed, epoch=epoch)[:]


def plan_by_definition(pairs: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The same in lists: sorted by target, source, and at random; cut where a limit would be passed; shuffled."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = sorted(torch.randperm(len(pairs), generator=draw).tolist(), key=lambda i: pairs[i][::-1])
    batches: list[list[int]] = [[]]
    for i in order:
        held = [pairs[j] for j in [*batches[-1], i]]
        sums = [sum(pair[side] for pair in held) for side in (0, 1)]
        if batches[-1] and (max(sums) > batch_tokens or max(map(max, held)) * len(held) > 2 * batch_tokens):
            batches.append([])
        batches[-1].append(i)
    return [batches[i] for i in torch.randperm(len(batches), generator=draw).tolist()]


@settings(max_examples=100, deadline=None)
@given(pairs=lengths, batch_tokens=st.integers(1, 200), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_a_plan_is_that_of_its_definition(pairs, batch_tokens, seed, epoch):
    batches = plan(pairs, batch_tokens, seed, epoch)
    assert batches == plan_by_definition(pairs, batch_tokens, seed, epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(pairs)))


def test_a_long_pair_counts_in_the_batch_that_it_begins():
    pairs = [(200, 1), (90, 2), *[(1, 3)] * 30]
    batches = plan(pairs, batch_tokens=200)
    assert batches == plan_by_definition(pairs, 200, 1, 0)
    assert sorted(map(len, batches)) == [1, 4, 27]
    assert sorted(map(sorted, plan([(3, 3), (100, 2), (2, 100), (3, 3)], batch_tokens=6))) == [[0, 3], [1], [2]]


@pytest.mark.parametrize("longest", [40, 300, 70_000])  # one key for both lengths has 16, 32 and 64 bits
def test_a_plan_is_that_of_its_definition_whatever_the_range_of_lengths(longest):
    draw = random.Random(longest)
    pairs = [(draw.randint(1, longest), draw.randint(1, longest)) for _ in range(300)]
    assert plan(pairs, 4 * longest) == plan_by_definition(pairs, 4 * longest, 1, 0)


def test_a_plan_of_several_blocks_is_the_same(monkeypatch):
    pairs = corpus_lengths(500)
    monkeypatch.setattr(batching, "BLOCK", 7)
    assert plan(pairs, 300) == plan_by_definition(pairs, 300, 1, 0)


def test_a_plan_is_like_a_list_of_lists():
    source, target = torch.tensor(corpus_lengths(300)).T.contiguous()
    made = plan_batches(source, target, batch_tokens=200, seed=1, epoch=0)
    batches = list(made)
    assert len(made) == len(batches) > 30
    assert all(type(i) is int for batch in batches for i in batch)
    for part in (slice(None), slice(3, 7), 5, -1, slice(-3, None, 2), slice(len(made), None)):
        assert made[part] == batches[part]
    for index in (len(made), -len(made) - 1):
        with pytest.raises(IndexError):
            made[index]


def corpus_lengths(pairs: int = 5_000) -> list[tuple[int, int]]:
    """Like real text: most are short, few are long, and a target is a bit longer or shorter than its source."""
    draw = random.Random(7)
    sources = [max(2, min(100, round(draw.lognormvariate(3, 0.6)))) for _ in range(pairs)]
    return [(n, max(2, round(n * draw.uniform(0.9, 1.1)))) for n in sources]


def test_batches_are_filled_and_nearly_of_one_length():
    pairs = corpus_lengths()
    batches = plan(pairs, batch_tokens=2_000)
    for side, most in ((0, 0.10), (1, 0.03)):  # padded to the longest, less than this would be padding
        padded = sum(len(batch) * max(pairs[i][side] for i in batch) for batch in batches)
        assert 1 - sum(pair[side] for pair in pairs) / padded < most
    # The longer side of each batch is filled to within one pair.
    filled = sum(max(sum(pairs[i][side] for i in batch) for side in (0, 1)) for batch in batches)
    assert filled > 0.98 * 2_000 * (len(batches) - 1)


# More pairs than are planned at a time

MANY = 3_001
"""Pairs in 94 blocks of 32, which six windows share."""


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(batching, "BLOCK", 32)
    monkeypatch.setattr(batching, "WINDOW", 512)


def windows_of(batches: list[list[int]]) -> list[list[list[int]]]:
    """The batches of each window, which ends as soon as there are all pairs of every block that has any."""
    left = Counter(i // 32 for i in range(MANY))
    found, begun = list[list[list[int]]]([[]]), set[int]()
    for batch in batches:
        found[-1].append(batch)
        begun.update(i // 32 for i in batch)
        left.subtract(i // 32 for i in batch)
        if not any(left[block] for block in begun):
            found.append([])
    assert found.pop() == []
    return found


def test_a_window_is_planned_like_a_corpus_of_its_own(small_windows):
    pairs = corpus_lengths(MANY)
    batches = plan(pairs, 200)
    assert sorted(i for batch in batches for i in batch) == list(range(MANY))
    windows = windows_of(batches)
    assert len(windows) == 6
    for window in windows:
        held = sorted(i for batch in window for i in batch)
        assert 15 * 32 - 31 <= len(held) <= 512
        assert held[-1] - held[0] > MANY / 2, "it is a sample of the whole corpus"
        own = [pairs[i] for i in held]
        expected = [[own[i] for i in batch] for batch in plan_by_definition(own, 200, 1, 0)]
        assert sorted([pairs[i] for i in batch] for batch in window) == sorted(expected)


def test_windows_follow_from_seed_and_epoch(small_windows):
    pairs = corpus_lengths(MANY)
    first = plan(pairs, 200)
    assert plan(pairs, 200) == first
    members = {
        frozenset(i for batch in windows_of(plan(pairs, 200, *which))[0] for i in batch)
        for which in ((1, 0), (2, 0), (1, 1))
    }
    assert len(members) == 3


def test_a_batch_is_the_same_wherever_reading_begins(small_windows):
    source, target = torch.tensor(corpus_lengths(MANY)).T.contiguous()
    whole = plan_batches(source, target, batch_tokens=200, seed=1, epoch=0)
    batches = list(whole)
    assert len(whole) == len(batches)
    for first in (len(batches) - 1, len(batches) // 2, 3):
        assert plan_batches(source, target, batch_tokens=200, seed=1, epoch=0)[first:] == batches[first:]
    assert [whole[i] for i in range(-1, -len(batches) - 1, -1)] == batches[::-1]


def test_windows_take_less_than_a_hundredth_more_batches_and_padding(monkeypatch):
    pairs = corpus_lengths(3 << 14)

    def padded(batches: list[list[int]]) -> int:
        return sum(len(batch) * max(max(pairs[i]) for i in batch) for batch in batches)

    whole = plan(pairs, 500)
    monkeypatch.setattr(batching, "BLOCK", 32)
    monkeypatch.setattr(batching, "WINDOW", 1 << 14)
    parts = plan(pairs, 500)
    assert parts != whole
    assert len(parts) <= 1.01 * len(whole)
    assert padded(parts) <= 1.01 * padded(whole)


def test_a_batch_takes_the_lengths_of_its_window_only(small_windows):
    class Counted:
        """Lengths of which it is known how many were looked at."""

        def __init__(self, lengths: torch.Tensor) -> None:
            self.lengths, self.seen = lengths, list[int]()

        def __len__(self) -> int:
            return len(self.lengths)

        def __getitem__(self, index: slice) -> torch.Tensor:
            self.seen.append(len(self.lengths[index]))
            return self.lengths[index]

    sides = [Counted(side) for side in torch.tensor(corpus_lengths(MANY)).T.contiguous()]
    made = plan_batches(*sides, batch_tokens=200, seed=1, epoch=0)
    assert made[0]
    for side in sides:
        assert max(side.seen) == 32
        side.seen.clear()
    assert made[1] != made[-1]  # of the first window, which is held, and of the last
    assert [0 < sum(side.seen) <= 512 for side in sides] == [True, True]
