import re
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import ArgumentError, ConfigError, DataError
from glassformer.scoring import scores
from glassformer.scoring.scores import METRICS, edit_distance, pick_bleu_tokenizer, score, score_all, seem_swapped
from glassformer.text.tokenizer import train_tokenizer

ENGLISH = (
    ["the cat sat on the mat .", "a man, who sings, walks in the park", "two dogs"],
    ["the cat sat on a mat .", "a man who sings walks in a park", "two dogs run fast"],
)
CHINESE = (
    ["今天的天气很好，我们去公园。", "他在2023年来到北京"],
    ["今天天气很好，我们去公园吧。", "他于2023年来到了北京"],
)
JAPANESE = (["今日はとても良い天気ですね", "公園へ行きました"], ["今日は良い天気です", "公園に行きましょう"])
PHONES = (["K AE T", "D AO G", "B ER D"], ["K AE T S", "D AO G", "B AH R"])


@pytest.mark.parametrize(
    ("text", "tokenize", "used"),
    [(ENGLISH, "auto", "13a"), (CHINESE, "auto", "zh"), (JAPANESE, "auto", "char"), (ENGLISH, "char", "char")],
    ids=["English", "Chinese", "Japanese without MeCab", "given by name"],
)
def test_bleu_is_sacrebleus(monkeypatch, text, tokenize, used):
    monkeypatch.setattr(scores, "find_spec", lambda name: None)
    bleu = score(*text, "bleu", tokenize=tokenize)
    assert 0 < bleu.value == sacrebleu.corpus_bleu(text[0], [text[1]], tokenize=used).score < 100
    assert bleu.value != sacrebleu.corpus_bleu(text[0], [text[1]], tokenize="char" if used == "13a" else "13a").score
    assert bleu.name == "BLEU"
    assert bleu.signature == f"nrefs:1|case:mixed|eff:no|tok:{used}|smooth:exp|version:{sacrebleu.__version__}"


def test_chrf_is_sacrebleus():
    chrf = score(*ENGLISH, "chrf")
    assert 0 < chrf.value == sacrebleu.corpus_chrf(ENGLISH[0], [ENGLISH[1]]).score < 100
    assert chrf.name == "chrF"
    assert chrf.signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"


def test_text_that_is_said_to_be_tokenised_is_taken_as_such(caplog):
    caplog.set_level("WARNING")
    tokenised = ["a dog runs ."] * 200
    assert score(tokenised, tokenised, "bleu", tokenize="none").value == pytest.approx(100)
    assert not caplog.records  # sacreBLEU warns of periods that stand alone
    score(tokenised, tokenised, "bleu", tokenize="13a")
    assert caplog.records


@pytest.mark.parametrize(
    ("installed", "japanese"), [((), "char"), (("MeCab",), "char"), (("MeCab", "ipadic"), "ja-mecab")]
)
def test_the_script_of_the_references_picks_the_tokenizer(monkeypatch, installed, japanese):
    monkeypatch.setattr(scores, "find_spec", lambda name: object() if name in installed else None)
    for references, name in (
        (ENGLISH[1], "13a"),
        (["Grüße aus Köln", "Добрый день", "مرحبا بالعالم", "안녕하세요"], "13a"),
        (CHINESE[1], "zh"),
        (["使用 GPU 训练模型"], "zh"),
        (["GPU training, once called 训练, is fast"], "13a"),
        ([""], "13a"),
        (JAPANESE[1], japanese),
        (["カタカナ"], japanese),
    ):
        assert pick_bleu_tokenizer(references) == name


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")
def test_a_tokenizer_that_is_not_installed_names_the_extra():
    with pytest.raises(ConfigError, match=re.escape('ja-mecab is not installed: pip install "glassformer[ja]"')):
        score(*JAPANESE, "bleu", tokenize="ja-mecab")


@pytest.mark.parametrize(
    ("text", "metric", "symbols", "value", "name", "signature"),
    [
        (
            (["a b", "c", "d", "", "a\xa0b"], ["a  b ", "C", "d\u3000", "x", "a b"]),
            *("exact", False, 40, "exact match", "share of equal lines"),
        ),
        # One word missing of four, two wrong of two, one too many of one: 4 edits over 7 reference words.
        (
            (["the cat sat", "b a", "x y"], ["the cat sat down", "a b", "x"]),
            *("wer", False, 100 * 4 / 7, "word error rate", "edits per reference word"),
        ),
        # kitten -> sitting: 3 edits; "a b" -> "ab": the space is a character.
        (
            (["kitten", "a b"], ["sitting", "ab"]),
            *("ser", False, 100 * 4 / 9, "symbol error rate", "edits per reference character"),
        ),
        # As in the SIGMORPHON tasks: 2 of 3 words with any mistake; 1 + 0 + 2 edits of 4 + 3 + 3 phones.
        (PHONES, "wer", True, 100 * 2 / 3, "word error rate", "share of wrong lines"),
        ((["a b", "c d"], ["a b ", "c  d"]), "wer", True, 0, "word error rate", "share of wrong lines"),
        (PHONES, "ser", True, 30, "symbol error rate", "edits per reference symbol"),
    ],
)
def test_rates_by_hand(text, metric, symbols, value, name, signature):
    rate = score(*text, metric, symbols=symbols)
    assert rate.value == pytest.approx(value)
    assert (rate.name, rate.signature) == (name, signature)
    assert str(rate) == f"{name} {value:.2f} %  ({signature})"


@pytest.mark.parametrize("metric", METRICS)
def test_a_perfect_translation_scores_best(metric):
    best = 0 if metric in scores.LOWER_IS_BETTER else 100
    assert score(ENGLISH[1], ENGLISH[1], metric).value == pytest.approx(best)
    assert score(ENGLISH[0], ENGLISH[1], metric).value != pytest.approx(best)


def test_score_all_is_every_metric_in_order():
    assert [one.name for one in score_all(*PHONES, first="ser", symbols=True)][:2] == ["symbol error rate", "BLEU"]
    assert score_all(*PHONES, symbols=True) == [score(*PHONES, metric, symbols=True) for metric in METRICS]
    assert score_all(*ENGLISH, tokenize="char") == [score(*ENGLISH, metric, tokenize="char") for metric in METRICS]


def slow_distance(left, right) -> int:
    """Levenshtein's distance by its definition: try every edit at the front."""

    @cache
    def distance(i: int, j: int) -> int:
        if i == len(left) or j == len(right):
            return len(left) - i + len(right) - j
        if left[i] == right[j]:
            return distance(i + 1, j + 1)
        return 1 + min(distance(i + 1, j), distance(i, j + 1), distance(i + 1, j + 1))

    return distance(0, 0)


@settings(max_examples=100, deadline=None)
@given(left=st.text("abc", max_size=9), right=st.text("abc", max_size=9))
def test_edit_distance_is_the_fewest_edits(left, right):
    assert edit_distance(left, right) == slow_distance(left, right)
    assert edit_distance(left.split("a"), right.split("a")) == slow_distance(left.split("a"), right.split("a"))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ("abc", "abd", "hypotheses must be a sequence of lines, got one str: pass [line]"),
        (["a"], "a", "references must be a sequence of lines, got one str: pass [line]"),
        ([None], ["a"], "hypotheses must be str, got NoneType for hypotheses[0]"),
        (["a", "b"], ["a", 3.5], "references must be str, got float for references[1]"),
        (
            np.array(["a b", "c"]),
            ["a", "c"],
            "hypotheses must be a sequence of lines, got ndarray: pass list(hypotheses)",
        ),
        (iter(["a"]), ["a"], "hypotheses must be a sequence of lines, got list_iterator: pass list(hypotheses)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_are_no_lines_is_named(hypotheses, references, message, metric):
    with pytest.raises(ArgumentError) as error:
        score(hypotheses, references, metric)
    assert str(error.value) == message


def test_errors():
    with pytest.raises(ConfigError, match="metric must be one of bleu, chrf, exact, wer, ser, got 'blue'"):
        score(["a"], ["a"], "blue")
    with pytest.raises(DataError, match="the same number of lines, got 2 and 3: give one reference for each"):
        score(["a", "b"], ["a", "b", "c"], "exact")
    with pytest.raises(DataError, match="nothing to score: there are no references"):
        score([], [], "bleu")
    with pytest.raises(ConfigError, match=r"tokenize must be auto or one of .*13a.*, got '14a'"):
        score(["a"], ["a"], "bleu", tokenize="14a")


def test_sides_seem_swapped_where_translations_are_like_the_sources():
    german, english = ["ein kleiner Hund", "zwei Katzen"], ["a little dog", "two cats"]

    def swapped(hypotheses: list[str], sources: list[str], references: list[str]) -> bool:
        return seem_swapped(hypotheses, sources, score(hypotheses, references, "chrf").value)

    assert swapped(["ein kleiner Hund", "zwei Hunde"], german, english)
    assert not swapped(["a small dog", "two dogs"], german, english)
    assert not swapped(["", ""], german, english)
    assert not swapped(["3 5", "7"], ["3 5", "7"], ["3 5", "7"])


def test_a_file_that_is_no_tokenizer_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    path = tmp_path / "models" / "flores200sacrebleuspm"
    path.parent.mkdir()
    path.write_text("<!DOCTYPE html>")
    with pytest.raises(ConfigError, match=f"{path} is not the sentencepiece model of flores200: fetch it again"):
        scores.bleu_scorer("flores200")


def test_a_tokenizer_whose_file_is_here_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    tokenizer = train_tokenizer([*ENGLISH[0], *ENGLISH[1]], kind="char", vocab_size=None, seed=1)
    made = tokenizer.save(tmp_path / "source")
    (tmp_path / "models").mkdir()
    made.rename(tmp_path / "models" / "flores200sacrebleuspm")
    figure = score(*ENGLISH, "bleu", tokenize="flores200")
    assert "tok:flores200" in figure.signature
    assert 0 < figure.value < 100


@pytest.mark.parametrize("name", ["spm", "flores101", "flores200", "spBLEU-1K"])
def test_a_tokenizer_that_would_be_downloaded_is_refused(name, monkeypatch, tmp_path):
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"{name} needs a file .*: fetch https://.* and save it as {tmp_path}"):
        scores.bleu_scorer(name)
    assert list(tmp_path.iterdir()) == []
