"""Alignments from attention: of a small model that was taught, whose alignment is known, and of one that wasn't."""

from dataclasses import replace

import pytest
import torch
from msgspec import structs
from torch.testing import assert_close

from glassformer import Translator, Want
from glassformer.alignment.attention import (
    AttentionAligner,
    align_translation,
    links_of,
    tokenize_into_pieces,
    tokenize_lines,
)
from glassformer.alignment.choice import choose_heads
from glassformer.alignment.heads import AligningHeads, read_aligning_heads, write_heads
from glassformer.alignment.links import Link, error_rate
from glassformer.errors import ConfigError, DataError, RunError
from glassformer.run.names import ALIGNING
from glassformer.text.tokenizer import SubwordTokenizer, SymbolTokenizer

HEADS = AligningHeads(layer=1, heads=(2, 0), shift=1, agreement=0.75, chance=0.125, pairs=100)


@pytest.fixture
def translator(taught) -> Translator:
    return Translator.load(taught.folder, "cpu", "float32")


def test_a_model_that_has_learned_to_reverse_aligns_nearly_all_words_rightly(translator, taught):
    # Slow: the fixture trains the model, in 160 updates.
    heads = choose_heads(translator, taught.sources, taught.targets)
    assert heads.attention == "decoder.0.source_attention", "it is the one that was guided"
    assert heads.heads[0] == 0
    assert heads.agreement > 0.8
    assert heads.chance == pytest.approx(1 / 5.3, abs=0.1)
    links = [one.links for one in AttentionAligner(translator, heads).align(taught.sources, taught.targets)]
    assert error_rate(links, taught.links).aer < 0.1


def test_a_word_that_looks_at_the_end_above_all_has_no_link():
    weights = torch.tensor([[0.3, 0.3, 0.0], [0.0, 0.4, 0.6], [0.1, 0.2, 0.1], [0.0, 0.0, 0.0]])
    links = links_of(weights, torch.tensor([0.4, 0.0, 0.15, 0.0]))
    assert links == [Link(1, 1, 0.4), Link(1, 2, 0.2), Link(2, 1, 0.6)]


def test_the_choice_is_kept_and_read_again(translator, tmp_path):
    write_heads(tmp_path, HEADS)
    model = translator.engine.config
    assert read_aligning_heads(tmp_path / "none", model) is None
    with pytest.raises(RunError, match=r"aligning\.json names head 2 of decoder.1.source_attention, which this model"):
        read_aligning_heads(tmp_path, model)
    (tmp_path / ALIGNING).write_text('{"layer": 0, "heads": [], "shift": 0, "agreement": 1, "chance": 0, "pairs": 1}')
    with pytest.raises(
        RunError, match=r"aligning\.json is damaged, or not of glassformer: heads must be .* at least 1"
    ):
        read_aligning_heads(tmp_path, model)


def test_a_choice_counts_for_the_weights_that_it_was_made_for(translator, tmp_path):
    model, heads = translator.engine.config, structs.replace(HEADS, layer=0, heads=(0,))
    (tmp_path / "model.safetensors").write_bytes(b"before")
    write_heads(tmp_path, heads)
    assert read_aligning_heads(tmp_path, model) == heads
    (tmp_path / "model.safetensors").write_bytes(b"trained on")
    assert read_aligning_heads(tmp_path, model) is None
    write_heads(tmp_path, heads)
    assert read_aligning_heads(tmp_path, model) == heads


@pytest.fixture
def letters() -> SymbolTokenizer:
    return SymbolTokenizer("abcdefg")


@pytest.fixture
def random_translator(random_run, letters, tmp_path) -> Translator:
    random_run(tmp_path / "run", letters, letters)
    return Translator.load(tmp_path / "run", "cpu", "float32")


@pytest.mark.parametrize("shift", [0, 1])
def test_weights_are_those_that_observing_gives(random_translator, shift):
    """Of heads 2 and 0 of layer 1, as `read` observes them one pair at a time."""
    source, target = "a b c d e", "c g a"
    heads = AligningHeads(layer=1, heads=(2, 0), shift=shift, agreement=1.0, chance=0.0, pairs=1)
    pairs = [source, "b", "a c"], [target, "a b c d e f", "g"]  # others beside it, as long and longer
    found = AttentionAligner(random_translator, heads).align(*pairs)[0]
    observed = random_translator.read(source, target, attention={"source": Want(weights=True)}).attention
    expected = observed.source[1].weights[0, [2, 0]].mean(0)[shift : shift + 3, :-1]
    assert_close(found.weights, expected)
    assert [word.text for word in found.source] == source.split()
    assert {link.target for link in found.links} <= {0, 1, 2}
    for link in found.links:
        assert link.probability == pytest.approx(float(expected[link.target, link.source]), abs=1e-5)


def test_a_model_that_was_not_trained_is_refused(random_translator, reversed_symbols):
    sources, targets = zip(*(line.split("\t") for line in reversed_symbols(150, 3)), strict=True)
    message = r"^no head of this run aligns: the best, head \d of decoder.\d.source_attention, agrees by 0.\d+ with the"
    with pytest.raises(RunError, match=message):
        choose_heads(random_translator, sources, targets)


def test_a_few_pairs_are_too_few_to_choose_by(random_translator):
    with pytest.raises(DataError, match="takes at least 100 pairs to learn an alignment from, got 2: give more"):
        choose_heads(random_translator, ["a", "b", ""], ["b", "a", "c"])


def test_without_a_choice_it_says_how_to_make_one(random_translator):
    with pytest.raises(ConfigError, match=r"its weights: glassformer align \S*/run --source PAIRS\.tsv chooses them"):
        align_translation(random_translator, "a b", "b a")


def test_a_run_without_heads_on_the_source_is_not_told_to_choose_some(random_translator, monkeypatch):
    config = random_translator.engine.config
    none = {f"decoder.{n}.source_attention": 0 for n in range(config.decoder_layers)}
    monkeypatch.setattr(random_translator.engine, "config", replace(config, heads_left=none))
    with pytest.raises(RunError, match=r"no heads left in its attention to the source: nothing can align$"):
        AttentionAligner(random_translator)


def test_what_is_cut_off_has_words_as_the_rest_has(monkeypatch):
    monkeypatch.setattr("glassformer.alignment.attention.SearchConfig.max_source_tokens", 4)
    tokenizer = SubwordTokenizer.train(["我爱北京", "天安门"], kind="char", vocab_size=None, seed=1)
    with pytest.warns(UserWarning, match="is cut to its first 3"):
        (line,) = tokenize_lines(tokenizer, ["我爱北京天安门"], "source")
    assert [word.text for word in line.words] == list("我爱北京天安门")
    assert len(line.ids) == len(line.word_of) == 3
    with pytest.warns(UserWarning, match="is cut to its first 3"):
        (line,) = tokenize_into_pieces(tokenizer, ["我爱北京天安门"], "source")
    assert len(line.ids) == len(line.words) == 3


def test_lines_must_be_pairs_and_empty_ones_have_no_links(random_translator):
    heads = AligningHeads(layer=0, heads=(1,), shift=0, agreement=1.0, chance=0.0, pairs=1)
    aligner = AttentionAligner(random_translator, heads)
    assert [one.links for one in aligner.align(["", "a", ""], ["b", "", ""])] == [[], [], []]
    with pytest.raises(ConfigError, match=r"^align needs a target for each source, got 2 and 1$"):
        aligner.align(["a", "b"], ["b"])


def test_a_piece_that_stands_for_no_text_is_written_as_it_stands():
    tokenizer = SubwordTokenizer.train(["a man sings", "two men sing"] * 5, kind="char", vocab_size=None, seed=1)
    (line,) = tokenize_into_pieces(tokenizer, ["a man"], "source")
    assert [word.text for word in line.words] == ["\u2581", "a", "\u2581", "m", "a", "n"]
    assert [(word.start, word.end) for word in line.words] == [(0, 0), (0, 1), (1, 1), (2, 3), (3, 4), (4, 5)]
