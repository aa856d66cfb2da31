import unicodedata

import pytest

from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import train_tokenizer


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_decomposed_characters_are_read_as_their_parts(tmp_path, kind):
    lines = ["한국어 값", "été à Köln", "नहीं ज़्यादा", "Ἀθῆναι"] * 9
    tokenizer = train_tokenizer(lines, kind=kind, vocab_size=None, seed=1, decompose=True)
    for used in (tokenizer, load_tokenizer(tokenizer.save(tmp_path / "source"))):
        assert used.decode(used.encode(lines)) == [unicodedata.normalize("NFD", line) for line in lines]
        assert used.encode(lines) == used.encode([unicodedata.normalize("NFD", line) for line in lines])
    if kind == "char":
        assert tokenizer.tokens(tokenizer.encode(["값é"])[0]) == ["\u2581", "\u1100", "\u1161", "\u11b9", "e", "\u0301"]
