from array import array
from pathlib import Path

import pytest

from glassformer.data.encode import EncodedPairs, PairCounts, PairEncoder
from glassformer.data.held_out import source_rank
from glassformer.errors import DataError
from glassformer.text.pairs import Pair, PairBlock, PairFiles
from glassformer.text.tokenizer import EOS, SymbolTokenizer

LETTERS, DIGITS = SymbolTokenizer(list("abcdefg")), SymbolTokenizer(list("0123456789"))
PAIRS = [("a b c", "1 2"), ("g", "0"), ("", "1"), ("b z", "7 7 x"), ("g", "9 9"), ("d e", "5")]


@pytest.fixture
def tokenizers(tmp_path) -> tuple[str, str]:
    return str(LETTERS.save(tmp_path / "source")), str(DIGITS.save(tmp_path / "target"))


def block(pairs: list[Pair]) -> list[bytes]:
    content = "".join(f"{source}\t{target}\r\n" for source, target in pairs).encode()
    return PairBlock(PairFiles(Path("pairs.tsv")), 1, len(pairs), 1.0, content, b"").to_parts()


def sequences(ids: bytes, lengths: bytes) -> list[list[int]]:
    rest = array("i", ids).tolist()
    found = []
    for length in array("i", lengths):
        found.append(rest[:length])
        rest = rest[length:]
    assert not rest
    return found


def test_a_block_becomes_ids_and_lengths(tokenizers):
    encoded = EncodedPairs(*PairEncoder(*tokenizers)(block(PAIRS)))
    kept = [(source, target) for source, target in PAIRS if source]
    assert sequences(encoded.source, encoded.source_lengths) == [
        [*ids, EOS] for ids in LETTERS.encode([source for source, _ in kept])
    ]
    assert sequences(encoded.target, encoded.target_lengths) == [
        [*ids, EOS] for ids in DIGITS.encode([target for _, target in kept])
    ]
    assert encoded.counts == PairCounts(
        read=6, kept=5, empty=1, source_tokens=9 + 5, target_tokens=9 + 5, source_unknown=1, target_unknown=1
    )
    assert encoded.held_out == []


def test_what_is_held_out_is_neither_encoded_nor_counted(tokenizers):
    encoder = PairEncoder(*tokenizers, seed=5, ranks=[source_rank("g", 5), source_rank("d e", 5)])
    encoded = EncodedPairs(*encoder(block(PAIRS)))
    assert encoded.held_out == [("g", "0"), ("g", "9 9"), ("d e", "5")]
    assert (encoded.counts.read, encoded.counts.kept) == (3, 2)
    left = [[*ids, EOS] for ids in LETTERS.encode(["a b c", "b z"])]
    assert sequences(encoded.source, encoded.source_lengths) == left
    assert not EncodedPairs(*encoder(block([("g", "0")]))).source
    assert EncodedPairs(*PairEncoder(*tokenizers, seed=6, ranks=encoder.ranks)(block(PAIRS))).held_out == []


def test_one_tokenizer_for_both_sides(tokenizers):
    encoded = EncodedPairs(*PairEncoder(tokenizers[0], tokenizers[0])(block([("a b", "b a")])))
    assert sequences(encoded.source + encoded.target, encoded.source_lengths + encoded.target_lengths) == [
        [2, 3, EOS],
        [3, 2, EOS],
    ]


def test_a_line_that_is_wrong_is_named(tokenizers):
    with pytest.raises(DataError, match=r"pairs.tsv, line 8: expected source<tab>target"):
        PairEncoder(*tokenizers)(PairBlock(PairFiles(Path("pairs.tsv")), 7, 2, 1.0, b"a\t1\nb\n", b"").to_parts())


def test_counts_add_up():
    a = PairCounts(read=7, kept=2, empty=1, too_long=3, bad_ratio=1, source_tokens=5, target_tokens=11)
    assert a + a == PairCounts(read=14, kept=4, empty=2, too_long=6, bad_ratio=2, source_tokens=10, target_tokens=22)
    assert a + PairCounts() == a
