from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.data.encode import EncodedPairs, PairCounts, PairEncoder
from glassformer.data.held_out import source_rank
from glassformer.errors import DataError
from glassformer.pairs.files import Pair, PairBlock, PairFiles
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
    again = EncodedPairs(*encoder(replace(PairBlock.from_parts(block(PAIRS)), repeated=True).to_parts()))
    assert (again.held_out, again.source) == ([], encoded.source)
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


def test_every_pair_left_out_is_counted_under_its_reason(tokenizers):
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
    encoded = EncodedPairs(*PairEncoder(*tokenizers, max_tokens=5, max_ratio=2.0)(block(pairs)))
    assert encoded.counts == PairCounts(
        read=10, kept=3, empty=3, too_long=2, bad_ratio=2, source_tokens=3 + 5 + 2, target_tokens=3 + 3 + 3
    )
    assert array("i", encoded.source_lengths).tolist() == [3, 5, 2]
    assert array("i", encoded.target_lengths).tolist() == [3, 3, 3]


def test_counts_add_up_and_read_as_one_line():
    a = PairCounts(read=7_000, kept=2, empty=1, too_long=3, bad_ratio=1, source_tokens=5, target_tokens=11)
    double = dict(read=14_000, kept=4, empty=2, too_long=6, bad_ratio=2, source_tokens=10, target_tokens=22)
    assert (a + a).to_json() == {**double, "source_unknown": 0, "target_unknown": 0, "joined": 0}
    assert a + PairCounts() == a
    left_out = "4 of 14,000 pairs, left out 2 empty, 6 too long, 2 length ratio; 10 source and 22 target tokens"
    assert str(a + a) == left_out
    assert str(PairCounts(read=2, kept=1, too_long=1)) == (
        "1 of 2 pairs, left out 1 too long; 0 source and 0 target tokens"
    )
    assert str(PairCounts(read=2, kept=2)) == "2 of 2 pairs; 0 source and 0 target tokens"


def test_joined_neighbours_come_after_the_lines_of_their_block(tokenizers):
    pairs = [("a", "1"), ("b c", "2"), ("", "3"), ("d", "4"), ("e", "5"), ("g", "0"), ("f", "6 6"), ("f f f f", "7")]
    encoder = PairEncoder(*tokenizers, max_tokens=7, seed=5, ranks=[source_rank("g", 5)], join_lines=2)
    encoded = EncodedPairs(*encoder(block(pairs)))
    # The empty line and the one that is held out end a row; the last two lines have too many tokens together.
    alone = [source for source, _ in pairs if source not in ("", "g")]
    sources, targets = [*alone, "a b c", "d e"], ["1", "2", "4", "5", "6 6", "7", "1 2", "4 5"]
    assert sequences(encoded.source, encoded.source_lengths) == [[*ids, EOS] for ids in LETTERS.encode(sources)]
    assert sequences(encoded.target, encoded.target_lengths) == [[*ids, EOS] for ids in DIGITS.encode(targets)]
    counts = encoded.counts
    assert (counts.kept, counts.joined, counts.source_tokens) == (6, 2, len(encoded.source) // 4)
    assert str(counts).startswith("6 of 7 pairs, left out 1 empty, and 2 of joined neighbours; ")
    without = EncodedPairs(*replace(encoder, join_lines=1)(block(pairs)))
    assert (without.counts.joined, without.counts.kept) == (0, 6)
    assert encoded.source.startswith(without.source)


def test_which_neighbours_are_joined_follows_from_the_seed_and_the_number_of_the_line(tokenizers):
    pairs = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5"), ("f", "6"), ("g", "7")] * 5

    def joined(seed: int, first: int) -> bytes:
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        return PairEncoder(*tokenizers, seed=seed, join_lines=4).encode(sources, targets, first=first).source

    assert joined(1, 1) == joined(1, 1)
    assert len({joined(1, 1), joined(2, 1), joined(1, 9000)}) == 3
