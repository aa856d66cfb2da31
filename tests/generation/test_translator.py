import re

import pytest
import torch

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translation, Translator
from glassformer.text.tokenizer import EOS, SymbolTokenizer, Tokenizer, train_tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

WORDS = ["the cat sat", "a dog and a cat", "Grüße", "早上好", "on the mat", "b", "sat on a log and a mat", "dog"]
UNSEEN = ["Жук", "the Жук sat", "😀", "\u0301", "\x00", "\ufffd \u202e"]
GREEDY = SearchConfig(beam=1, max_length=13)
LONGEST = SearchConfig(beam=2, max_length=5, length_penalty=10.0)  # never an empty translation
BEAM = SearchConfig(beam=3, n_best=3, max_length=13, batch_tokens=40)


def random_model(seed: int, source_vocab: int, target_vocab: int, dropout: float = 0.0) -> Transformer:
    """Tiny, in float64 so that a batch and a line alone round alike, and with translations that differ."""
    torch.manual_seed(seed)
    config = ModelConfig.tiny(
        source_vocab_size=source_vocab,
        target_vocab_size=target_vocab,
        shared_vocab=False,
        d_model=8,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        d_ff=13,
        dropout=dropout,
    )
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.weight *= 0.5  # positions weigh more
        model.decoder[-1].feed_forward_norm.weight.normal_(std=2)
    return model


def make_translator(kind: str = "char", seed: int = 40, dropout: float = 0.0) -> Translator:
    source: Tokenizer = train_tokenizer(WORDS, kind=kind, vocab_size=None, seed=1)
    target = SymbolTokenizer(list("ABCDE"))
    return Translator(random_model(seed, source.vocab_size, target.vocab_size, dropout), source, target)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make_translator()


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_lines_of_any_length_come_back_in_their_order(translator, config):
    lines = [*WORDS, *WORDS[::-1], "cat " * 30, "a", "the dog " * 9]
    alone = [translator.translate([line], config)[0] for line in lines]
    assert len(set(alone)) > len(lines) / 3, "else order would not show"
    assert translator.translate(lines, config) == alone


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_an_odd_line_is_translated_without_a_change_to_its_neighbours(translator, config):
    alone = dict(zip(WORDS, translator.translate(WORDS, config), strict=True))
    odd = ["", "   ", "x" * 900, *UNSEEN]
    lines = [line for pair in zip(WORDS, [*odd, *odd], strict=False) for line in pair]
    found = translator.translate(lines, config)
    assert len(found) == len(lines)
    assert [(line, text) for line, text in zip(lines, found, strict=True) if line in alone] == list(alone.items())


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word", "symbols"])
def test_an_empty_line_stays_empty(kind):
    translator = make_translator(kind)
    assert translator.translate(["", "    ", ""], LONGEST) == ["", "", ""]
    found = translator.translate(["", "the cat sat", "  "], LONGEST)
    assert found == ["", *translator.translate(["the cat sat"], LONGEST), ""]
    assert found[1], "and the other line has a translation"


def test_no_lines_are_no_translations(translator):
    assert translator.translate([]) == []
    assert translator.translate_n_best([], BEAM) == []


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word", "symbols"])
def test_unseen_characters_are_translated_as_unknown(kind):
    translator = make_translator(kind)
    zh, yu, known = (translator.translate_n_best([line], GREEDY)[0][0] for line in ("ЖЖЖ", "ЮЮЮ", "dog"))
    assert zh == yu, "one unknown is like another"
    assert zh.log_prob != known.log_prob


def test_a_line_of_ten_thousand_characters_is_cut_with_a_warning_and_harms_nobody(translator):
    long = ("cat sat on " * 910)[:10_000]
    alone = translator.translate(WORDS, GREEDY)
    # one token for each character, and sentencepiece's space at the start
    with pytest.warns(UserWarning, match="^a source of 10,001 tokens is cut to its first 1,023: 'cat sat on.*'…$"):
        found = translator.translate([*WORDS[:3], long, *WORDS[3:]], GREEDY)
    assert [*found[:3], *found[4:]] == alone
    assert found[3] == translator.translate([long[:1_022]], GREEDY)[0], "what is left of it is translated"


def test_a_line_that_just_fits_is_not_cut(translator):
    config = SearchConfig(beam=1, max_length=13, max_source_tokens=7)
    # ▁ a b c d e and </s> are seven; a warning would be an error here
    assert translator.translate(["catsa"], config) == translator.translate(["catsa"], GREEDY)
    with pytest.warns(UserWarning, match="a source of 7 tokens is cut to its first 6: 'catsat'"):
        cut = translator.translate(["catsat"], config)
    assert cut == translator.translate(["catsa"], GREEDY)


@pytest.mark.parametrize("batch_tokens", [1, 13, 100, 100_000])
def test_the_size_of_batches_changes_nothing(translator, batch_tokens):
    lines = [*WORDS, "", *UNSEEN]
    config = SearchConfig(beam=2, max_length=13, batch_tokens=batch_tokens)
    assert translator.translate(lines, config) == translator.translate(
        lines, SearchConfig(beam=2, max_length=13, batch_tokens=57)
    )


def test_batches_hold_at_most_their_tokens_with_padding(translator, monkeypatch):
    shapes = []
    encode = translator.model.encode

    def seen(source, keep):
        shapes.append(tuple(source.shape))
        return encode(source, keep)

    monkeypatch.setattr(translator.model, "encode", seen)
    translator.translate(WORDS * 5, SearchConfig(beam=1, max_length=3, batch_tokens=60))
    assert all(rows * length <= 60 for rows, length in shapes)
    assert sum(rows for rows, _ in shapes) == 40
    assert len(shapes) < 20, "lines of like length share a batch"


def test_n_best_are_different_best_first_and_begin_with_the_translation(translator):
    found = translator.translate_n_best(WORDS, BEAM)
    for translations in found:
        assert [type(translation) for translation in translations] == [Translation] * 3
        scores = [translation.score for translation in translations]
        assert scores == sorted(scores, reverse=True)
        assert len({translation.text for translation in translations}) == 3
        assert all(translation.log_prob <= translation.score <= 0 for translation in translations)
    assert [translations[0].text for translations in found] == translator.translate(WORDS, BEAM)
    assert translator.translate_n_best(["", "b"], BEAM)[0] == [Translation("", 0.0, 0.0)]


def test_greedy_is_the_only_one_best(translator):
    for translations, text in zip(
        translator.translate_n_best(WORDS, GREEDY), translator.translate(WORDS, GREEDY), strict=True
    ):
        assert [translation.text for translation in translations] == [text]


def test_a_translation_is_at_most_three_tokens_a_source_token_and_fifty(translator):
    def tokens(line: str, config: SearchConfig) -> int:
        return len(translator.translate([line], config)[0].split())

    flat = SearchConfig(beam=2, length_penalty=10.0, max_length=100)
    assert tokens("b", flat) == 3 * 3 + 50  # ▁ b </s>
    assert tokens("the cat sat on a mat", flat) == 100
    assert tokens("b", LONGEST) == 5


def test_samples_repeat_with_the_seed_and_leave_the_global_generator_alone(translator):
    def draws(seed: int) -> list[list[Translation]]:
        config = SearchConfig(sample=True, temperature=1.5, n_best=5, seed=seed, max_length=13)
        return translator.translate_n_best(WORDS, config)

    before = torch.get_rng_state()
    first = draws(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert first == draws(1) != draws(2)
    for translations in first:
        scores = [translation.score for translation in translations]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
    assert any(len({translation.text for translation in translations}) > 1 for translations in first)


def test_progress_adds_up_to_the_lines(translator):
    done: list[int] = []
    translator.translate(WORDS * 3, SearchConfig(beam=1, max_length=3, batch_tokens=60), done.append)
    assert sum(done) == 24
    assert len(done) > 1, "reported on the way"
    assert min(done) >= 1


def test_dropout_is_off_while_translating_and_the_mode_is_left_as_it_was():
    translator = make_translator(dropout=0.5)
    expected = translator.translate(WORDS, GREEDY)
    assert not translator.model.training
    translator.model.train()
    assert translator.translate(WORDS, GREEDY) == expected
    assert translator.model.training
    with pytest.raises(RuntimeError, match="stop"):
        translator.translate(WORDS, GREEDY, progress=lambda lines: (_ for _ in ()).throw(RuntimeError("stop")))
    assert translator.model.training, "also after an error"


def test_translating_leaves_no_gradient_and_no_trace(translator):
    before = {name: value.clone() for name, value in translator.model.state_dict().items()}
    translator.translate(WORDS, BEAM)
    assert all(parameter.grad is None for parameter in translator.model.parameters())
    after = translator.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_without_settings_it_searches_as_searchconfig_says(translator):
    assert translator.translate(WORDS[:3]) == translator.translate(WORDS[:3], SearchConfig())


def test_a_warning_shows_the_beginning_of_a_line_only(translator):
    config = SearchConfig(beam=1, max_length=3, max_source_tokens=5)
    with pytest.warns(UserWarning, match=re.escape(f"{'on ' * 13 + 'o'!r}…")):
        translator.translate(["on " * 50], config)


def test_a_score_is_the_sum_of_the_targets_log_probabilities(translator):
    sources = ["the cat", "a", "on the mat and the dog", "", "b"]
    targets = ["A B", "", "C", "A A", "E D C B A E D C B A"]
    model = translator.model
    expected = []
    for source, target in zip(sources, targets, strict=True):
        (source_ids,), (target_ids,) = (
            tokenizer.encode([line])
            for tokenizer, line in ((translator.source_tokenizer, source), (translator.target_tokenizer, target))
        )
        ids = [*target_ids, EOS]
        with torch.no_grad():
            logits = model(torch.tensor([[*source_ids, EOS]]), torch.tensor([[model.target_pad, *target_ids]]))
        expected.append(sum(row[i].item() for row, i in zip(logits[0].log_softmax(-1), ids, strict=True)))
    for batch_tokens in (1, 20, 4096):
        found = translator.score(sources, targets, SearchConfig(batch_tokens=batch_tokens))
        assert found == pytest.approx(expected, abs=1e-9)


def test_scores_count_their_progress_and_leave_the_mode_as_it_was():
    translator = make_translator(dropout=0.5)
    translator.model.train()
    done: list[int] = []
    first = translator.score(["cat", "a", "b"], ["A", "B C", "D"], progress=done.append)
    assert sum(done) == 3
    assert translator.score(["cat", "a", "b"], ["A", "B C", "D"]) == first
    assert translator.model.training
    assert translator.score([], []) == []


def test_scores_need_pairs(translator):
    with pytest.raises(ConfigError, match="score needs a target for each source, got 2 sources, 1 targets"):
        translator.score(["a", "b"], ["a"])
    with pytest.raises(TypeError, match=r"sources and targets must be sequences of lines, got one str: pass \[line\]"):
        translator.score("a", "b")


def test_a_cut_target_says_that_it_is_one(translator):
    config = SearchConfig(max_source_tokens=5)
    with pytest.warns(UserWarning, match="^a target of 6 tokens is cut to its first 4: 'A B C D E A'"):
        found = translator.score(["b"], ["A B C D E A"], config)
    assert found == translator.score(["b"], ["A B C D"], config)
