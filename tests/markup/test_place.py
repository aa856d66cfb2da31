"""Tags put back: rule by rule with links given by hand, and whatever the nesting and the links are."""

import re
import time
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.alignment.links import Link, read_pharaoh
from glassformer.markup.place import place_tags
from glassformer.markup.segments import Document
from glassformer.text.units import units_of
from glassformer.text.words import Word

TAG = re.compile(r"<[^<>]*>")


def words(text: str) -> list[Word]:
    return units_of(text)


def placed(html: str, translation: str, links: str) -> str:
    """The HTML with the translation of its only segment, whose words are linked so."""
    document = Document(html, "html")
    [segment] = document.segments
    tagged = place_tags(segment, words(segment.text), translation, words(translation), read_pharaoh(links))
    return document.joined([tagged])


@pytest.mark.parametrize(
    ("html", "translation", "links", "expected"),
    [
        ("<b>Hello</b>, <i>world</i>!", "Hallo, Welt!", "0-0 1-1 2-2 3-3", "<b>Hallo</b>, <i>Welt</i>!"),
        ("one <b>red</b> house", "une maison rouge", "0-0 1-2 2-1", "une maison <b>rouge</b>"),
        ("<b>red <i>house</i></b> one", "une maison rouge", "0-2 1-1 2-0", "une <b><i>maison</i> rouge</b>"),
        ("un<b>believ</b>able x", "ungl x", "0-0 1-1", "<b>ungl</b> x"),
        ("I do <b>not</b> eat", "Je ne mange pas", "0-0 2-1 3-2 2-3", "Je <b>ne mange pas</b>"),  # one of another
        ("<b>not</b> a b c", "ne a b c pas", "0-0 1-1 2-2 3-3 0-4", "<b>ne</b> a b c pas"),  # three of others
        ("<b>a x</b> b c", "x b c y a", "1-0 2-1 3-2 0-3 0-4", "x b c <b>y a</b>"),  # the largest part
        ("<b>a</b> <i>b</i>", "b a b a", "0-1 0-3 1-0 1-2", "<i>b</i> <b>a b a</b>"),  # as long: the first has it
        ("a <b>b</b> c", "A x C", "0-0 2-2", "A x <b></b>C"),  # no word left: between its neighbours
        ("a <b>b</b>", "x", "", "<b></b>x"),
        ("a <b>b</b>", "", "", "<b></b>"),
        ("a<br/> b", "", "", None),
        ("hi<img src=1> you", "du hi", "0-1 1-0", "du hi<img src=1>"),  # it follows its word
        ("hi <img>you", "du hi", "0-1 1-0", "<img>du hi"),  # it goes before its word
        ("hi <img> you too", "auch du hi", "0-2 1-1 2-0", "auch <img> du hi"),
        ("hi <img> you", "du hi", "0-1 1-0", "<img> du hi"),
        ("a <b>c <img>d</b>", "d c A", "0-2 1-1 2-0", "<b><img>d c</b> A"),
        ("a<wbr>b c", "ab c", "0-0 1-1", "<wbr>ab c"),
        ("a <i></i><img><b>c</b> d", "c d a", "0-2 1-0 2-1", "<i></i><img><b>c</b> d a"),
        ("a <i>b c</i> <img>d", "b d c", "1-0 2-2 3-1 0-1", "<i>b d c</i><img>"),  # not into what it wasn't in
        ("<b>a &amp; b</b> &lt;c&nbsp;d", "b & a <c\xa0d", "0-2 1-1 2-0 3-3 4-4 5-5", "<b>b &amp; a</b> &lt;c\xa0d"),
        (" <p>\n <b>a b</b> <!-- c -->\n</p>", "b a", "0-1 1-0", " <p>\n <b>b a</b> <!-- c -->\n</p>"),
        ("a <b>b <i>c</b> d</i> e", "c b e d a", "0-4 1-1 2-0 3-3 4-2", "<b><i>c b</b> e d</i> a"),  # malformed
    ],
)
def test_tags_stand_where_the_rules_say(html, translation, links, expected):
    if expected is None:
        assert [segment.text for segment in Document(html, "html").segments] == ["a", "b"]
        return
    assert placed(html, translation, links) == expected


def test_what_is_copied_keeps_its_tags_without_any_link():
    html = "<b>{a}</b>, <i>{b} <u>{c}</u></i>"
    assert placed(html, "{a}, {b} {c}", "") == html


def test_what_stays_as_it_is_has_no_mark_that_the_text_has():
    """A reference to the first mark was taken for it, and the element written twice."""
    [segment] = Document("<code>x</code> &#xF0000; y", "html").segments
    [mark] = segment.kept
    assert segment.text == f"{mark} \U000f0000 y"
    assert mark != "\U000f0000"


def test_bergamot_issue_288_loses_nothing():
    """Its translator wrote `Antes de dentro 1 b itálico<i id="1c"></i>`, and `<span>perro</span><a id="1"></a>`."""
    html = '<b id="1a" style="color:red">1<i id="1b" style="color:green"> dentro b</i></b> <i id="1c">italic</i>'
    expected = '<b id="1a" style="color:red">1 <i id="1b" style="color:green">in b</i></b> <i id="1c">italic</i>'
    assert placed(html, "1 in b italic", "0-0 1-1 2-2 3-3") == expected
    assert placed('<b>d</b><i>o</i><a id="1">g</a>', "perro", "0-0") == '<b>perro</b><i></i><a id="1"></a>'


def test_bergamot_pull_253_tags_neither_split_nor_double():
    """Its first form wrote `<p>Ich <b></b><u>fahr</u><b>e gerne</b> dieses Auto.</p>`."""
    html = "<p>I <b>like</b> to <u>drive</u> this car.</p>"
    links = "0-0 1-2 3-1 4-3 5-4 6-5"
    assert placed(html, "Ich fahre gerne dieses Auto.", links) == "<p>Ich <u>fahre</u> <b>gerne</b> dieses Auto.</p>"
    html = "<p><input>H<u>e</u>llo <b>world</b> how <u>are you</u>?</p>\n"
    expected = "<p><input><u>Hello</u> <b>world</b> how <u>are you</u>?</p>\n"
    assert placed(html, "Hello world how are you?", "0-0 1-1 2-2 3-3 4-4 5-5") == expected
    assert placed("<p>hello <b>world &amp; friends!</b></p>\n", "hallo Welt & Freunde!", "0-0 1-1 2-2 3-3 4-4") == (
        "<p>hallo <b>Welt &amp; Freunde!</b></p>\n"
    )
    html = "How does this <img> <b>deal <u>with multiple sentences?</u></b> Will it work?"
    target = "Wie geht das mit mehreren Sätzen um? Wird es funktionieren?"
    links = "0-0 1-1 2-2 3-6 4-3 5-4 6-5 7-7 8-8 9-9 10-10 11-11"
    assert placed(html, target, links) == (
        "Wie geht das <img> <b><u>mit mehreren Sätzen um?</u></b> Wird es funktionieren?"
    )


CONTENT = st.recursive(
    st.sampled_from(["a", "b b", "c, d", " ", "e ", " f&amp;", "<x/>", " <x/> ", "<code>k</code>", "<!-- z -->"]),
    lambda inner: st.tuples(st.sampled_from("ijkl"), st.lists(inner, max_size=4)).map(
        lambda one: f"<{one[0]} n='{len(one[1])}'>{''.join(one[1])}</{one[0]}>"
    ),
    max_leaves=12,
)
LINKS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.3, 0.5, 0.5, 1.0])).map(lambda one: Link(*one)),
    max_size=25,
)


def nesting(text: str) -> list[tuple[str, str]]:
    """Each tag with the tags that it is in, sorted: where elements stand to each other; code stands as a word does."""
    around, found = list[str](), [("<code>", "")] * text.count("<code>k</code>")
    for tag in TAG.findall(text.replace("<code>k</code>", "")):
        if tag.startswith("</"):
            around.pop()
            continue
        found.append((tag, "".join(around)))
        if not tag.endswith("/>") and not tag.startswith("<!"):
            around.append(tag)
    return sorted(found)


@settings(max_examples=100, deadline=None)
@given(contents=st.lists(CONTENT, max_size=5), links=LINKS, count=st.integers(0, 9))
def test_whatever_the_nesting_and_the_links_nothing_is_lost_doubled_or_ill_formed(contents, links, count):
    html = "".join(contents)
    document = Document(html, "html")
    translations, plain = list[str](), list[str]()
    for segment in document.segments:
        translation = " ".join(["W<", "v,", *segment.kept][: count + len(segment.kept)])
        source, target = words(segment.text), words(translation)
        fitting = [link for link in links if link.source < len(source) and link.target < len(target)]
        translations.append(place_tags(segment, source, translation, target, fitting))
        plain.append(place_tags(Document("a", "html").segments[0], [], translation, target, fitting))
        lost = "".join(mark for mark in segment.kept if mark not in translation)
        for mark, raw in segment.kept.items():
            plain[-1] = (plain[-1] + lost).replace(mark, raw)
            lost = ""
        without = re.sub(r"</?[ijklx][^<>]*>|<!-- z -->", "", translations[-1])
        assert "".join(without.split()) == "".join(plain[-1].split()), "the text is the translation"
    written = document.joined(translations)
    assert nesting(written) == nesting(html), "every tag is there once, as it was, in what it was in"
    ElementTree.fromstring(f"<r>{written}</r>")


SHAPES = st.recursive(st.just(["x"]), lambda inner: st.lists(inner, max_size=4), max_leaves=9)


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(SHAPES, max_size=4), turned=st.booleans())
def test_with_true_links_every_element_stands_on_its_words_alone(shape, turned):
    """Of a sentence that is kept, or turned round with its elements: their words stay together."""
    letters = iter("abcdefghijklmnopqrstuvwxyzäöüß" * 4)
    number = iter(range(1000))

    def written(shape: list) -> str:
        inner = [next(letters) if one == "x" else f"<i n='{next(number)}'>{written(one)}</i>" for one in shape]
        return " ".join(inner)

    html = written(shape)
    document = Document(html, "html")
    placed_ones = list[str]()
    for segment in document.segments:
        source = words(segment.text)
        order = list(range(len(source)))[:: -1 if turned else 1]
        translation = " ".join(source[n].text for n in order)
        links = [Link(n, place) for place, n in enumerate(order)]
        placed_ones.append(place_tags(segment, source, translation, words(translation), links))

    def contents(text: str) -> list[tuple[str, list[str]]]:
        return sorted(
            (one.get("n", ""), sorted("".join(one.itertext()).split()))
            for one in ElementTree.fromstring(f"<r>{text}</r>").iter()
        )

    assert contents(document.joined(placed_ones)) == contents(html)


@pytest.mark.parametrize("unit", ["<b>a ", "a <b></b>", "<b><i></i>a ", "<b>a</b> ", "x <b>", "<b>a</b><i> c</i>"])
def test_deep_and_wide_nestings_take_their_time_but_no_more(unit):
    html = "x " + unit * 400
    html += "".join(f"</{name}>" for name in re.findall(r"<(\w)>(?!.*</\1>)", unit) * 400)
    document = Document(html, "html")
    [segment] = document.segments
    source = words(segment.text)
    began = time.thread_time()
    tagged = place_tags(segment, source, segment.text, source, [Link(n, n) for n in range(len(source))])
    assert time.thread_time() - began < 2
    assert TAG.findall(document.joined([tagged])) == TAG.findall(html)
