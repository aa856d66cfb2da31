"""Translation of paragraphs: that of their sentences, nothing cut without a word."""

import pytest
import torch

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import Cuts, translate_file
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.lines import LexicalUse
from glassformer.generation.lexical.placeholders import compiled
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
    with pytest.raises(ConfigError, match="`prefixes` are those of lines"):
        translate_file(translator, tmp_path / "in", tmp_path / "out", prefixes=tmp_path / "in", segment="paragraph")
    with pytest.raises(ConfigError, match="`sentences` 2 needs `segment` paragraph: a line goes through"):
        translate_file(translator, tmp_path / "in", tmp_path / "out", sentences=2)
    with pytest.raises(ConfigError, match="sentences must be at least 1, got 0"):
        translate_paragraphs(translator, ["Aa"], sentences=0)
    with pytest.raises(ConfigError, match="glossary must be one for each line, got 1 for 2 lines"):
        translate_paragraphs(translator, ["Aa", "Bb"], glossary=[None])
    with pytest.raises(ConfigError, match="segment must be one of line, paragraph, got 'page'"):
        translate_file(translator, tmp_path / "in", tmp_path / "out", segment="page")


def test_sentences_go_together_where_the_run_was_trained_so_or_a_number_says_it(random_run, tmp_path):
    words = SymbolTokenizer(["Aa", "Bb", "Aa.", "Bb."])
    random_run(tmp_path / "alone", words, words)
    random_run(tmp_path / "joined", words, words, settings={"join_lines": 2})
    alone, joined = (Translator.load(tmp_path / name, "cpu", "float32") for name in ("alone", "joined"))
    assert (alone.sentences, joined.sentences) == (1, 2)
    line, search = "Aa Bb. Bb Aa. Aa.", SearchConfig(beam=2, max_length=16)
    [by_default] = translate_paragraphs(joined, [line], search)
    with pytest.warns(match=r"learned to read 1 sentence at once: given 2, .*; train with --join-lines 2"):
        [by_number] = translate_paragraphs(alone, [line], search, sentences=2)
    first, second = joined.translate(["Aa Bb. Bb Aa.", "Aa."], search)
    assert by_default.text == by_number.text == f"{first} {second}"
    [one_by_one] = translate_paragraphs(joined, [line], search, sentences=1)
    assert one_by_one.text == " ".join(joined.translate(["Aa Bb.", "Bb Aa.", "Aa."], search))
    short = segments_that_fit(joined, line, SearchConfig(max_length=6), 3)
    assert short.texts == ["Aa Bb.", "Bb Aa. Aa."], "at most half of max_length"


def test_terms_and_placeholders_are_in_the_sentences_that_have_them(translator):
    glossary, search = Glossary({"Aa": "Bb", "Bb. Aa": "Bb Bb"}), SearchConfig(beam=2, max_length=12)
    lines = ["Aa {a. B}. Bb %s!", "Bb. Aa Bb."]
    rules = dict(glossary=glossary, placeholders=r"\{[^}]*\}|%s")
    first, second = translate_paragraphs(translator, lines, search, **rules)
    alone = translator.translations(["Aa {a. B}.", "Bb %s!"], search, **rules)
    assert first.text == " ".join(one.text for one in alone)
    assert (first.text.count("{a. B}"), first.text.count("%s")) == (1, 1)
    assert first.lexical == alone[0].lexical + alone[1].lexical
    assert (first.lexical.terms, first.lexical.placeholders, first.lexical.missing) == (1, 2, ())
    [whole] = translator.translations(["Bb. Aa Bb."], search, **rules)
    assert (second.text, second.lexical) == (whole.text, whole.lexical), "no sentence ends within a term"
    assert second.score == pytest.approx(whole.score)
    mixed = translate_paragraphs(translator, ["Aa. Bb.", "Aa."], search, glossary=[None, glossary])
    assert mixed[0].lexical == LexicalUse()
    assert mixed[1].lexical.terms == 1
    assert "Bb" in mixed[1].text


def test_a_placeholder_is_one_token_and_is_never_split(translator):
    search = SearchConfig(max_length=8)
    line = "Aa {" + "x" * 40 + "} Bb Aa Bb Aa"
    found = segments_that_fit(translator, line, search, pattern=compiled(r"\{x*\}"))
    assert found.texts == ["Aa {" + "x" * 40 + "}", "Bb Aa Bb Aa"]


def test_a_file_of_paragraphs_has_its_terms_counted(translator, tmp_path):
    (tmp_path / "in").write_text("Aa. Aa Bb.\n\nBb.\nAa.\n")
    settings = dict(config=SEARCH, segment="paragraph", sentences=2, glossary=Glossary({"Aa": "Bb"}))
    counts = translate_file(translator, tmp_path / "in", tmp_path / "out", **settings)
    assert (counts.terms.lines, counts.terms.terms, counts.terms.missing) == (2, 3, [])
    assert [line.count("Bb") > 0 for line in (tmp_path / "out").read_text().splitlines()][0::3] == [True, True]
