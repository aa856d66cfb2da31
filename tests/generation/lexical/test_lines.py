"""Translations that contain what they must, of models that know nothing of it: whatever their weights are."""

import random
import re
import warnings
from collections import Counter
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.want import Want
from glassformer.errors import ArgumentError, ConfigError
from glassformer.generation.attention import observe_translation
from glassformer.generation.config import SearchConfig
from glassformer.generation.kernels.quantized import can_quantize
from glassformer.generation.lexical.demands import Demand, Demands, State, Vocabulary
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.placeholders import protect
from glassformer.generation.lexical.search import LexicalSearch, _written
from glassformer.generation.translator import Translation, Translator
from glassformer.text.tokenizer import EOS, SymbolTokenizer, train_tokenizer
from glassformer.text.units import count_of
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCE = ["cat", "dog", "red", "house", "on", "the", "sat", "Anna"]
TARGET = ["Katze", "Hund", "rot", "Haus", "auf", "der", "saß", "Anna", "ein", "Haustür", "Hunde"]
CHINESE = ["猫", "狗", "红色", "房子", "在", "坐着", "安娜", "一个"]
TEXT = {"target": TARGET, "chinese": CHINESE}
PLACEHOLDERS = ["{name}", "{0}", "%s", "%1$d", "https://x.y/z", "a@b.org", '<x id="1"/>', "{a}{b}"]
KINDS = ["symbols", "char", "bpe", "unigram", "word"]


def lines_of(words: list[str], count: int, seed: int, joint: str = " ") -> list[str]:
    draw = random.Random(seed)
    return [joint.join(draw.choices(words, k=draw.randint(1, 6))) for _ in range(count)]


@cache
def make(kind: str, target: str = "target", *, without_heads: bool = False) -> Translator:
    """A translator with random weights, in float64, so that a line alone and in a batch round alike."""
    joint = "" if target == "chinese" else " "
    source = train_tokenizer(lines_of(SOURCE, 200, 1), kind="char", vocab_size=None, seed=1)
    size = {"bpe": 60, "unigram": 30}.get(kind)
    text = lines_of(TEXT[target], 300, 2, joint)
    written = train_tokenizer(text, kind=kind, vocab_size=size if target == "target" else None, seed=1)
    vocabularies = dict(source_vocab_size=source.vocab_size, target_vocab_size=written.vocab_size, shared_vocab=False)
    sizes = dict(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=13, dropout=0.0)
    left = {"decoder.0.source_attention": 0} if without_heads else {}
    torch.manual_seed(5)
    model = Transformer(ModelConfig(**sizes, **vocabularies, heads_left=left)).double().eval()
    with torch.no_grad():
        model.decoder[-1].feed_forward_norm.weight.normal_(std=2)
    return Translator.of(model, source, written)


def placeholders_of(text: str) -> Counter[str]:
    return Counter(protect(text).placeholders)


def assert_met(found: Translation, line: str, glossary: Glossary) -> None:
    matches = glossary.find(line)
    for match in matches:
        same = sum(other.forms == match.forms for other in matches)
        assert count_of(match.forms, found.text) >= same, (line, found.text, match)
    assert found.lexical is not None
    assert (found.lexical.terms, found.lexical.missing) == (len(matches), ())


GLOSSARIES = st.dictionaries(
    st.lists(st.sampled_from(SOURCE), min_size=1, max_size=2).map(" ".join),
    st.lists(st.lists(st.sampled_from(TARGET), min_size=1, max_size=2).map(" ".join), min_size=1, max_size=3),
    max_size=5,
)
LINES = st.lists(st.lists(st.sampled_from([*SOURCE, *PLACEHOLDERS]), max_size=6).map(" ".join), min_size=1, max_size=3)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(terms=GLOSSARIES, lines=LINES, beam=st.sampled_from([1, 2, 4]))
@example(  # in characters both forms begin with a space, and there is room for the shorter one alone
    terms={"Anna": ["Hund Anna", "Katze"], "cat cat": ["Katze Katze"]}, lines=["Anna cat Anna cat cat Anna"], beam=2
)
def test_terms_are_there_and_placeholders_are_copied_whatever_the_model(kind, terms, lines, beam):
    glossary = Glossary(terms)
    translator = make(kind)
    config = SearchConfig(beam=beam, n_best=min(beam, 2), max_length=40)
    found = translator.translate_n_best(lines, config, glossary=glossary, placeholders="default")
    for line, best in zip(lines, found, strict=True):
        for one in best:
            assert_met(one, protect(line).text, glossary)
            inside, outside = Counter(protect(line).placeholders), one.text
            assert all(outside.count(text) >= count for text, count in inside.items()), (line, outside)
            assert one.lexical.placeholders == sum(inside.values())


@pytest.mark.parametrize("kind", ["char", "unigram"])
@pytest.mark.parametrize("beam", [1, 3])
def test_in_chinese_terms_are_any_part_of_a_line(kind, beam):
    glossary = Glossary({"cat": "房子", "dog": ["狗", "猫"], "red house": "红色房子", "Anna": "安娜"})
    lines = ["the cat sat on Anna", "red house dog dog", "{x} cat"]
    config = SearchConfig(beam=beam, max_length=40)
    found = make(kind, "chinese").translations(lines, config, glossary=glossary, placeholders="default")
    for line, one in zip(lines, found, strict=True):
        assert_met(one, line, glossary)
        assert one.text.count("{x}") == line.count("{x}")


@pytest.mark.parametrize("kind", KINDS)
def test_what_nothing_is_demanded_of_is_as_without_rules(kind):
    """And so is a line that has its term by itself."""
    translator, lines = make(kind), lines_of(SOURCE, 12, 3)
    config = SearchConfig(beam=3, n_best=2, max_length=9)
    plain = translator.translate_n_best(lines, config)
    own = next((word for best in plain for word in TARGET if all(count_of([word], one.text) for one in best)), None)
    number = next((n for n, best in enumerate(plain) if own and all(count_of([own], one.text) for one in best)), None)
    glossaries = [None] * len(lines)
    if number is not None and lines[number]:
        glossaries[number] = Glossary({lines[number].split()[0]: own})
    glossaries[5] = Glossary({"nowhere": "Katze"})
    found = translator.translate_n_best(lines, config, glossary=glossaries, placeholders="default")
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in plain]
    assert [[one.score for one in best] for best in found] == [[one.score for one in best] for best in plain]
    assert sum(best[0].lexical.forced for best in found) == 0


def test_forced_terms_are_counted_and_occurrences_too():
    glossary = Glossary({"cat": "Haustür"})
    (found,) = make("char").translations(["cat on cat"], SearchConfig(max_length=60), glossary=glossary)
    assert count_of(["Haustür"], found.text) >= 2
    assert (found.lexical.terms, found.lexical.forced) == (2, 2)
    assert found.log_prob == pytest.approx(sum(found.token_log_probs))


def test_a_line_that_is_cut_has_the_terms_of_its_rest_too():
    """A term of tokens that weren't read was looked for beyond the source's end."""
    glossary = Glossary({"dog": "Haustür"})
    config = SearchConfig(beam=2, max_length=40, max_source_tokens=4)
    with pytest.warns(UserWarning, match="is cut to its first 3"):
        (found,) = make("char").translations(["cat on {x} dog"], config, glossary=glossary, placeholders="default")
    assert (count_of(["Haustür"], found.text), found.text.count("{x}")) == (1, 1)
    assert found.lexical.missing == ()


def test_forms_that_overlap_are_one_occurrence():
    glossary = Glossary({"cat": ["Haustür", "rote Haustür"]})
    (found,) = make("char").translations(["cat on cat"], SearchConfig(max_length=60), glossary=glossary)
    assert found.text.count("Haustür") >= 2
    assert found.lexical.missing == ()


def test_a_form_that_the_vocabulary_writes_otherwise_is_put_in():
    """Its letters with their marks were forced as letters and marks, and the form was called missing."""
    source = train_tokenizer(lines_of(SOURCE, 200, 1), kind="char", vocab_size=None, seed=1)
    target = train_tokenizer(["é è ü a b c"] * 9, kind="char", vocab_size=None, seed=1, decompose=True)
    vocabularies = dict(source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, shared_vocab=False)
    model = Transformer(ModelConfig(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=13, **vocabularies))
    translator = Translator.of(model.eval(), source, target, "float32")
    glossary = Glossary({"dog": "é ü"})
    (found,) = translator.translations(["dog on dog"], SearchConfig(beam=2, max_length=20), glossary=glossary)
    assert found.text.count("é ü") >= 2
    assert found.lexical.missing == ()


def test_a_form_whose_characters_have_no_token_is_put_in():
    glossary = Glossary({"dog": "Жук-42", "Anna": []})
    (found,) = make("char").translations(["dog and Anna dog"], SearchConfig(max_length=40), glossary=glossary)
    assert (found.text.count("Жук-42"), count_of(["Anna"], found.text)) == (2, 1)
    assert "Жук-42" in found.tokens


def test_placeholders_stand_in_any_place_and_a_line_of_them_alone_is_translated():
    lines = ["{a} {b} {a}", "%s", "", "cat ({x}) dog{y}", "{x}cat"]
    found = make("bpe").translate(lines, SearchConfig(beam=2, max_length=30), placeholders="default")
    assert [placeholders_of(text) for text in found] == [placeholders_of(line) for line in lines]
    assert found[2] == ""


def test_more_terms_than_are_tried_without_search_are_met_at_once():
    words = [f"{left}{right}" for left in "abcd" for right in "xyz"]
    glossary = Glossary({word: random.Random(n).choice(TARGET) for n, word in enumerate(words)})
    (found,) = make("unigram").translations([" ".join(words)], SearchConfig(max_length=200), glossary=glossary)
    assert_met(found, " ".join(words), glossary)


def test_prefixes_and_terms_go_together():
    glossary = Glossary({"cat": "Haustür", "dog": "Hund"})
    config = SearchConfig(beam=3, max_length=60, no_repeat_ngram=3, min_length=4)
    lines, prefixes = ["cat and dog", "dog"], ["Hund auf", ""]
    found = make("char").translations(lines, config, prefixes=prefixes, glossary=glossary)
    assert found[0].text.startswith("Hund auf")
    for line, one in zip(lines, found, strict=True):
        assert_met(one, line, glossary)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_may_have_the_token_that_stands_in_for_placeholders(kind):
    # No vocabulary has braces: the prefix has the unknown token, which stands in for them too.
    config = SearchConfig(beam=2, max_length=60)
    given = dict(prefixes=["{name} ein"], placeholders="default")
    (found,) = make(kind).translations(["cat {name} dog"], config, **given)
    assert " ein" in found.text
    assert placeholders_of(found.text) == {"{name}": 1}


def test_all_settings_of_beam_search_go_with_terms():
    glossary = Glossary({"cat": ["Haustür", "Hunde"]})
    for changes in (
        dict(coverage_penalty=0.3),
        dict(consensus=True),
        dict(replace_unknown=True),
        dict(stopping="first"),
        dict(stopping="exact", max_length=24),
    ):
        config = SearchConfig(**{"beam": 3, "n_best": 2, "max_length": 40, **changes})
        for one in make("char").translate_n_best(["cat {x}"], config, glossary=glossary, placeholders="default")[0]:
            assert_met(one, "cat x", glossary)
            assert one.text.count("{x}") == 1


def test_what_counts_for_coverage_is_the_attention_of_a_translations_own_tokens(monkeypatch):
    """At the last step hypotheses change places, and are finished as they are."""
    translator, seen = make("char"), list[tuple[list[int], Tensor]]()
    finish = LexicalSearch._finish

    def finishing(self: LexicalSearch, at: int, one: Any, w: int) -> None:
        seen.append(([token.id for token in _written(one.last)], self._attended[at, w].clone()))
        finish(self, at, one, w)

    monkeypatch.setattr(LexicalSearch, "_finish", finishing)
    engine = translator.engine
    for line, limit in product(["the cat", "cat on the red house"], [6, 7, 8]):
        config = SearchConfig(beam=4, n_best=4, max_length=limit, coverage_penalty=2.0)
        (found,) = translator.translate_n_best([line], config, glossary=Glossary({"cat": "rot"}))
        assert sum(one.cut for one in found) > 1
        source = torch.tensor([[*translator.source_tokenizer.encode([line])[0], EOS]])
        for ids, attended in seen:
            target_in = torch.tensor([[engine.target_pad, *ids[:-1]]])
            shown = observe_translation(engine, source, target_in, {"source": {0: Want(head_mean=True)}})
            assert_close(shown["source"][0].head_mean[0].sum(0), attended)
        seen.clear()


def test_a_placeholder_may_stand_where_no_n_gram_may_come_twice():
    """Its id is beyond the classes of a model whose vocabulary fills all of them."""
    letters = SymbolTokenizer([f"s{n}" for n in range(125)])
    torch.manual_seed(1)
    sizes = ModelConfig.tiny(source_vocab_size=letters.vocab_size, target_vocab_size=letters.vocab_size)
    translator = Translator.of(Transformer(sizes), letters, letters, "float32")
    assert translator.engine.classes == letters.vocab_size
    config = SearchConfig(no_repeat_ngram=1, min_length=30, max_length=60)
    (found,) = translator.translations(["s1 s2 {a} s3 {b} s4"], config, placeholders="default")
    assert placeholders_of(found.text) == {"{a}": 1, "{b}": 1}
    assert len(set(found.tokens)) == len(found.tokens) >= 30


def test_a_model_without_heads_on_the_source_meets_them_too():
    translator = make("char", without_heads=True)
    glossary = Glossary({"cat": "rot"})
    found = translator.translate(["cat {x}"], SearchConfig(beam=2), glossary=glossary, placeholders=r"\{x\}")
    assert (count_of(["rot"], found[0]), found[0].count("{x}")) == (1, 1)


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.filterwarnings("ignore:.* is cut to its first")
def test_placeholders_after_what_is_read_stand_in_the_order_of_the_source(beam):
    config = SearchConfig(beam=beam, max_length=40, max_source_tokens=4)
    line = "the cat {one} sat {two} on {three} a mat {four}"
    (found,) = make("char").translate([line], config, placeholders="default")
    assert re.findall(r"\{\w+\}", found) == ["{one}", "{two}", "{three}", "{four}"]


def test_a_line_of_placeholders_and_signs_alone_is_copied():
    lines = ["{name}", " %s / %d: 10! ", "https://a.org/x", "cat {x}"]
    found = make("char").translations(lines, placeholders="default")
    assert [one.text for one in found[:3]] == lines[:3]
    assert [(one.tokens, one.log_prob) for one in found[:3]] == [([], 0.0)] * 3
    assert [one.lexical.placeholders for one in found] == [1, 2, 1, 1]
    assert found[3].tokens
    (long,) = make("char").translate(["{a} " + "1 " * 99], SearchConfig(max_source_tokens=9), placeholders="default")
    assert long == "{a} " + "1 " * 99, "and no warning that it is cut"
    begun = make("char").translate(["{name} 5"], placeholders="default", prefixes=["Haus"])
    assert begun[0].startswith("Haus")
    assert "{name}" in begun[0]
    glossary = Glossary({"!": "rot"})
    (text,) = make("char").translate(["{name}!"], glossary=glossary, placeholders="default")
    assert (count_of(["rot"], text), text.count("{name}")) == (1, 1)


def test_what_has_no_room_is_said_and_the_rest_is_there():
    glossary = Glossary({"cat": "Haus", "dog": "Hund Katze Haustür"})
    with pytest.warns(UserWarning, match=r"max_length leaves no room for 'Hund Katze Haustür': raise it"):
        (found,) = make("char").translations(["cat dog"], SearchConfig(max_length=12), glossary=glossary)
    assert count_of(["Haus"], found.text) == 1
    assert found.lexical.missing == ("Hund Katze Haustür",)
    with pytest.warns(UserWarning, match="max_length leaves no room"):
        (text,) = make("char").translate(["cat %s {b}"], SearchConfig(max_length=1), placeholders="default")
    assert placeholders_of(text) == Counter(["%s", "{b}"]), "placeholders without room stand at the end"


@pytest.mark.parametrize("precision", [*(["int8"] if can_quantize() else []), "bfloat16"])
def test_other_precisions_and_one_line_alone_meet_them_too(precision):
    symbols = SymbolTokenizer(TARGET)
    sizes = dict(d_model=64, heads=2, encoder_layers=1, decoder_layers=2, d_ff=64)
    source = make("char").source_tokenizer
    torch.manual_seed(3)
    model = Transformer(
        ModelConfig(
            source_vocab_size=source.vocab_size, target_vocab_size=symbols.vocab_size, shared_vocab=False, **sizes
        )
    ).eval()
    glossary = Glossary({"cat": "Hund Katze", "Anna": []})
    translator = Translator.of(model, source, symbols, precision)
    for one in translator.translations(["the cat", "Anna {0} cat"], glossary=glossary, placeholders="default"):
        assert one.lexical.missing == ()
        assert one.text.count("{0}") == one.lexical.placeholders


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_is_refused_in_a_sentence():
    translator = make("char")
    with pytest.raises(ConfigError, match="glossary and placeholders need a search"):
        translator.translate(["a"], SearchConfig(sample=True), placeholders="default")
    with pytest.raises(ConfigError, match=r"^glossary must be one for each line, got 2 for 1 line$"):
        translator.translate(["a"], glossary=[None, None])
    with pytest.raises(ArgumentError, match="glossary must be a Glossary, or one for each line, got 'x'"):
        translator.translate(["a"], glossary="x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert translator.translate([], glossary=Glossary({})) == []


def met_after(vocabulary: Vocabulary, form: str, pieces: list[int]) -> list[int]:
    """How many of two demands of a form are met after each piece."""
    demands, state, met = Demands([Demand((form,), (n,)) for n in range(2)], vocabulary), State(), []
    for piece in pieces:
        state = demands.advance(state, piece)
        met.append(state.met.bit_count())
    return met


def test_a_term_demanded_twice_is_written_twice_without_overlap():
    tokenizer = make("word").target_tokenizer
    four_words = tokenizer.encode(["Katze Katze Katze Katze"])[0]
    assert met_after(Vocabulary(tokenizer), "Katze Katze", four_words) == [0, 1, 1, 2]


TWICE = {"target": ["Katze", "Katze Katze", "Haus"], "chinese": ["红色", "狗", "狗狗", "红红"]}


@pytest.mark.parametrize(("target", "kind"), [("target", "word"), *(("chinese", kind) for kind in ("char", "unigram"))])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_occurrences_are_counted_however_the_tokens_part_them(target, kind, data):
    vocabulary = Vocabulary(make(kind, target).target_tokenizer)
    form = data.draw(st.sampled_from(TWICE[target]))
    parts = [i for i, text in enumerate(vocabulary.texts) if text.strip() and text.strip() in form * 2]
    tokens = data.draw(st.lists(st.sampled_from(parts), max_size=9))
    text = "".join(vocabulary.texts[i] for i in tokens)
    assert (met_after(vocabulary, form, tokens) or [0])[-1] == min(2, count_of([form], text)), text


def test_a_token_of_two_occurrences_meets_two_demands():
    vocabulary = Vocabulary(SymbolTokenizer(["红", "红红", "红红红"]))
    vocabulary.texts = [text.strip() for text in vocabulary.texts]  # as a vocabulary of pieces has them
    counted = [
        met_after(vocabulary, "红红", vocabulary.tokenizer.encode([text])[0]) for text in ("红红红 红", "红红 红 红")
    ]
    assert counted == [[1, 2], [1, 1, 2]]
