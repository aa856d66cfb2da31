"""The processes' parts of a batch are the batch."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from glassformer.data.corpus import Corpus, write_corpus
from glassformer.data.encode import PairEncoder
from glassformer.text.loading import load_tokenizer
from glassformer.text.resampling import Resampler
from glassformer.text.tokenizer import EOS, UNK, train_tokenizer
from glassformer.training.distributed import ALONE, Processes
from glassformer.training.loader import BatchLoader
from glassformer.transformer.config import ModelConfig

SOURCE_VOCAB, TARGET_VOCAB = 17, 19
SOURCE_LENGTHS, TARGET_LENGTHS = (2, 3, 5, 7, 11, 4), (3, 2, 13, 2, 5, 4)
CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Pair i has the ids i + 1, and 0 at its end."""
    for name, lengths in (("source", SOURCE_LENGTHS), ("target", TARGET_LENGTHS)):
        ids = [i for number, length in enumerate(lengths, start=1) for i in [*[number] * (length - 1), 0]]
        (tmp_path / f"{name}.ids").write_bytes(torch.tensor(ids, dtype=torch.int32).numpy().tobytes())
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        (tmp_path / f"{name}.offsets").write_bytes(offsets.numpy().tobytes())
    return Corpus(tmp_path)


def loader(corpus: Corpus, processes: Processes = ALONE) -> BatchLoader:
    model = ModelConfig.preset(
        "tiny", source_vocab_size=SOURCE_VOCAB, target_vocab_size=TARGET_VOCAB, shared_vocab=False
    )
    return BatchLoader(corpus, model, CPU, processes)


def test_a_batch_holds_its_pairs_in_order(corpus):
    batch = loader(corpus).batch([4, 0])
    assert batch.target_out.tolist() == [5, 5, 5, 5, 0, 1, 1, 0]
    assert batch.target_in[0, :8].tolist() == [18, 5, 5, 5, 5, 18, 1, 1]
    assert batch.source[0, :13].tolist() == [5] * 10 + [0, 1, 0]
    assert (batch.source[0, 13:] == SOURCE_VOCAB - 1).all()
    assert (batch.target_in[0, 8:] == TARGET_VOCAB - 1).all()
    assert batch.counted


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_processes_share_it_and_each_pair_is_in_one_part(corpus, size):
    indices = [3, 0, 1, 5, 4]
    parts = [loader(corpus, Processes(rank, size)).batch(indices) for rank in range(size)]
    assert all(part.counted for part in parts)
    found = sorted(part.target_out.tolist().count(i + 1) for part in parts for i in indices if i + 1 in part.target_out)
    assert found == sorted(TARGET_LENGTHS[i] - 1 for i in indices)
    whole = sum(TARGET_LENGTHS[i] for i in indices)
    assert sum(part.tokens for part in parts) == whole
    assert loader(corpus, Processes(1, size)).count_tokens([indices], parts[1:2]) == whole


def test_who_has_no_pair_gets_one_that_is_not_counted(corpus):
    parts = [loader(corpus, Processes(rank, 3)).batch([4, 2]) for rank in range(3)]
    assert [part.counted for part in parts] == [True, True, False]
    assert parts[2].target_out.tolist() == parts[0].target_out.tolist()


def test_groups_come_with_their_batches_and_the_tokens_of_all_of_them(corpus):
    groups = [[[0, 1], [2]], [[5, 4], [3]], [[1]]]
    loaded = loader(corpus).load((group, None) for group in groups)
    for (group, batches), expected in zip(loaded, groups, strict=True):
        assert group == expected
        alone = [loader(corpus).batch(indices).target_out.tolist() for indices in group]
        assert [batch.target_out.tolist() for batch in batches] == alone
        assert loader(corpus).count_tokens(group, batches) == sum(TARGET_LENGTHS[i] for part in group for i in part)


def test_its_shape_is_that_of_its_largest_batch(corpus):
    found = loader(corpus, Processes(1, 2)).describe([[0, 1, 3], [4, 2], [5]])
    assert found == "2 pairs with 16 source and 18 target tokens, the longest 13"


# Subwords drawn anew

LINES = ["the cat sat on the mat", "a dog and another cat", "the dog sat on the cat", "no cat, no dog", "on and on"]


def resampling(folder: Path, *kinds: str) -> BatchLoader:
    """The batches of pairs whose sides are the same lines, with tokenizers of these kinds."""
    tokenizers = [train_tokenizer(LINES * 20, kind=kind, vocab_size=None, seed=1) for kind in kinds]
    paths = [tokenizer.save(folder / name) for name, tokenizer in zip(("source", "target"), tokenizers, strict=True)]
    write_corpus([PairEncoder(*map(str, paths)).encode(LINES, LINES)], folder)
    source, target = (tokenizer.vocab_size for tokenizer in tokenizers)
    model = ModelConfig.preset("tiny", source_vocab_size=source, target_vocab_size=target, shared_vocab=False)
    return BatchLoader(Corpus(folder), model, CPU, ALONE, Resampler(tuple(tokenizers), share=1.0))


@pytest.fixture(params=["bpe", "unigram"])
def resampled(request, tmp_path) -> BatchLoader:
    """Sources are text split into subwords, targets are symbols."""
    return resampling(tmp_path, request.param, "symbols")


def test_resampled_tokens_are_counted_as_they_are(tmp_path):
    loader = resampling(tmp_path, "bpe", "bpe")
    groups, counts = [[list(range(len(LINES)))]], set[int]()
    for seed in range(5):
        ((group, batches),) = loader.load((group, [seed]) for group in groups)
        assert loader.count_tokens(group, batches) == batches[0].tokens
        counts.add(batches[0].tokens)
    assert counts - {int(loader.corpus.target.lengths[:].sum())}


def sources(loader: BatchLoader, seed: int) -> list[int]:
    batch = loader.batch(range(len(LINES)), seed)
    return batch.source[0, : batch.sources.tokens].tolist()


def test_resampled_subwords_are_other_ones_of_the_same_text(resampled, tmp_path):
    plain = torch.cat([resampled.corpus.source[i] for i in range(len(LINES))]).tolist()
    # What is drawn differs from process to process, and may now and then be the same or the plain splitting.
    drawn = [sources(resampled, seed) for seed in range(20)]
    assert len({tuple(ids) for ids in drawn} - {tuple(plain)}) > 5
    tokenizer = load_tokenizer(tmp_path / "source.spm")
    for ids in drawn:
        ends = [-1, *(n for n, i in enumerate(ids) if i == EOS)]
        assert tokenizer.decode([ids[a + 1 : b] for a, b in pairwise(ends)]) == LINES
    assert drawn == [sources(resampled, seed) for seed in range(20)]


def test_symbols_and_what_holds_an_unknown_stay_as_they_are(resampled):
    expected = torch.cat([resampled.corpus.target[i] for i in range(len(LINES))]).tolist()
    assert resampled.batch(range(len(LINES)), 7).target_out.tolist() == expected
    resampled.corpus.source.ids[0] = UNK
    first = len(resampled.corpus.source[0])
    assert sources(resampled, 7)[:first] == resampled.corpus.source[0].tolist()


def test_a_share_of_the_sequences_is_resampled(resampled, tmp_path):
    tokenizer = load_tokenizer(tmp_path / "source.spm")
    longest = torch.tensor([*tokenizer.encode([" ".join(LINES)])[0], EOS])
    for share in (0.0, 0.25, 1.0):
        found = Resampler((tokenizer, tokenizer), share).resample(0, [longest] * 400, seed=3)
        assert sum(len(ids) != len(longest) or (ids != longest).any().item() for ids in found) == pytest.approx(
            400 * share, abs=40
        )


def test_each_group_and_each_epoch_draws_its_own(resampled):
    everything = list(range(len(LINES)))
    first, again, *later = (
        [
            batch.source
            for _, batches in resampled.load([([everything, everything[1:]], [seed, seed + 1])])
            for batch in batches
        ]
        for seed in (5, 5, *range(6, 16))
    )
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not all(torch.equal(first[0], other[0]) for other in later)
