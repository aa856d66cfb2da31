"""Translation of paragraphs: that of their sentences, nothing cut without a word."""

import pytest
import torch

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import Cuts, translate_file
from glassformer.generation.segments.paragraphs import segments_that_fit, translate_paragraphs
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SEARCH = SearchConfig(beam=2, max_length=8)


@pytest.fixture(scope="module")
def translator() -> Translator:
    """A model of random weights over words, some with a full stop."""
    words = SymbolTokenizer(["Aa", "Bb", "Aa.", "Bb."])
    torch.manual_seed(3)
    sizes = ModelConfig.tiny(source_vocab_size=words.vocab_size, target_vocab_size=words.vocab_size)
    return Translator.of(Transformer(sizes), words, words, "float32")


def test_a_paragraph_is_its_sentences(translator):
    first, second = translator.translations(["Aa Bb.", "Bb Aa."], SEARCH)
    both, empty, alone = translate_paragraphs(translator, ["Aa Bb.  Bb Aa.", " ", "Aa Bb."], SEARCH)
    assert both.text == f"{first.text}  {second.text}"
    assert both.tokens == first.tokens + second.tokens
    assert both.log_prob == pytest.approx(sum(both.token_log_probs), abs=1e-4)
    assert both.score == pytest.approx(both.log_prob / len(both.token_log_probs))
    assert (empty.text, empty.score, empty.cut) == (" ", 0.0, False)
    assert (alone.text, alone.score) == (first.text, pytest.approx(first.score))


def test_a_sentence_too_long_for_the_limits_is_split_and_none_of_it_cut(translator):
    line = " ".join(["Aa", "Bb"] * 9)
    pieces = segments_that_fit(translator, line, SEARCH)
    assert " ".join(pieces.texts) == line
    assert max(len(piece.split()) for piece in pieces.texts) <= SEARCH.max_length // 2
    narrow = segments_that_fit(translator, line, SearchConfig(max_source_tokens=3))
    assert max(len(piece.split()) for piece in narrow.texts) == 2


def test_what_reaches_the_limit_says_so(translator, tmp_path):
    lines = ["Aa", "Bb Aa", ""]
    whole, cut = (translator.translations(lines, SearchConfig(beam=1, max_length=n, min_length=n)) for n in (1, 3))
    found = [len(one.token_log_probs) == len(one.tokens) for one in [*whole, *cut]]
    assert [one.cut for one in [*whole, *cut]] == [
        ends and bool(line) for ends, line in zip(found, lines * 2, strict=True)
    ]
    assert cut[0].cut
    assert not cut[2].cut
    (tmp_path / "in").write_text("\nAa\nBb\n")
    cuts = translate_file(
        translator, tmp_path / "in", tmp_path / "out", config=SearchConfig(max_length=3, min_length=3)
    ).cuts
    assert cuts == Cuts(2, 2)
    assert str(cuts) == "2 translations were cut at the limit of tokens, the first of line 2"


def test_a_file_is_translated_by_paragraphs_and_only_so_resumed(translator, tmp_path):
    (tmp_path / "in").write_text("Aa Bb.  Bb Aa.\nAa\n")
    translate_file(translator, tmp_path / "in", tmp_path / "out", config=SEARCH, segment="paragraph")
    expected = [one.text for one in translate_paragraphs(translator, ["Aa Bb.  Bb Aa.", "Aa"], SEARCH)]
    assert (tmp_path / "out").read_text().splitlines() == expected


@pytest.mark.usefixtures("unchecked")
def test_what_a_paragraph_can_not_have_is_refused(translator, tmp_path):
    (tmp_path / "in").write_text("Aa\n")
    with pytest.raises(ConfigError, match="n_best must be 1, got 2"):
        translate_paragraphs(translator, ["Aa"], SearchConfig(n_best=2))
    with pytest.raises(ConfigError, match="prefixes are those of lines"):
        translate_file(translator, tmp_path / "in", tmp_path / "out", prefixes=tmp_path / "in", segment="paragraph")
    with pytest.raises(ConfigError, match="segment must be one of line, paragraph, got 'page'"):
        translate_file(translator, tmp_path / "in", tmp_path / "out", segment="page")
