"""Features of a translation's words, beside what `Translator.read` and `score` say of it."""

import math

import pytest
import torch
from torch.testing import assert_close

from glassformer import SearchConfig, Translator, Want
from glassformer.confidence.features import FEATURES, Looking, observe_words
from glassformer.text.tokenizer import SubwordTokenizer, SymbolTokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

LOOKING = Looking(layer=1, heads=(2, 0), shift=0)
PAIRS = [("a b c", "c b"), ("", "a"), ("g f e d c b a", "a b c d e"), ("d", "")]


@pytest.fixture
def translator(random_run, tmp_path) -> Translator:
    letters = SymbolTokenizer("abcdefg")
    random_run(tmp_path / "run", letters, letters)
    return Translator.load(tmp_path / "run", "cpu", "float32")


def test_features_are_those_of_each_pair_read_alone(translator):
    sources, targets = zip(*PAIRS, strict=True)
    here, there = translator.source_tokenizer.encode(sources), translator.target_tokenizer.encode(targets)
    found = observe_words(translator, here, there, LOOKING)
    assert [(len(one.source), len(one.words)) for one in found] == [(3, 2), (0, 1), (7, 5), (1, 0)]
    for (source, target), one in zip(PAIRS, found, strict=True):
        if not one.source or not one.words:
            assert not one.features.any()
            continue
        read = translator.read(source, target, SearchConfig(), attention={"source": Want(weights=True)})
        weights = read.attention.source[1].weights[0, [2, 0]].mean(0)[:-1]
        log_probs = torch.tensor(read.token_log_probs)
        assert_close(one.looks_at, weights[:, :-1], atol=1e-5, rtol=1e-4)
        assert_close(one.coverage, (weights[:, :-1] * log_probs[:-1, None].exp()).sum(0), atol=1e-5, rtol=1e-4)
        assert one.probabilities() == pytest.approx(log_probs[:-1].exp().tolist(), abs=1e-4)
        column = dict(zip(FEATURES, one.features.T, strict=True))
        entropies = -(weights * weights.log()).sum(1)
        assert_close(column["attention_entropy"], entropies, atol=1e-4, rtol=1e-3)
        assert column["line_log_prob"].tolist() == pytest.approx([float(log_probs.mean())] * len(one.words), abs=1e-4)
        assert column["line_length"].tolist() == pytest.approx([math.log(len(one.words))] * len(one.words))
        assert 0 < float(column["entropy"].min()) <= math.log(translator.engine.config.target_vocab_size) + 1e-5


def test_the_code_of_a_language_is_no_word_that_could_be_left_out(random_run, tmp_path):
    made = SubwordTokenizer.train(["a b c", "ab bc"] * 5, kind="unigram", vocab_size=None, seed=1)
    pieces = ["</s>", "<unk>", ">>deu<<", *made.tokens(range(2, made.pad)), "<pad>"]
    tokenizer = VocabularyTokenizer(made.proto, {piece: i for i, piece in enumerate(pieces)})
    random_run(tmp_path / "run", tokenizer, tokenizer)
    translator = Translator.load(tmp_path / "run", "cpu", "float32")
    sources, (target,) = tokenizer.encode([">>deu<< a b", ">>deu<<", "a b"]), tokenizer.encode(["b a"])
    coded, alone, plain = observe_words(translator, sources, [target] * 3, LOOKING)
    assert [word.text for word in coded.source] == [word.text for word in plain.source] == ["a", "b"]
    assert coded.looks_at.shape == (2, 2)
    assert coded.source[0].first == 1
    assert alone.source == []
