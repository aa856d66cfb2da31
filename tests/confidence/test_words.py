"""Which words of a translation are right, tagged by hand."""

import pytest

from glassformer.confidence.words import Span, right_words, spans_of
from glassformer.text.tokenizer import SymbolTokenizer, train_tokenizer


def tagged(text: str, reference: str, words: list[str]) -> str:
    """A letter for each of these words of the text: + right, - wrong."""
    spans, place = [], 0
    for n, word in enumerate(words):
        start = text.index(word, place)
        place = start + len(word)
        spans.append(Span(word, start, place, n, n + 1))
    return "".join("+" if right else "-" for right in right_words(text, spans, reference))


@pytest.mark.parametrize(
    ("text", "reference", "tags"),
    [
        ("a dog runs", "a dog runs", "+++"),
        ("a cat runs", "a dog runs", "+-+"),
        ("a dog runs home", "a dog runs", "+++-"),
        ("runs", "a dog runs", "+"),
        ("A dog", "a dog", "-+"),
        ("dog a", "", "--"),
        ("3.5-fold", "3.5 fold", "-"),
    ],
)
def test_a_word_is_right_if_the_shortest_edit_keeps_all_of_it(text, reference, tags):
    assert tagged(text, reference, text.split()) == tags


def test_letters_of_chinese_count_one_by_one_and_punctuation_by_itself():
    assert tagged("两只狗在跑。", "两条狗跑了。", ["两只", "狗", "在跑", "。"]) == "-+-+"
    assert tagged("Hund.", "Katze.", ["Hund", "."]) == "-+"
    assert tagged("서울에서", "서울에", ["서울에서"]) == "-"


def test_white_space_of_any_kind_is_no_word():
    tokenizer = train_tokenizer(["a\u00a0! b\u2003c\u00a0? ab bc ca"] * 9, kind="char", vocab_size=None, seed=1)
    (ids,) = tokenizer.encode(["ab\u00a0! b\u2003c"])
    (text,) = tokenizer.decode([ids])
    words = spans_of(ids, tokenizer)
    assert [word.text for word in words] == text.split()
    assert [text[word.start : word.end] for word in words] == text.split()
    assert right_words(text, words, "x") == [False] * 4


def test_words_hold_their_tokens():
    tokenizer = SymbolTokenizer("abc")
    (ids,) = tokenizer.encode(["a b"])
    assert spans_of(ids, tokenizer) == [Span("a", 0, 1, 0, 1), Span("b", 2, 3, 1, 2)]
