import random
from collections.abc import Callable
from functools import partial

import pytest
import torch

from glassformer.data.corpus import Corpus
from glassformer.data.encode import PairCounts
from glassformer.errors import DataError
from glassformer.text.tokenizer import EOS, SymbolTokenizer, train_tokenizer

LETTERS = SymbolTokenizer(list("abcdefg"))
DIGITS = SymbolTokenizer(list("0123456789"))


@pytest.fixture
def prepare(prepare_corpus) -> Callable[..., tuple[Corpus, PairCounts]]:
    return partial(prepare_corpus, source=LETTERS, target=DIGITS)


def test_token_arrays_read_back_as_the_ids_of_each_side_ended_by_eos(prepare, tmp_path):
    pairs = [("a b c", "1 2"), ("g", "0"), ("b z", "7 7 x")]
    corpus, _ = prepare(pairs, tmp_path)
    assert len(corpus) == len(corpus.source) == len(corpus.target) == 3
    for i, (source, target) in enumerate(pairs):
        assert corpus.source[i].tolist() == [*LETTERS.encode([source])[0], EOS]
        assert corpus.target[i].tolist() == [*DIGITS.encode([target])[0], EOS]
    assert corpus.source.lengths.tolist() == [4, 2, 3]
    assert corpus.target.lengths.tolist() == [3, 2, 4]


def test_a_corpus_reads_back_from_its_folder_with_a_subword_tokenizer(prepare_corpus, tmp_path):
    lines = ["the cat sat on the mat", "早上好，世界！", "مرحبا بالعالم"]
    tokenizer = train_tokenizer(lines, kind="unigram", vocab_size=None, seed=1)
    folder = tmp_path / "not" / "there" / "yet"
    prepare_corpus(zip(lines, reversed(lines), strict=True), folder, tokenizer, tokenizer)
    corpus = Corpus(folder)
    expected = [[*ids, EOS] for ids in tokenizer.encode(lines)]
    assert [corpus.source[i].tolist() for i in range(3)] == expected
    assert [corpus.target[i].tolist() for i in range(3)] == expected[::-1]


def test_every_pair_left_out_is_counted_under_its_reason(prepare, tmp_path):
    pairs = [
        ("a b", "1 2"),  # kept
        ("", "1"),  # empty
        ("a", "   "),  # empty
        ("", ""),  # empty, once
        ("a a a a", "1 1"),  # kept: five tokens with </s>
        ("a a a a a", "1 1 1"),  # too long: six
        ("a", "1 1 1 1 1 1 1"),  # too long, and so not looked at for its ratio
        ("a a a", "1"),  # ratio 3
        ("a", "1 1 1"),  # ratio 3, the other way round
        ("a", "1 1"),  # kept: ratio 2 is not more than 2
    ]
    corpus, counts = prepare(pairs, tmp_path, max_tokens=5, max_ratio=2.0)
    assert counts == PairCounts(
        read=10, kept=3, empty=3, too_long=2, bad_ratio=2, source_tokens=3 + 5 + 2, target_tokens=3 + 3 + 3
    )
    assert corpus.source.lengths.tolist() == [3, 5, 2]
    assert corpus.target.lengths.tolist() == [3, 3, 3]


def test_counts_read_as_one_line():
    counts = PairCounts(
        read=12_345, kept=11_000, empty=1_000, too_long=340, bad_ratio=5, source_tokens=987_654, target_tokens=32
    )
    assert str(counts) == (
        "11,000 of 12,345 pairs, left out 1,000 empty, 340 too long, 5 length ratio; "
        "987,654 source and 32 target tokens"
    )


def test_counts_name_only_reasons_that_occurred():
    assert str(PairCounts(read=2, kept=2, source_tokens=5, target_tokens=7)) == (
        "2 of 2 pairs; 5 source and 7 target tokens"
    )
    assert "left out 1 too long;" in str(PairCounts(read=2, kept=1, too_long=1))


def test_counts_as_json_are_their_fields():
    assert PairCounts(read=3, kept=2, empty=1, source_tokens=5, target_tokens=7).to_json() == {
        "read": 3,
        "kept": 2,
        "empty": 1,
        "too_long": 0,
        "bad_ratio": 0,
        "source_tokens": 5,
        "target_tokens": 7,
        "source_unknown": 0,
        "target_unknown": 0,
    }


@pytest.mark.parametrize(
    ("pairs", "counts"),
    [
        ([], "0 of 0 pairs"),
        ([("", "1"), ("a a a a a", "1"), ("a a", "1")], "0 of 3 pairs, left out 1 empty, 1 too long, 1 length ratio"),
    ],
    ids=["no pairs", "all left out"],
)
def test_no_pair_left_is_an_error_that_says_why(prepare, tmp_path, pairs, counts):
    with pytest.raises(DataError, match=f"no pair is left: {counts}"):
        prepare(pairs, tmp_path, max_tokens=5, max_ratio=1.5)


def test_more_pairs_than_are_tokenised_at_once_keep_their_order(prepare, tmp_path):
    draw = random.Random(3)
    pairs = [
        (" ".join(draw.choices("abcdefg", k=draw.randint(1, 5))), " ".join(draw.choices("0123456789", k=3)))
        for _ in range(10_000)
    ]
    corpus, counts = prepare(iter(pairs), tmp_path)
    assert (counts.read, counts.kept, len(corpus)) == (10_000,) * 3
    sources = torch.cat([torch.tensor([*ids, EOS]) for ids in LETTERS.encode([pair[0] for pair in pairs])])
    assert torch.equal(corpus.source.ids.long(), sources)
    for i in (0, 999, 1_000, 9_999):
        assert DIGITS.decode([corpus.target[i].tolist()]) == [pairs[i][1]]


def test_preparing_again_replaces_what_was_there(prepare, tmp_path):
    earlier, _ = prepare([("a b c d", "1 2 3 4")] * 50, tmp_path)
    (tmp_path / "link").hardlink_to(tmp_path / "source.ids")
    ids = (tmp_path / "link").read_bytes()
    prepare([("g", "9")], tmp_path)
    assert earlier.source[49].tolist() == [2, 3, 4, 5, EOS], "what is mapped stays"
    assert (tmp_path / "link").read_bytes() == ids, "so does what is linked"
    corpus = Corpus(tmp_path)
    assert [corpus.source[i].tolist() for i in range(len(corpus))] == [[*LETTERS.encode(["g"])[0], EOS]]


def test_changing_a_tensor_does_not_change_the_file(prepare, tmp_path):
    corpus, _ = prepare([("a b", "1 2")], tmp_path)
    before = corpus.source[0].tolist()
    corpus.source[0].fill_(6)
    assert Corpus(tmp_path).source[0].tolist() == before
