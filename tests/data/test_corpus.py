import random
from collections.abc import Callable
from functools import partial

import pytest

from glassformer.data.corpus import Corpus
from glassformer.data.encode import PairCounts
from glassformer.errors import DataError
from glassformer.text.tokenizer import EOS, SymbolTokenizer

LETTERS = SymbolTokenizer(list("abcdefg"))
DIGITS = SymbolTokenizer(list("0123456789"))


@pytest.fixture
def prepare(prepare_corpus) -> Callable[..., tuple[Corpus, PairCounts]]:
    return partial(prepare_corpus, source=LETTERS, target=DIGITS)


@pytest.mark.parametrize(
    ("pairs", "counts"),
    [
        ([], "0 of 0 pairs"),
        (
            [("", "1"), ("a a a a a", "1"), ("a a", "1")],
            "0 of 3 pairs, left out 1 empty, 1 too long, 1 length ratio; "
            "0 source and 0 target tokens: raise max_tokens, or split the long lines",
        ),
    ],
    ids=["no pairs", "all left out"],
)
def test_no_pair_left_is_an_error_that_says_why(prepare, tmp_path, pairs, counts):
    with pytest.raises(DataError, match=f"no pair is left: {counts}"):
        prepare(pairs, tmp_path, max_tokens=5, max_ratio=1.5)


def test_many_blocks_keep_their_order(prepare, tmp_path):
    draw = random.Random(3)
    pairs = [
        (" ".join(draw.choices("abcdefg", k=draw.randint(1, 5))), " ".join(draw.choices("0123456789", k=3)))
        for _ in range(1_000)
    ]
    corpus, counts = prepare(iter(pairs), tmp_path / "not" / "there" / "yet", at_once=30)
    assert (counts.read, counts.kept, len(corpus)) == (1_000,) * 3
    for side, tokenizer in ((0, LETTERS), (1, DIGITS)):
        expected = [[*ids, EOS] for ids in tokenizer.encode([pair[side] for pair in pairs])]
        sequences = (corpus.source, corpus.target)[side]
        assert [ids.tolist() for ids in sequences] == expected
        lengths = [len(ids) for ids in expected]
        assert len(sequences.lengths) == len(lengths)
        assert sequences.lengths[:].tolist() == lengths
        assert sequences.lengths[990:2_000].tolist() == lengths[990:]
        assert sequences.lengths[[7, 3, 999]].tolist() == [lengths[7], lengths[3], lengths[999]]


def test_preparing_again_replaces_what_was_there(prepare, tmp_path):
    earlier, _ = prepare([("a b c d", "1 2 3 4")] * 50, tmp_path)
    (tmp_path / "link").hardlink_to(tmp_path / "source.ids")
    ids = (tmp_path / "link").read_bytes()
    prepare([("g", "9")], tmp_path)
    assert earlier.source[49].tolist() == [2, 3, 4, 5, EOS], "what is mapped stays"
    assert (tmp_path / "link").read_bytes() == ids, "so does what is linked"
    corpus = Corpus(tmp_path)
    assert [ids.tolist() for ids in corpus.source] == [[*LETTERS.encode(["g"])[0], EOS]]


def test_changing_a_tensor_does_not_change_the_file(prepare, tmp_path):
    corpus, _ = prepare([("a b", "1 2")], tmp_path)
    before = corpus.source[0].tolist()
    corpus.source[0].fill_(6)
    assert Corpus(tmp_path).source[0].tolist() == before
