import random
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.text.batching import Batch, pad_source, plan_batches
from glassformer.text.corpus import Corpus
from glassformer.text.tokenizer import EOS, SymbolTokenizer

SOURCE = SymbolTokenizer(list("abcde"))
TARGET = SymbolTokenizer(list("0123456789"))
PAIRS = 61


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """61 pairs of 1 to 11 source and 1 to 13 target symbols."""
    draw = random.Random(5)

    def line(symbols: str, most: int) -> str:
        return " ".join(draw.choices(symbols, k=draw.randint(1, most)))

    pairs = [(line("abcde", 11), line("0123456789", 13)) for _ in range(PAIRS)]
    folder = tmp_path_factory.mktemp("corpus")
    return Corpus.prepare(pairs, folder, SOURCE, TARGET, max_tokens=100, max_ratio=100.0)[0]


batch_of = partial(Batch.of, source_pad=SOURCE.pad, target_pad=TARGET.pad)


def padded(rows: list[list[int]], pad: int) -> list[list[int]]:
    width = max(map(len, rows))
    return [row + [pad] * (width - len(row)) for row in rows]


@settings(max_examples=60, deadline=None)
@given(indices=st.lists(st.integers(0, PAIRS - 1), min_size=1, max_size=7))
def test_a_batch_is_its_pairs_padded_at_the_end(corpus, indices):
    batch = batch_of(corpus, indices)
    sources = [corpus.source[i].tolist() for i in indices]
    targets = [corpus.target[i].tolist() for i in indices]
    assert batch.source.tolist() == padded(sources, SOURCE.pad)
    assert batch.target_out.tolist() == padded(targets, TARGET.pad)
    assert batch.source.dtype == batch.target_in.dtype == batch.target_out.dtype == torch.long


@settings(max_examples=60, deadline=None)
@given(indices=st.lists(st.integers(0, PAIRS - 1), min_size=1, max_size=7))
def test_target_in_is_target_out_shifted_right_by_one_padding(corpus, indices):
    batch = batch_of(corpus, indices)
    assert batch.target_in.shape == batch.target_out.shape
    assert (batch.target_in[:, 0] == TARGET.pad).all()
    assert torch.equal(batch.target_in[:, 1:], batch.target_out[:, :-1])


@settings(max_examples=60, deadline=None)
@given(indices=st.lists(st.integers(0, PAIRS - 1), min_size=1, max_size=7))
def test_keep_is_true_on_every_source_token_and_tokens_counts_what_is_predicted(corpus, indices):
    batch = batch_of(corpus, indices)
    assert batch.source_keep.shape == (len(indices), 1, 1, batch.source.shape[1])
    assert batch.source_keep.sum(-1).flatten().tolist() == [len(corpus.source[i]) for i in indices]
    assert all(row[: row.count(True)] == [True] * row.count(True) for row in batch.source_keep[:, 0, 0].tolist())
    assert batch.tokens == int((batch.target_out != TARGET.pad).sum())


def test_a_batch_by_hand(tmp_path):
    corpus, _ = Corpus.prepare([("a b", "1"), ("c", "2 3 4")], tmp_path, SOURCE, TARGET, max_tokens=9, max_ratio=9.0)
    batch = batch_of(corpus, [1, 0])
    a, b, c, no = 2, 3, 4, 7  # ids of the symbols, and of padding
    assert batch.source.tolist() == [[c, EOS, no], [a, b, EOS]]
    assert batch.source_keep.tolist() == [[[[True, True, False]]], [[[True, True, True]]]]
    one, two, three, four, no = 3, 4, 5, 6, 12
    assert batch.target_in.tolist() == [[no, two, three, four], [no, one, EOS, no]]
    assert batch.target_out.tolist() == [[two, three, four, EOS], [one, EOS, no, no]]
    assert batch.tokens == 6


def test_a_batch_moves_with_everything_in_it(corpus):
    moved = batch_of(corpus, [3, 5]).to(torch.device("meta"))
    assert {moved.source.device.type, moved.source_keep.device.type} == {"meta"}
    assert {moved.target_in.device.type, moved.target_out.device.type} == {"meta"}
    assert moved.tokens == batch_of(corpus, [3, 5]).tokens


def test_sources_alone_are_padded_with_their_keep_mask():
    source, keep = pad_source([torch.tensor([2, 0]), torch.tensor([3, 4, 5, 0]), torch.tensor([0])], pad=7)
    assert source.tolist() == [[2, 0, 7, 7], [3, 4, 5, 0], [0, 7, 7, 7]]
    assert keep.shape == (3, 1, 1, 4)
    assert keep[:, 0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=50)


def plan(pairs: list[tuple[int, int]], batch_tokens: int, seed: int = 1, epoch: int = 0) -> list[list[int]]:
    source, target = torch.tensor(pairs).T.contiguous()
    return plan_batches(source, target, batch_tokens=batch_tokens, seed=seed, epoch=epoch)


@settings(max_examples=60, deadline=None)
@given(pairs=lengths, batch_tokens=st.integers(1, 200), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_every_pair_is_in_exactly_one_batch(pairs, batch_tokens, seed, epoch):
    batches = plan(pairs, batch_tokens, seed, epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(pairs)))
    assert all(batches), "no batch is empty"


@settings(max_examples=60, deadline=None)
@given(pairs=lengths, batch_tokens=st.integers(1, 200))
def test_a_padded_batch_stays_within_its_tokens_unless_it_is_one_longer_pair(pairs, batch_tokens):
    for batch in plan(pairs, batch_tokens):
        for side in (0, 1):
            padded_tokens = len(batch) * max(pairs[i][side] for i in batch)
            assert padded_tokens <= batch_tokens or len(batch) == 1


def test_a_pair_longer_than_a_batch_is_alone():
    batches = plan([(3, 3), (100, 2), (2, 100), (3, 3)], batch_tokens=6)
    assert sorted(map(sorted, batches)) == [[0, 3], [1], [2]]


def corpus_lengths(pairs: int = 5_000) -> list[tuple[int, int]]:
    """Like real text: most are short, few are long, and a target is a bit longer or shorter than its source."""
    draw = random.Random(7)
    sources = [max(2, min(100, round(draw.lognormvariate(3, 0.6)))) for _ in range(pairs)]
    return [(n, max(2, round(n * draw.uniform(0.9, 1.1)))) for n in sources]


def test_less_than_a_tenth_of_a_batch_is_padding():
    pairs = corpus_lengths()
    batches = plan(pairs, batch_tokens=2_000)
    for side, most in ((0, 0.10), (1, 0.03)):
        held = sum(len(batch) * max(pairs[i][side] for i in batch) for batch in batches)
        padding = 1 - sum(pair[side] for pair in pairs) / held
        assert padding < most


def test_batches_are_filled():
    pairs = corpus_lengths()
    tokens = sum(max(pair) for pair in pairs)
    assert len(plan(pairs, batch_tokens=2_000)) < 1.1 * tokens / 2_000


def test_the_plan_depends_on_seed_and_epoch_alone():
    pairs = corpus_lengths(500)
    plans = {(seed, epoch): plan(pairs, 300, seed, epoch) for seed in (1, 2) for epoch in (0, 1)}
    torch.rand(7)  # the global generator has no part in it
    for (seed, epoch), batches in plans.items():
        assert plan(pairs, 300, seed, epoch) == batches
    assert len({str(batches) for batches in plans.values()}) == 4


def test_another_epoch_mixes_batches_and_their_order():
    pairs = corpus_lengths(2_000)
    first, second = (plan(pairs, 300, epoch=epoch) for epoch in (0, 1))
    together = [{frozenset(batch) for batch in batches} for batches in (first, second)]
    assert len(together[0] & together[1]) < 0.5 * len(first), "other pairs together"
    lengths = [max(pairs[i][1] for i in batch) for batch in first]
    falls = sum(a > b for a, b in pairwise(lengths))
    assert 0.3 < falls / len(lengths) < 0.6, "long and short batches come mixed"
