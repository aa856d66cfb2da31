"""The page asks for a sentence once, however long somebody edits the others."""


def test_a_sentence_that_still_stands_is_never_translated_again(in_node):
    counts = in_node("writer.mjs", "../../page/translator/writer.js", {"count": 200, "edits": 600})
    assert counts == [200] + [1] * 600
