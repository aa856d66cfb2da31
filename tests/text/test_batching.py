import random

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


def test_a_plan_made_in_parts_is_the_same(monkeypatch):
    pairs = corpus_lengths(500)
    monkeypatch.setattr(batching, "CUT_AT_ONCE", 7)
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
