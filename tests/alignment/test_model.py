"""Alignments against probabilities computed by hand, and on pairs whose alignment is known."""

import random
from collections.abc import Iterable
from itertools import product

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from glassformer.alignment import hmm, learning, model
from glassformer.alignment.jumps import LONGEST_JUMP
from glassformer.alignment.model import AlignmentModel
from glassformer.errors import DataError
from glassformer.text.tokenizer import SymbolTokenizer

GERMAN = SymbolTokenizer(["das", "Haus", "Buch", "ein"])
ENGLISH = SymbolTokenizer(["the", "house", "book", "a"])
BOOKS = [("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")]
LETTERS = [chr(ord("a") + n) for n in range(23)]
SMALL, BIG = SymbolTokenizer(LETTERS), SymbolTokenizer([letter.upper() for letter in LETTERS])


@pytest.fixture
def train(prepare_corpus, tmp_path):
    def train(pairs: Iterable[tuple[str, str]], source=SMALL, target=BIG) -> AlignmentModel:
        corpus, _ = prepare_corpus(pairs, tmp_path / "corpus", source, target)
        return AlignmentModel.of_corpus(corpus, source.vocab_size, target.vocab_size)

    return train


def aligned(aligner: AlignmentModel, pairs: Iterable[tuple[str, str]], source=SMALL, target=BIG) -> torch.Tensor:
    """Of the pairs as one batch, filled up with `</s>`."""
    sides = (
        [torch.tensor([*ids, 0]) for ids in tokenizer.encode(lines)]
        for tokenizer, lines in zip((source, target), zip(*pairs, strict=True), strict=True)
    )
    return aligner.align(*(pad_sequence(side, batch_first=True) for side in sides))


def test_a_pair_with_an_empty_side_has_no_links_and_changes_no_other(train):
    aligner = train(shuffled(40, seed=1)[0])
    alone = aligned(aligner, [("a b c", "A B C")])
    found = aligned(aligner, [("a b c", "A B C"), ("", "A"), ("a", "")])
    assert_close(found[:1], alone)
    assert not found[1:].any()


def shuffled(count: int, seed: int, longest: int = 11) -> tuple[list[tuple[str, str]], list[list[int]]]:
    """Letters and the same in capitals, the order changed a little; and where each capital's letter stands."""
    draw, pairs, orders = random.Random(seed), [], []
    for _ in range(count):
        letters = draw.sample(LETTERS, draw.randint(2, longest))
        order = sorted(range(len(letters)), key=lambda n: n + draw.uniform(0, 3))
        pairs.append((" ".join(letters), " ".join(letters[n].upper() for n in order)))
        orders.append(order)
    return pairs, orders


def test_two_rounds_of_model_1_give_the_textbooks_probabilities(train, monkeypatch):
    """Koehn 2010, figure 4.5: p(the|das) = 7/11, p(the|Haus) = 3/7, p(house|das) = 2/11, p(house|Haus) = 4/7."""
    for name, value in (("PRIOR", 0.0), ("INDEPENDENT", 2), ("CHAINED", 0), ("FERTILE", 0)):
        monkeypatch.setattr(learning, name, value)
    for name in ("TENSION", "NULL", "LEAST"):  # IBM model 1, no null word
        monkeypatch.setattr(hmm, name, 0.0)
    source, target = torch.tensor(GERMAN.encode(["das Haus"])), torch.tensor(ENGLISH.encode(["the house"]))
    found = train(BOOKS, GERMAN, ENGLISH).forward.emissions(source, target)
    assert_close(found[0], torch.tensor([[7 / 11, 3 / 7], [2 / 11, 4 / 7]]), atol=1e-6, rtol=0)


def test_it_finds_the_alignment_of_shuffled_words(train):
    pairs, orders = shuffled(200, seed=1)
    found = aligned(train(pairs), pairs)
    right = [w.argmax(1)[: len(order)] == torch.tensor(order) for w, order in zip(found, orders, strict=True)]
    sure = [w.max(1).values[: len(order)] for w, order in zip(found, orders, strict=True)]
    assert torch.cat(right).float().mean() > 0.97
    assert torch.cat(sure).mean() > 0.8


def test_each_pair_of_a_batch_is_aligned_as_alone(train, tmp_path):
    pairs, _ = shuffled(50, seed=1)
    aligner = train(pairs)
    batch = aligned(aligner, pairs[:7])
    aligner.save(path := tmp_path / "alignment.safetensors")
    assert torch.equal(aligned(AlignmentModel.load(path), pairs[:7]), batch), "saved it is the same"
    for weights, pair in zip(batch, pairs, strict=False):
        (alone,) = aligned(aligner, [pair])
        target_len, source_len = alone.shape
        assert_close(weights[:target_len, :source_len], alone)
        assert weights[target_len - 1 :].sum() == weights[:, source_len - 1 :].sum() == 0  # for </s> and past it
        assert (weights.sum(1) <= 1 + 1e-6).all()


def test_places_near_the_diagonal_are_likelier(train):
    aligner = train(shuffled(50, seed=1)[0])
    (weights,) = aligned(aligner, [("a b a b a", "A B A B A")])
    assert weights[0, :5].argmax() == 0
    assert weights[2, :5].argmax() == 2
    assert weights[4, :5].argmax() == 4


def test_a_token_that_was_never_seen_beside_any_of_these_stands_for_none(train):
    aligner = train([("a b", "A B"), ("c d", "C D")])
    (weights,) = aligned(aligner, [("a b", "A D x")])  # x is unknown
    assert weights[0].sum() > 0.5
    assert weights[1:].sum() == 0


def test_of_many_pairs_some_are_learned_from_evenly_spread(train, monkeypatch):
    pairs = [("a b", "A B"), ("c d", "C D")] * 10
    monkeypatch.setattr(model, "CELLS", 2 * 2 * 10)
    aligner = train(pairs)  # every second one
    ab, cd = aligned(aligner, pairs[:2])
    assert ab.sum() > 1
    assert cd.sum() == 0


def test_pairs_that_are_too_long_are_refused(train, monkeypatch):
    monkeypatch.setattr(model, "CELLS", 5)
    message = (
        r"^2 pairs of 6 cells \(source times target tokens\) are too long to learn an alignment from, which takes at "
        "most 5: train without guide, or lower max_tokens$"
    )
    with pytest.raises(DataError, match=message):
        train([("a b", "A B C"), ("c d", "C D E")])


def test_a_long_pair_does_not_crowd_out_the_short_ones(train, monkeypatch):
    long = " ".join(LETTERS)
    pairs = [(long, long.upper()), *[("a b", "A B"), ("c d", "C D")] * 5]
    monkeypatch.setattr(model, "CELLS", 2 * 2 * 10)
    found = aligned(train(pairs), pairs[1:3])
    assert (found.sum((1, 2)) > 1).all()


@pytest.mark.parametrize("longest", [7, 13])
def test_no_more_cells_are_learned_from_than_there_may_be(train, monkeypatch, longest):
    learned, learn = [], model.learn

    def counted(source, target, *rest):
        learned.append(sum(len(x) * len(y) for x, y in zip(source, target, strict=True)))
        return learn(source, target, *rest)

    monkeypatch.setattr(model, "CELLS", 200)
    monkeypatch.setattr(model, "learn", counted)
    train((" ".join(["a"] * length), " ".join(["A"] * length)) for length in [longest, 2, 2, 2, 2] * 10)
    assert 100 < learned[0] <= 200


def test_pairs_without_cells_or_with_too_many_are_never_chosen(monkeypatch):
    monkeypatch.setattr(learning, "LONGEST", 20)
    assert learning.choose_pairs(torch.tensor([0, 4, 21, 20, 4]), 100) == [1, 3, 4]
    assert learning.choose_pairs(torch.tensor([9, 4, 4, 4, 4]), 8) == [1, 3]
    assert learning.choose_pairs(torch.tensor([0, 21]), 100) == []


def test_a_chain_is_the_sum_over_all_ways(train):
    """Posteriors and jumps of the forward and backward passes against all alignments of a pair, one by one."""
    model = train([("a b c", "A B"), ("b c", "B C"), ("c a", "A C")], SMALL, BIG).forward
    model.jumps = torch.rand(len(model.jumps)) + 0.1
    source, target = torch.tensor(SMALL.encode(["a b c"])), torch.tensor(BIG.encode(["A C B"]))
    emissions = model.emissions(source, target) + 0.05
    lengths = torch.tensor([3])
    found, jumps = model.chain(emissions, target, lengths, lengths)
    shares, total = torch.zeros(3, 3), 0.0
    middle = LONGEST_JUMP
    for way in product([0, 1, 2, None], repeat=3):
        weight = 0.0
        for first in range(3) if way[0] is None else [way[0]]:  # a token of nothing stays at a place, also the first
            rooms = [model.jumps[middle - place : middle - place + 3].sum() for place in range(3)]
            begin = model.jumps[middle + 1 + first] / model.jumps[middle + 1 : middle + 4].sum()
            chance, place = begin, first
            for t, to in enumerate(way):
                if to is None:
                    chance = chance * hmm.NULL * model.none[target[0, t]]
                    continue
                if t:
                    chance = chance * model.jumps[middle + to - place] / rooms[place]
                chance, place = chance * (1 - hmm.NULL) * emissions[0, t, to], to
            weight += float(chance)
        total += weight
        for t, to in enumerate(way):
            if to is not None:
                shares[t, to] += weight
    assert_close(found[0], shares / total, atol=1e-5, rtol=1e-4)
    assert float(jumps.sum()) == pytest.approx(float(found.sum()), abs=1e-4)  # each link is a jump
