"""HTML and XML cut into parts: all of it, whatever it is."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import DataError
from glassformer.markup.scan import decode_html, decode_xml, scan_html, scan_xml
from glassformer.markup.segments import Document

HOSTILE = [
    *("<", "</", "<!", "<!--", "<![", "<![CDATA[", "<?", "<a ", "<a b='", '<a b="', "&", "&#", "<script>", "</a "),
    *(
        "<a =",
        "<p>",
        "<p>a",
        "\n<",
        "< ",
        "<a/",
        "<!-- -->",
        "<a b=c'",
        "<code>",
        "<style>x",
        "<a translate=no>",
        "</b>",
    ),
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.usefixtures("unchecked")
def test_html_of_any_kind_takes_no_longer_than_its_length(unit):
    text = (unit * 50_000)[:50_000]
    began = time.thread_time()
    assert "".join(part.raw for part in scan_html(text)) == text
    assert time.thread_time() - began < 1.0, "unfinished comments took html.parser as long as this"


@given(st.text(st.sampled_from("<>/!-?&;#a b\"'=\n\r[]xscript"), max_size=60))
def test_the_parts_of_html_are_the_whole(text):
    parts = scan_html(text)
    assert "".join(part.raw for part in parts) == text
    assert all(part.raw for part in parts)


def kinds(text: str) -> list[tuple[str, str]]:
    return [(part.kind, part.raw) for part in scan_html(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <b title='>'>c</b>", [("text", "a "), ("open", "<b title='>'>"), ("text", "c"), ("close", "</b>")]),
        ("1 < 2 <3 <:)", [("text", "1 < 2 <3 <:)")]),
        ("<IMG src=x>a<wbr/>", [("single", "<IMG src=x>"), ("text", "a"), ("single", "<wbr/>")]),
        ("a<!-- <b> -->b", [("text", "a"), ("single", "<!-- <b> -->"), ("text", "b")]),
        ("<!-->a<!--->b", [("single", "<!-->"), ("text", "a"), ("single", "<!--->"), ("text", "b")]),
        ("a<br>b</br >", [("text", "a"), ("block", "<br>"), ("text", "b"), ("block", "</br >")]),
        ("<script>a</b></SCRIPT>x", [("single", "<script>a</b></SCRIPT>"), ("text", "x")]),
        ("<pre>a <b>b</b></pre>x", [("block", "<pre>a <b>b</b></pre>"), ("text", "x")]),
        ("<code>a<code>b</code>c</code>d", [("atom", "<code>a<code>b</code>c</code>"), ("text", "d")]),
        ("<i translate='no'>a<b>b</b></i>c", [("atom", "<i translate='no'>a<b>b</b></i>"), ("text", "c")]),
        ("<i\tclass='x notranslate'>a</i>", [("atom", "<i\tclass='x notranslate'>a</i>")]),
        (
            "<i title='translate=\"no\"'>a</i>",
            [("open", "<i title='translate=\"no\"'>"), ("text", "a"), ("close", "</i>")],
        ),
        ("<p translate=no>a</p>", [("block", "<p translate=no>a</p>")]),
        ("<p translate=no>a <b>b</b><p>c", [("block", "<p translate=no>a <b>b</b>"), ("block", "<p>"), ("text", "c")]),
        (
            "<ul><li class=notranslate>a<ul><li>b</ul><li>c</ul>",
            [
                *(("block", "<ul>"), ("block", "<li class=notranslate>a<ul><li>b</ul>")),
                *(("block", "<li>"), ("text", "c"), ("block", "</ul>")),
            ],
        ),
        ("<td translate=no>a<td>b", [("block", "<td translate=no>a"), ("block", "<td>"), ("text", "b")]),
        (
            "<dl><dt translate=no>a</dl>b",
            [("block", "<dl>"), ("block", "<dt translate=no>a"), ("block", "</dl>"), ("text", "b")],
        ),
        (
            "<script src=/a/>b</script><code/>c</code><svg/><a href=/b/>d</a>",
            [
                *(("single", "<script src=/a/>b</script>"), ("atom", "<code/>c</code>"), ("single", "<svg/>")),
                *(("open", "<a href=/b/>"), ("text", "d"), ("close", "</a>")),
            ],
        ),
        ("a<code>b", [("text", "a"), ("atom", "<code>b")]),
        ("a<![CDATA[b<c>]]>d", [("text", "a"), ("single", "<![CDATA[b<c>]]>"), ("text", "d")]),
    ],
)
def test_parts_of_html_are_of_their_kind(text, expected):
    assert kinds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <p>b</p>", [("text", "a "), ("open", "<p>"), ("text", "b"), ("close", "</p>")]),
        ("<br></br>", [("open", "<br>"), ("close", "</br>")]),
        ("<ph id='1'>&lt;br&gt;</ph>a", [("single", "<ph id='1'>&lt;br&gt;</ph>"), ("text", "a")]),
        ('<mrk mtype="protected">a</mrk>', [("atom", '<mrk mtype="protected">a</mrk>')]),
        ('<é translate="no">a</é>', [("atom", '<é translate="no">a</é>')]),
        ("a<![CDATA[<b>]]>", [("text", "a"), ("atom", "<![CDATA[<b>]]>")]),
        (
            '<bpt i="1">&lt;b id="2"></bpt>a<ept i="1"/><sc id="1"/>b<ec startRef="1"/>',
            [
                *(("open", '<bpt i="1">&lt;b id="2"></bpt>'), ("text", "a"), ("close", '<ept i="1"/>')),
                *(("open", '<sc id="1"/>'), ("text", "b"), ("close", '<ec startRef="1"/>')),
            ],
        ),
        (
            '<bpt id="1" rid="7"/>a<bpt id="2" rid="8"/><g>b</g><ept id="3" rid="7"/><ept id="4" rid="8"/>',
            [
                *(("open", '<bpt id="1" rid="7"/>'), ("text", "a"), ("single", '<bpt id="2" rid="8"/>')),
                *(("open", "<g>"), ("text", "b"), ("close", "</g>")),
                *(("close", '<ept id="3" rid="7"/>'), ("single", '<ept id="4" rid="8"/>')),
            ],
        ),
        (
            '<ept i="1"/><g><bpt i="1"/></g><ept i="1"/><bpt/><ept/>',
            [
                *(("single", '<ept i="1"/>'), ("open", "<g>"), ("single", '<bpt i="1"/>'), ("close", "</g>")),
                *(("single", '<ept i="1"/>'), ("single", "<bpt/>"), ("single", "<ept/>")),
            ],
        ),
        ("<?p >?>a<!-- -->", [("single", "<?p >?>"), ("text", "a"), ("single", "<!-- -->")]),
        ('<a b=">"/>', [("single", '<a b=">"/>')]),
    ],
)
def test_parts_of_xml_are_of_their_kind(text, expected):
    assert [(part.kind, part.raw) for part in scan_xml(text)] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <b>c", r"^it is not well-formed xml \(an element isn't closed\): close each tag"),
        ("a <g>c", r"^it is not well-formed xml \(an element isn't closed\): close each tag"),
        ("a <b>c</i>", r"^it is not well-formed xml \(mismatched tag at character 9\): close each tag"),
        ("a </b>", r"^it is not well-formed xml \(mismatched tag at character 5\)"),
        ("ä & b", r"not well-formed \(invalid token\) at character 4\): close each tag and write & as &amp;, or use"),
        ("&nbsp;", r"undefined entity"),
        ("</g><g>", r"junk after document element"),
        ("<a b=c/>", r"not well-formed"),
        ("\0", r"not well-formed"),
        ("<!DOCTYPE a><a/>", r"^it has a document type, which isn't read: take it out, or use the format html$"),
        ("\ud800", r"^it has half a surrogate pair"),
    ],
)
def test_what_is_no_xml_is_said_in_a_sentence(text, message):
    with pytest.raises(DataError, match=message):
        scan_xml(text)


def test_references_become_characters():
    assert decode_html("&lt;&eacute;&nbsp;&#128;AT&T") == "<é\xa0€AT&T"
    assert decode_xml("&lt;&#x41;&#66;&apos;&quot;&#128;") == "<AB'\"\x80"


@pytest.mark.usefixtures("unchecked")
def test_tags_with_spaces_between_take_no_longer_than_their_number():
    began = time.thread_time()
    [segment] = Document("a " + "<img> " * 20_000 + "b", "html").segments
    assert len(segment.elements) == 20_000
    assert time.thread_time() - began < 2.0, "each space went through all tags before it: 4.3 seconds"
