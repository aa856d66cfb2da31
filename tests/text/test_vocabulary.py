from glassformer.text.tokenizer import train_tokenizer
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
