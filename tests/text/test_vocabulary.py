import pytest
import torch

from glassformer.text.resampling import Resampler
from glassformer.text.tokenizer import EOS, UNK, SubwordTokenizer, train_tokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

LINES = ["one old house", "the two new nurses", "two houses"] * 5


def test_a_language_code_has_no_surface(tmp_path):
    pieces = train_tokenizer(["one old house", "the two new nurses"], kind="unigram", vocab_size=None, seed=1)
    known = [piece for piece in pieces.tokens(range(2, pieces.pad)) if piece != "▁"]
    vocabulary = {piece: i for i, piece in enumerate(["</s>", "<unk>", ">>deu<<", *known, "<pad>"])}
    proto = pieces.save(tmp_path / "source").read_bytes()
    tokenizer = VocabularyTokenizer(proto, vocabulary)
    for line in (">>deu<< one old house", ">>deu<<two", "the nurses ЖЖ", "", ">>deu<<"):
        surfaces = tokenizer.surfaces(line)
        assert len(surfaces) == len(tokenizer.encode([line])[0])
        assert "".join(surfaces) == line.removeprefix(">>deu<<").replace(" ", "")
        assert [line[start:end] for start, end in tokenizer.spans(line)] == surfaces
    assert tokenizer.surfaces(">>deu<< one")[0] == ""


def test_unknown_text_is_no_special_token_but_may_be_a_piece_of_the_other_side():
    sides = [SubwordTokenizer.train([text] * 9, kind="char", vocab_size=None, seed=1) for text in ("xyz yx", "猫狗")]
    known = dict.fromkeys(piece for side in sides for piece in side.tokens(range(2, side.pad)))
    vocabulary = {piece: i for i, piece in enumerate(["</s>", "<unk>", ">>deu<<", *known, "<pad>"])}
    tokenizer = VocabularyTokenizer(sides[0].proto, vocabulary)
    for text in ("</s>", "<pad>", "<unk>", ">>deu<<"):
        assert tokenizer.encode([f"x {text} y"])[0][2:-2] == [vocabulary["▁"], UNK]
    assert tokenizer.encode(["x 猫 y"])[0][3] == vocabulary["猫"]


@pytest.fixture
def unigram() -> SubwordTokenizer:
    return train_tokenizer(LINES, kind="unigram", vocab_size=None, seed=1)


def split_anew(tokenizer: VocabularyTokenizer, ids: list[list[int]]) -> list[list[int]]:
    resampler = Resampler((tokenizer, tokenizer), share=1.0)
    return [row.tolist() for row in resampler.resample(1, [torch.tensor([*row, EOS]) for row in ids], seed=3)]


def of_pieces(unigram: SubwordTokenizer, pieces: list[str]) -> VocabularyTokenizer:
    names = ["</s>", "<unk>", ">>deu<<", *pieces, "<pad>"]
    return VocabularyTokenizer(unigram.proto, {piece: i for i, piece in enumerate(names)})


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
def test_ids_read_as_by_the_tokenizer_whose_pieces_it_has(kind):
    lines = ["the cat sat", "\u3000the dog", "a\u00a0b \u3000"] * 20
    ours = SubwordTokenizer.train(lines, kind=kind, vocab_size=None, seed=1)
    pieces = ["</s>", "<unk>", *ours.tokens(range(2, ours.pad)), "<pad>"]
    theirs = VocabularyTokenizer(ours.proto, {piece: i for i, piece in enumerate(pieces)})
    torch.manual_seed(3)
    rows = [ours.encode([line])[0] for line in lines[:3]]
    rows += [torch.randint(0, ours.vocab_size, (7,)).tolist() for _ in range(200)] + [
        [2, UNK, 3],
        [UNK],
        [UNK, UNK],
        [],
    ]
    assert theirs.decode(rows) == ours.decode(rows)


def test_lines_are_split_anew_into_the_same_text(unigram):
    tokenizer = of_pieces(unigram, unigram.tokens(range(2, unigram.pad)))
    assert tokenizer.can_sample
    ids = tokenizer.encode([f">>deu<< {line}" for line in LINES])
    found = split_anew(tokenizer, ids)
    assert found != [[*row, EOS] for row in ids]
    assert {row[0] for row in found} == {2}
    assert {row[-1] for row in found} == {EOS}
    assert tokenizer.decode(found) == tokenizer.decode(ids)


def test_lines_stay_where_a_piece_of_the_other_splitting_has_no_id(unigram):
    used = sorted({i for row in unigram.encode(LINES) for i in row})
    tokenizer = of_pieces(unigram, unigram.tokens(used))
    ids = tokenizer.encode(LINES)
    assert any(UNK in row for row in tokenizer.sample(LINES, seed=3))
    found = split_anew(tokenizer, ids)
    assert not any(UNK in row for row in found)
    assert tokenizer.decode(found) == tokenizer.decode(ids)
