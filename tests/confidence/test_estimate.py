"""Confidence in the translations of a small model that has learned to reverse letters."""

from dataclasses import replace

import pytest
import torch

from glassformer import ModelConfig, SearchConfig, Transformer, Translator
from glassformer.confidence.calibration import Calibration, calibration_error
from glassformer.confidence.diagram import draw_reliability
from glassformer.confidence.estimate import ConfidenceEstimator, fit_calibration, measure_calibration
from glassformer.confidence.features import FEATURES
from glassformer.errors import ConfigError, DataError
from glassformer.text.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def translator(taught) -> Translator:
    return Translator.load(taught.folder, "cpu", "float32")


@pytest.fixture(scope="module")
def fitted(translator, taught):
    translations = translator.translations(taught.sources)
    return fit_calibration(translator, taught.sources, translations, taught.targets), translations


def test_calibrated_words_are_right_as_often_as_is_said(translator, taught, fitted, tmp_path):
    # Slow: the fixture trains the model, in 160 updates.
    calibration, translations = fitted
    assert calibration.words == sum(len(one.tokens) for one in translations)
    measured = measure_calibration(translator, calibration, taught.sources, translations, taught.targets)
    assert calibration_error(measured.words) < 0.05
    assert f"{sum(one.size for one in measured.words):,} words" in str(measured)
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    draw_reliability(measured, tmp_path / "diagram.png")
    assert (tmp_path / "diagram.png").read_bytes().startswith(b"\x89PNG")


def test_lines_have_the_mean_of_their_words_and_name_what_is_left_out(translator, taught, fitted):
    calibration, translations = fitted
    found = ConfidenceEstimator(translator, calibration).estimate(taught.sources[:7], translations[:7])
    for one, translation in zip(found, translations, strict=False):
        assert [word.text for word in one.words] == translation.text.split()
        assert one.probability == pytest.approx(sum(word.probability for word in one.words) / len(one.words))
        assert one.omitted == [], "letters are too short to be named"


@pytest.mark.filterwarnings("ignore:.* is cut to its first")
def test_no_more_of_a_line_is_read_than_its_search_has_read(translator, taught, fitted):
    estimator, line = ConfidenceEstimator(translator, fitted[0]), max(taught.sources, key=len)
    limit = len(translator.source_tokenizer.encode([line])[0]) - 1
    (translation,) = translator.translations([line], SearchConfig(max_source_tokens=limit))
    (read,) = translator.source_tokenizer.decode([translator.source_tokenizer.encode([line])[0][: limit - 1]])
    (cut,) = estimator.estimate([line], [translation], max_source_tokens=limit)
    (whole,) = estimator.estimate([line], [translation])
    assert cut.words == estimator.estimate([read], [translation])[0].words
    assert cut.words != whole.words
    with pytest.raises(ConfigError, match="max_source_tokens must be at least 2"):
        estimator.estimate([line], [translation], max_source_tokens=1)


@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_what_is_left_out_stands_in_the_line_as_it_was_given(kind):
    """The tokens of a line are those of its words alone: they know nothing of a second space, or of unknown letters."""
    text = ["the bird sees the bear", "here it is", "there, the other bread"] * 9
    tokenizer = train_tokenizer(text, kind=kind, vocab_size=40 if kind == "bpe" else None, seed=1)
    torch.manual_seed(1)
    sizes = dict(source_vocab_size=tokenizer.vocab_size, target_vocab_size=tokenizer.vocab_size)
    random = Translator.of(Transformer(ModelConfig.tiny(**sizes)).eval(), tokenizer, tokenizer)
    weights = (0.5, *[0.25] * (len(FEATURES) - 1))
    looking = dict(weights=weights, bias=-1.0, temperature=2.0, layer=0, heads=(0,), shift=0, omitted_below=100.0)
    everything = Calibration(**looking, omissions_found=0.5, false_alarms=0.02, lines=7, words=100, right=0.75)
    line = "  the  zebra   sees the  собака  bird "
    (translation,) = random.translations([line], SearchConfig(beam=1, max_length=9))
    (found,) = ConfidenceEstimator(random, everything).estimate([line], [translation])
    assert [word.text for word in found.omitted][-3:] == ["sees", "собака", "bird"]
    for word in found.omitted:
        assert line[word.start : word.end] == word.text
        assert (line[word.start - 1], line[word.end]) == (" ", " ")


def test_what_cannot_be_calibrated_is_refused_in_one_line(translator, taught, fitted):
    _, translations = fitted
    with pytest.raises(DataError, match="at least 100 words of translations, some right and some wrong, got"):
        fit_calibration(translator, taught.sources[:3], translations[:3], taught.targets[:3])
    with pytest.raises(DataError, match=r"at least 100 words of translations, .* got 0, of which 0 are right"):
        fit_calibration(translator, [], [], [])
    with pytest.raises(ConfigError, match="has no calibration for its weights: glassformer evaluate RUN"):
        ConfidenceEstimator(translator)
    with pytest.raises(ConfigError, match=r"^each line needs a translation, got 1 for 2 lines$"):
        ConfidenceEstimator(translator, fitted[0]).estimate(["a", "b"], translations[:1])
    [copied] = translator.translations(["a {x} b"], placeholders="default")
    estimator = ConfidenceEstimator(translator, fitted[0])
    with pytest.raises(ConfigError, match=r"translations\[0\] must be as the model wrote it, got .* whose tokens"):
        estimator.estimate(["a b"], [replace(translations[0], text="A   B")])
    with pytest.raises(ConfigError, match=r"translations\[0\] has '\{x\}', which isn't of the vocabulary"):
        estimator.estimate(["a {x} b"], [copied])
    with pytest.raises(DataError, match="1 translations do not match 2 references"):
        fit_calibration(translator, ["a"], translations[:1], ["a", "b"])
    with pytest.raises(DataError, match="nothing to measure"):
        measure_calibration(translator, fitted[0], [], [], [])
