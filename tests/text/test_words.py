"""Words of lines, and the tokens that belong to them, by hand and on any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.words import split_words, words_of_tokens

TEXTS = st.text(alphabet="ab ,\t一二カ\u3000é", max_size=23)


@given(TEXTS)
def test_words_are_the_line_without_white_space(line):
    words = split_words(line)
    assert "".join(word.text for word in words) == "".join(line.split())
    assert all(line[word.start : word.end] == word.text for word in words)


@given(st.text(alphabet="ab,é \t", max_size=23))
def test_in_spaced_scripts_words_are_what_split_gives(line):
    assert [word.text for word in split_words(line, range(len(line)))] == line.split()


@pytest.mark.parametrize(
    ("line", "starts", "words", "numbers"),
    [
        ("a man rides.", [0, 2, 6, 9, 11], ["a", "man", "rides."], [0, 1, 2, 2, 2]),
        ("我爱 Python。", [0, 3, 5, 9], ["我爱", "Python。"], [0, 1, 1, 1]),
        ("我爱你", [0, 1], ["我", "爱你"], [0, 1]),
        ("x é y", [0, 2, 2, 4], ["x", "é", "y"], [0, 1, 1, 2]),  # bytes begin where their character does
        ("a b", [0, 0, 2], ["a", "b"], [0, 0, 1]),
    ],
)
def test_tokens_belong_to_words(line, starts, words, numbers):
    split = split_words(line, starts)
    assert [word.text for word in split] == words
    assert words_of_tokens(starts, split) == numbers
