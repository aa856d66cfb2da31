"""HTML and XML translated by small models: what is text is translated as it always is, what is markup stays."""

import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer import Glossary, SearchConfig, Translator, translate_markup
from glassformer.alignment.attention import AttentionAligner
from glassformer.alignment.heads import AligningHeads
from glassformer.errors import ArgumentError, ConfigError, DataError
from glassformer.generation.files import Cuts, FileCounts, LineDemands
from glassformer.markup.aligning import TagAligner
from glassformer.markup.files import translate_tagged_lines
from glassformer.markup.place import place_tags
from glassformer.markup.segments import Document, escape_text
from glassformer.text.tokenizer import SymbolTokenizer, train_tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SEARCH = SearchConfig(beam=2, max_length=12)
TAG = re.compile(r"<[^<>]*>")


@pytest.fixture(scope="module")
def untaught() -> Translator:
    """A model with random weights, which reads characters and writes some words."""
    source = train_tokenizer(["abc defg & < 123 ijkl"], kind="char", vocab_size=None, seed=1)
    target = SymbolTokenizer(["x", "y<", "&", "zz"])
    vocabularies = dict(source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, shared_vocab=False)
    model = Transformer(ModelConfig(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=13, **vocabularies))
    return Translator.of(model.eval(), source, target)


def test_tags_stand_where_the_links_say(untaught):
    texts = ["<p>a <b>c d</b> <i>e</i></p>f g", "ab <a href='x'>123 <u>k</u></a>", "", "<br>", "&amp; <x/>"]
    found = translate_markup(untaught, texts, "html", SEARCH)
    assert found[2:4] == ["", "<br>"]
    for text, output in zip(texts, found, strict=True):
        document = Document(text, "html")
        sources = [segment.text for segment in document.segments]
        targets = untaught.translate(sources, SEARCH)
        pairs = TagAligner(untaught).align(sources, targets)
        expected = [
            place_tags(segment, pair.source, target, pair.target, pair.links)
            for segment, target, pair in zip(document.segments, targets, pairs, strict=True)
        ]
        assert output == document.joined(expected)


def test_text_without_tags_is_translated_as_ever(untaught):
    lines = ["abc defg", "1 2 3", "", "g f e d"]
    told = list[int]()
    expected = [escape_text(line) for line in untaught.translate(lines, SEARCH)]
    assert translate_markup(untaught, lines, "html", SEARCH) == expected
    assert translate_markup(untaught, lines, "xml", SEARCH, told.append) == expected
    assert sum(told) == 3


def test_what_stays_as_it_is_is_copied_where_its_word_would_be(untaught):
    [found] = translate_markup(untaught, ['a <s translate="no">&eacute; <b>A</b></s> <i>c</i>'], "html", SEARCH)
    assert sorted(TAG.findall(found)) == sorted(['<s translate="no">', "<b>", "</b>", "</s>", "<i>", "</i>"])
    assert '<s translate="no">&eacute; <b>A</b></s>' in found


def test_a_glossary_and_placeholders_are_heeded(untaught):
    glossary = Glossary({"abc": "zz"})
    [found] = translate_markup(untaught, ["abc <b>{x}</b> c"], "xml", SEARCH, glossary=glossary, placeholders="default")
    assert "zz" in found
    assert "<b>{x}</b>" in found
    lines = ["<b>abc</b> d <i>e</i>", "d <i>abc</i>, <b>e</b>", "d e <b>f <i>abc</i></b>"]
    for found in translate_markup(untaught, lines, "html", SEARCH, glossary=glossary):
        assert re.search(r"<(b|i)>[^<]*zz[^<]*</\1>", found), "the term keeps its tag, wherever the model looks"


CONTENT = st.recursive(
    st.sampled_from(["abc", "d e", " ", "fg, ", "&amp;", "<x/>", "1<img/>2", "<code>k</code>", "<!--c-->"]),
    lambda inner: st.tuples(st.sampled_from("ijl"), st.lists(inner, max_size=3)).map(
        lambda one: f'<{one[0]} id="{len(one[1])}">{"".join(one[1])}</{one[0]}>'
    ),
    max_leaves=8,
)


@settings(max_examples=12, deadline=None)
@given(lines=st.lists(st.lists(CONTENT, max_size=4).map("".join), max_size=8), format=st.sampled_from(["html", "xml"]))
@pytest.mark.usefixtures("unchecked")
def test_whatever_the_model_no_tag_is_lost_doubled_or_changed(untaught, lines, format):
    found = translate_markup(untaught, lines, format, SearchConfig(beam=2, max_length=8))
    for line, output in zip(lines, found, strict=True):
        assert Counter(TAG.findall(output)) == Counter(TAG.findall(line))
        ElementTree.fromstring(f"<r>{output}</r>")
    documents = [Document(line, format) for line in lines]
    documents = [one for one, line in zip(documents, lines, strict=True) if "<code>" not in line]
    texts = [segment.text for one in documents for segment in one.segments]
    plain = iter(untaught.translate(texts, SearchConfig(beam=2, max_length=8)))
    for document, output in zip(documents, (one for one in found if "<code>" not in one), strict=True):
        expected = "".join(next(plain) for _ in document.segments)
        text = "".join(ElementTree.fromstring(f"<r>{output}</r>").itertext())
        assert "".join(text.split()) == "".join(expected.split())


def test_tags_of_a_paragraph_stand_in_their_sentences(untaught):
    text = "<p>ab cd. <i>De fg!</i> Gi <b>gi</b>? <u>Ij kl.</u></p>"
    sentences = ["ab cd.", "De fg!", "Gi gi?", "Ij kl."]
    search = SearchConfig(beam=2, max_length=64)  # a sentence may have half of it
    first, second, third, fourth = map(escape_text, untaught.translate(sentences, search))
    [found] = translate_markup(untaught, [text], "html", search, segment="paragraph")
    assert "".join(re.split("<[/a-z]+>", found)) == f"{first} {second} {third} {fourth}"
    assert re.search("<i>(.+)</i>", found)[1] in second
    assert re.search("<u>(.+)</u>", found)[1] in fourth
    assert found.index(first) < found.index("<i>") < found.index("<b>") < found.index("<u>")
    together = translate_markup(untaught, [text], "html", search, segment="paragraph", sentences=2)
    two = untaught.translate(["ab cd. De fg!", "Gi gi? Ij kl."], search)
    assert re.sub("<[/a-z]+>", "", together[0]) == escape_text(" ".join(two))


@settings(max_examples=8, deadline=None)
@given(lines=st.lists(st.lists(st.one_of(CONTENT, st.just("e. G")), max_size=4).map("".join), max_size=4))
@pytest.mark.usefixtures("unchecked")
def test_no_tag_of_a_paragraph_is_lost_doubled_or_changed(untaught, lines):
    found = translate_markup(untaught, lines, "html", SearchConfig(beam=1, max_length=8), segment="paragraph")
    for line, output in zip(lines, found, strict=True):
        assert Counter(TAG.findall(output)) == Counter(TAG.findall(line))
        ElementTree.fromstring(f"<r>{output}</r>")


def test_without_a_choice_all_heads_of_the_last_layer_but_one_align(untaught, random_run, tmp_path):
    letters = SymbolTokenizer("abcdefg")
    random_run(tmp_path / "run", letters, letters, decoder_layers=3)
    loaded = Translator.load(tmp_path / "run", "cpu", "float32")
    aligner = TagAligner(loaded)
    assert not aligner.is_chosen
    assert not TagAligner(untaught).is_chosen, "it has no folder"
    heads = AligningHeads(layer=1, heads=(0, 1, 2), shift=0, agreement=0.0, chance=0.0, pairs=0)
    expected = AttentionAligner(loaded, heads).align(["a b c", "d"], ["c a", "e f"])
    assert [pair.links for pair in aligner.align(["a b c", "d"], ["c a", "e f"])] == [one.links for one in expected]


def test_copies_are_linked_to_themselves_and_to_nothing_else(untaught):
    pattern = re.compile(r"\{\w+\}")
    [pair] = TagAligner(untaught).align(["a {x} {y} {x}"], ["{y} {x} b {x}"], pattern)
    assert [word.text for word in pair.source] == ["a", "{x}", "{y}", "{x}"]
    links = {(link.source, link.target) for link in pair.links if link.source > 0}
    assert links == {(2, 0), (1, 1), (3, 3)}
    assert {link.target for link in pair.links if link.source == 0} <= {2}


def test_words_are_as_small_as_tokens_allow(random_run, tmp_path):
    tokenizer = train_tokenizer(["你好 世界 cat, dog don't" for _ in range(9)], kind="bpe", vocab_size=36, seed=1)
    random_run(tmp_path / "run", tokenizer, tokenizer, shared=True)
    [pair] = TagAligner(Translator.load(tmp_path / "run", "cpu", "float32")).align(["cat, dog 你好!"], ["你好"])
    assert "".join(word.text for word in pair.source) == "cat,dog你好!"
    assert {word.text for word in pair.source} >= {"cat", "dog"} or "cat," in {word.text for word in pair.source}
    surfaces = tokenizer.surfaces("你好")
    assert [word.text for word in pair.target] == surfaces


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_is_said_in_a_sentence(untaught):
    with pytest.raises(DataError, match=r"^texts\[1\]: it is not well-formed xml \(mismatched tag at character 4\)"):
        translate_markup(untaught, ["a", "a</b>"], "xml")
    with pytest.raises(ConfigError, match=r"^format must be one of xml and html, got 'plain'$"):
        translate_markup(untaught, ["a"], "plain")
    with pytest.raises(ConfigError, match=r"^text with tags has one translation, got n_best 2: leave it out$"):
        translate_markup(untaught, ["a"], "html", SearchConfig(n_best=2))
    with pytest.raises(
        ConfigError, match=r"^text with tags is translated by a search, not by drawing: leave out `sample`"
    ):
        translate_markup(untaught, ["a"], "html", SearchConfig(sample=True))
    with pytest.raises(ArgumentError, match=r"^texts must be a sequence of lines, got one str: pass \[line\]"):
        translate_markup(untaught, "a", "html")


def test_a_run_without_attention_to_the_source_cannot_place_tags():
    letters = SymbolTokenizer("ab")
    sizes = dict(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=13, shared_vocab=False)
    vocabularies = dict(source_vocab_size=letters.vocab_size, target_vocab_size=letters.vocab_size)
    model = Transformer(ModelConfig(**sizes, **vocabularies, heads_left={"decoder.0.source_attention": 0}))
    bare = Translator.of(model.eval(), letters, letters)
    with pytest.raises(
        ConfigError, match=r"^tags find their words by the attention to the source, of which this run has"
    ):
        translate_markup(bare, ["a <b>b</b> a"], "html", SEARCH)
    assert translate_markup(bare, ["<b>a</b>"], "html", SEARCH)[0].startswith("<b>"), "nothing needs to be aligned"


def test_a_line_of_several_segments_is_counted_once(untaught):
    """Each of its segments that was cut was counted as a line."""
    counts = FileCounts()
    wanted = LineDemands(glossary=Glossary({"abc": "zz"}))
    lines, search = ["<br>", "<p>abc</p><p>abc</p>"], SearchConfig(min_length=2, max_length=2)
    written = translate_tagged_lines(untaught, lines, 5, "html", search, wanted, counts)
    assert written.count(b"zz") >= 2
    assert (counts.cuts, counts.terms.lines, counts.terms.terms) == (Cuts(1, 6), 1, 2)
