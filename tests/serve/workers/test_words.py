"""Words of a translation: where they begin and end, and the product of their tokens' probabilities."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer import Translator
from glassformer.confidence.calibration import Calibration
from glassformer.confidence.estimate import ConfidenceEstimator
from glassformer.confidence.features import FEATURES
from glassformer.generation.config import SearchConfig
from glassformer.generation.search import Hypothesis
from glassformer.serve.workers.answers import line_answer
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


def test_with_a_calibration_each_word_has_how_likely_it_is_right(random_run, tmp_path):
    letters = SymbolTokenizer("abcd")
    random_run(tmp_path / "run", letters, letters)
    translator = Translator.load(tmp_path / "run", "cpu", "float32")
    counts = dict(lines=1, words=1, right=0.5, temperature=1.0, omissions_found=0.5, false_alarms=0.5)
    weights = (0.0,) * len(FEATURES)
    fitted = Calibration(weights=weights, bias=0.0, layer=0, heads=(0,), shift=0, omitted_below=0.0, **counts)
    (ids,) = letters.encode(["a b"])
    found = [Hypothesis(ids, [-0.25] * 3, -0.75, -0.25), Hypothesis([], [-2.0], -2.0, -2.0)]
    asked = translator, [*ids, 0], found, SearchConfig()
    answer = line_answer(*asked, confidence=True, estimator=ConfidenceEstimator(translator, fitted))
    words = [[(word["text"], word["right"]) for word in one["words"]] for one in answer["translations"]]
    assert words == [[("a", 0.5), ("b", 0.5)], []], "all weights are 0, so each word is right half of the time"
    forced = [replace(found[0], forced=(0,))]
    chosen = line_answer(
        *asked[:2], forced, SearchConfig(), confidence=True, estimator=ConfidenceEstimator(translator, fitted)
    )
    assert [word["right"] for word in chosen["translations"][0]["words"]] == [None, None], "the model chose otherwise"
    plain = line_answer(*asked, confidence=True)["translations"]
    assert [word["right"] for word in plain[0]["words"]] == [None, None]
    assert [one["words"] for one in line_answer(*asked)["translations"]] == [None, None]
