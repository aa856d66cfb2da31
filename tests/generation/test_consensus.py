"""The translation that the others agree with most."""

import math

import pytest
from sacrebleu.metrics import BLEU

from glassformer.generation.config import SearchConfig
from glassformer.generation.consensus import _bleu, _grams, by_agreement
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import SymbolTokenizer

LINES = [
    "ein Hund rennt schnell über die Wiese",
    "ein Hund läuft über die Wiese",
    "der Hund rennt weg",
    "a a a a a",
    "a",
]


@pytest.mark.parametrize("one", LINES)
@pytest.mark.parametrize("other", LINES)
def test_likeness_is_smoothed_bleu(one, other):
    theirs = BLEU(tokenize="none", smooth_method="add-k", smooth_value=1).sentence_score(one, [other]).score / 100
    sides = [(_grams(line.split()), len(line.split())) for line in (one, other)]
    assert _bleu(*sides[0], *sides[1]) == pytest.approx(theirs, abs=1e-9)


def test_the_one_most_like_the_others_by_how_likely_they_are():
    texts = ["x y z w v", "ein Hund läuft hier", "ein Hund läuft dort", "ein Hund läuft dort"]
    assert by_agreement(texts) == [2, 3, 1, 0]
    assert by_agreement(texts, [0.0, -40.0, -40.0, -40.0]) == [0, 2, 3, 1]  # the first is all but certain
    assert by_agreement(texts, [-2.0, -2.0, -2.0, -2.0]) == [2, 3, 1, 0]
    far = 4 * math.log(3)  # counts a third: 1 against 2/3 + 1/3 of the two, which are half like it
    assert by_agreement(["a b", "c", "c"], [0.0, -far, -far])[0] == 0
    assert by_agreement(["a b", "c", "c"], [0.0, -far / 3, -far / 3])[0] == 1


def test_characters_count_where_nothing_has_a_space():
    assert by_agreement(["狗跑", "一只狗在跑", "一只狗在跳"])[0] == 1
    assert by_agreement(["", "", "狗"]) == [0, 1, 2]
    assert by_agreement([]) == []


@pytest.mark.parametrize("settings", [dict(beam=6), dict(sample=True, n_best=6)], ids=["beam", "sample"])
def test_all_that_was_found_is_compared_and_the_best_returned(random_run, tmp_path, settings):
    symbols = SymbolTokenizer("abcd")
    random_run(tmp_path / "run", symbols, symbols, shared=True, seed=8)
    translator = Translator.load(tmp_path / "run", "cpu", precision="float32")
    lines = ["a b c", "d a", "", "c c b a"]
    limits = dict(max_length=7, min_length=2)
    plain = translator.translate_n_best(lines, SearchConfig(**{"n_best": 6, **settings}, **limits))
    chosen = translator.translate_n_best(lines, SearchConfig(consensus=True, **settings, **limits))
    ordered = []
    for found in plain:
        log_probs = None if "sample" in settings else [one.log_prob for one in found]
        ordered.append([found[place] for place in by_agreement([one.text for one in found], log_probs)])
    kept = settings.get("n_best", 1)
    assert chosen == [one[:kept] for one in ordered]
    assert [one[0].text for one in ordered] != [one[0].text for one in plain]
    assert translator.translate(lines, SearchConfig(consensus=True, **settings, **limits)) == [
        one[0].text for one in ordered
    ]
    assert chosen[2][0].text == ""
