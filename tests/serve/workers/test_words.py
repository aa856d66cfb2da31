"""Words of a translation: where they begin and end, and the product of their tokens' probabilities."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.serve.workers.words import words_of
from glassformer.text.tokenizer import SubwordTokenizer, SymbolTokenizer

LINES = ["the cat sat on the mat", "猫坐在垫子上。", "Grüße, „Welt!“ 3.5-", "カタカナ and 漢字"] * 4
TOKENIZERS = {
    **{kind: SubwordTokenizer.train(LINES, kind=kind, vocab_size=None, seed=1) for kind in ("bpe", "char")},
    "symbols": SymbolTokenizer.train(LINES, vocab_size=None),
}


def words(text: str, kind: str) -> tuple[list[dict], int]:
    tokenizer = TOKENIZERS[kind]
    (ids,) = tokenizer.encode([text])
    return words_of(ids, [-0.25] * (len(ids) + 1), tokenizer), len(ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_stand_between_spaces(kind):
    found, tokens = words("the cat sat", kind)
    assert [(word["text"], word["start"], word["end"]) for word in found] == [
        ("the", 0, 3),
        ("cat", 4, 7),
        ("sat", 8, 11),
    ]
    assert found[0]["first"] == 0
    assert [word["first"] for word in found[1:]] == [word["last"] for word in found[:-1]]
    assert found[-1]["last"] == tokens
    for word in found:
        assert word["probability"] == pytest.approx(math.exp(-0.25 * (word["last"] - word["first"])))


def test_without_spaces_each_token_is_a_word():
    found, _ = words("猫坐在垫子上。", "char")
    assert [word["text"] for word in found] == list("猫坐在垫子上。")
    assert words("", "char") == ([], 0)


def test_punctuation_after_a_word_is_one_of_its_own():
    found, _ = words("Grüße, „Welt!...“ 3,5 the-cat", "char")
    assert [word["text"] for word in found] == ["Grüße", ",", "„Welt", "!...“", "3,5", "the-cat"]


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(line=st.lists(st.sampled_from([*"the cat猫坐 ,!Grüße", "Ж"]), max_size=20).map("".join))
def test_words_and_what_is_between_them_are_the_text(kind, line):
    tokenizer = TOKENIZERS[kind]
    (ids,) = tokenizer.encode([line])
    (text,) = tokenizer.decode([ids])
    found = words_of(ids, [-0.1] * len(ids), tokenizer)
    place = token = 0
    for word in found:
        assert word["text"] == text[word["start"] : word["end"]].strip() == text[word["start"] : word["end"]]
        assert not text[place : word["start"]].strip()
        assert token == word["first"] < word["last"] <= len(ids)
        assert 0 < word["probability"] <= 1
        place, token = word["end"], word["last"]
    assert not text[place:].strip()
