"""The settings that the data decide."""

from pathlib import Path

import pytest

from glassformer.data.facts import describe_pairs
from glassformer.demo.dates import make_dates
from glassformer.training.automatic import choose_settings
from glassformer.training.config import TrainConfig

SENTENCE, SATZ = "a small dog runs across the wide green field", "ein kleiner Hund rennt über das weite grüne Feld"
DATES = [(date.phrase, date.iso) for date in make_dates(seed=1, train=300, valid=1, test=1).train]
CHOSEN = {
    "sentences": ([(SENTENCE, SATZ)], dict(tokenizer="unigram", preset="small", dropout=0.3, metric="bleu")),
    "dates": (DATES, dict(tokenizer="char", preset="tiny", dropout=0.1, metric="exact")),
    "numbers": (
        [("34908", "vierunddreißigtausendneunhundertacht")],
        dict(source_tokenizer="char", target_tokenizer="unigram", dropout=0.1, metric="exact"),
    ),
    "phones": (
        [("abbé", "a b e"), ("zoo", "z o")],
        dict(source_tokenizer="char", target_tokenizer="symbols", dropout=0.1, metric="wer"),
    ),
    "Chinese sentences": (
        [(SENTENCE, "一只小狗跑过宽阔的绿色田野")],
        dict(source_tokenizer="unigram", target_tokenizer="unigram", dropout=0.3, metric="bleu"),
    ),
    "long symbols": (
        [("a b c " * 30, "c b a " * 30)],
        dict(tokenizer="symbols", preset="small", batch_tokens=2048, metric="wer"),
    ),
    "a word and a paragraph": (
        [("dog", SATZ * 4)],
        dict(source_tokenizer="char", preset="small", batch_tokens=2048, metric="bleu"),
    ),
    "Chinese words": ([("dog", "小狗")], dict(source_tokenizer="char", target_tokenizer="char", metric="exact")),
}


def chosen(pairs: list[tuple[str, str]], count: int, **given: object) -> dict[str, object]:
    config = TrainConfig(source=Path("pairs.tsv"), out=Path("run"), **given)
    choices = choose_settings(config, count, describe_pairs(pairs))
    assert all(str(choice).startswith(f"--{choice.name.replace('_', '-')} {choice.value} ") for choice in choices)
    assert all(choice.reason for choice in choices)
    return {choice.name: choice.value for choice in choices}


@pytest.mark.parametrize("name", CHOSEN)
def test_settings_follow_from_the_text(name):
    pairs, expected = CHOSEN[name]
    found = chosen(pairs, 30_000)
    assert {key: found.get(key) for key in expected} == expected
    assert ("tokenizer" in found) == ("tokenizer" in expected)


@pytest.mark.parametrize(("count", "preset"), [(9, "tiny"), (9_999, "tiny"), (10_000, "small"), (1 << 20, "base")])
def test_more_sentences_take_a_larger_model(count, preset):
    assert chosen([(SENTENCE, SATZ)], count)["preset"] == preset
    assert chosen([(SENTENCE, SATZ)], count, max_minutes=20.0)["preset"] == preset


@pytest.mark.parametrize(("count", "dropout"), [(3_000, 0.2), (29_000, 0.1)])
def test_little_time_takes_a_small_model_and_little_dropout(count, dropout):
    found = chosen([(SENTENCE, SATZ)], count, max_minutes=2.0)
    assert (found["preset"], found["dropout"]) == ("tiny", dropout)
    assert (found["encoder_layers"], found["decoder_layers"]) == (2, 1)
    assert "encoder_layers" not in chosen([(SENTENCE, SATZ)], count, max_minutes=15.0)
    assert chosen([(SENTENCE, SATZ)], count, max_minutes=2.0, encoder_layers=4).get("encoder_layers") is None


def test_what_is_given_stays():
    given = dict(tokenizer="bpe", preset="base", metric="chrf", batch_tokens=100)
    assert chosen([(SENTENCE, SATZ)], 3000, **given) == {}
    assert "source_tokenizer" not in chosen([("dog", "小狗")], 3000, source_tokenizer="word")
    assert chosen([("dog", "小狗")], 3000, source_tokenizer="word")["target_tokenizer"] == "char"


def test_few_pairs_or_little_time_take_two_vocabularies_and_small_batches():
    for given in (dict(count=3000), dict(count=30_000, max_minutes=2.0)):
        found = chosen([(SENTENCE, SATZ)], **given)
        assert (found["source_tokenizer"], found["target_tokenizer"]) == ("unigram", "unigram")
        assert "tokenizer" not in found
    sizes = [chosen([(SENTENCE, SATZ)], count, max_minutes=2.0)["batch_tokens"] for count in (3000, 30_000)]
    assert sizes == [512, 1024]
    assert [chosen(text, 30_000)["batch_tokens"] for text in ([(SENTENCE, SATZ)], DATES)] == [2048, 1024]


def test_a_run_that_goes_on_keeps_its_tokenizers_and_size(tmp_path):
    assert set(chosen([(SENTENCE, SATZ)], 3000, from_=tmp_path)) == {"batch_tokens", "metric"}


# The task characters

WORDS = [("<V><PST>walk", "walked"), ("<N><PL>dog", "dogs")]
PHONES = [("abbé", "a b e"), ("zoo", "z o")]
PRESET = dict(preset="tiny", encoder_layers=3, decoder_layers=3, dropout=0.25, batch_tokens=512)


def test_a_task_has_settings_of_its_own():
    found = chosen(WORDS, 10_000, task="characters")
    assert found == dict(tokenizer="features", **PRESET, max_updates=15_000, validate_every=750, metric="exact")
    found = chosen(PHONES, 3600, task="characters")
    assert found == dict(
        source_tokenizer="features",
        target_tokenizer="symbols",
        **PRESET,
        max_updates=5400,
        validate_every=270,
        metric="wer",
    )


def test_each_setting_of_a_task_is_changed_by_its_own_flag():
    given = dict(tokenizer="char", preset="small", encoder_layers=2, decoder_layers=1, dropout=0.1, batch_tokens=99)
    given |= dict(optimizer="muon", max_updates=40, validate_every=10, metric="ser")
    assert chosen(WORDS, 10_000, task="characters", **given) == {}
    assert chosen(WORDS, 10_000, task="characters", source_tokenizer="char")["target_tokenizer"] == "features"


@pytest.mark.parametrize(("pairs", "updates"), [(9, 5000), (4000, 6000), (1 << 20, 30_000)])
def test_a_task_trains_the_longer_the_more_pairs_there_are(pairs, updates):
    assert chosen(WORDS, pairs, task="characters")["max_updates"] == updates


@pytest.mark.parametrize("limit", [dict(max_minutes=2.0), dict(max_epochs=3)])
def test_a_limit_that_is_given_is_the_only_one_of_a_task(limit):
    assert not {"max_updates", "validate_every"} & set(chosen(WORDS, 10_000, task="characters", **limit))


@pytest.mark.parametrize(
    ("pairs", "given", "sizes"),
    [
        (14_999, {}, {}),
        (15_000, {}, {"d_model": 192, "d_ff": 768}),
        (15_000, {"d_ff": 512}, {"d_model": 192}),
        (15_000, {"d_model": 256}, {}),
        (15_000, {"preset": "small"}, {}),
        (15_000, {"max_minutes": 5.0}, {}),
        (15_000, {"max_minutes": 60.0}, {"d_model": 192, "d_ff": 768}),
    ],
)
def test_many_words_have_a_wider_model(pairs, given, sizes):
    found = chosen(WORDS, pairs, task="characters", **given)
    assert {name: found[name] for name in ("d_model", "d_ff") if name in found} == sizes


def test_a_model_that_is_trained_on_keeps_its_width(tmp_path):
    assert "d_model" not in chosen(WORDS, 15_000, task="characters", from_=tmp_path)


def test_a_run_that_goes_on_keeps_its_tokenizers_and_size_in_a_task_too(tmp_path):
    names = {"dropout", "batch_tokens", "max_updates", "validate_every", "metric"}
    assert set(chosen(WORDS, 3000, task="characters", from_=tmp_path)) == names
