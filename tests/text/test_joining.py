"""Sentences in one line: what comes between two of them."""

import pytest

from glassformer.text.joining import is_dense, join_sentences


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (["It rained.", "It poured."], "It rained. It poured."),
        ([" It rained. ", "\tIt poured."], "It rained. It poured."),
        (["下雨了。", "下大雨了。", "停了。"], "下雨了。下大雨了。停了。"),
        (["我买了iPhone", "他没有。"], "我买了iPhone他没有。"),
        (["雨です。", "It rained.", "そうですね。"], "雨です。 It rained. そうですね。"),
        (["他 来 了 。", "她 走 了 。"], "他 来 了 。 她 走 了 。"),
        (["มาแล้ว", "ไปแล้ว"], "มาแล้ว ไปแล้ว"),
        (["왔다.", "갔다."], "왔다. 갔다."),
        (["alone"], "alone"),
        ([], ""),
    ],
)
def test_a_space_comes_between_sentences_but_for_chinese_and_japanese(texts, joined):
    assert join_sentences(texts) == joined


def test_words_with_spaces_between_them_are_not_dense():
    assert is_dense("我们喜欢北京。")
    assert not is_dense("我们 喜欢 北京 。")
    assert is_dense("我们喜欢北京，也喜欢上海和广州。 他不喜欢。")
    assert not is_dense("")
