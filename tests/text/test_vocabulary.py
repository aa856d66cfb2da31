import torch

from glassformer.text.resampling import Resampler
from glassformer.text.tokenizer import EOS, train_tokenizer
from glassformer.text.vocabulary import VocabularyTokenizer


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


def test_lines_are_split_anew_into_the_same_text():
    lines = ["one old house", "the two new nurses", "two houses"] * 5
    pieces = train_tokenizer(lines, kind="unigram", vocab_size=None, seed=1)
    names = [">>deu<<", *pieces.tokens(range(2, pieces.pad))]
    vocabulary = {piece: i for i, piece in enumerate(["</s>", "<unk>", *names, "<pad>"])}
    tokenizer = VocabularyTokenizer(pieces.proto, vocabulary)
    assert tokenizer.can_sample
    given = [f">>deu<< {line}" for line in lines]
    ids = tokenizer.encode(given)
    resampler = Resampler((tokenizer, tokenizer), share=1.0)
    drawn = resampler.resample(1, [torch.tensor([*row, EOS]) for row in ids], seed=3)
    found = [row.tolist() for row in drawn]
    assert found != [[*row, EOS] for row in ids]
    assert {row[0] for row in found} == {2}
    assert {row[-1] for row in found} == {EOS}
    assert tokenizer.decode(found) == tokenizer.decode(ids)
