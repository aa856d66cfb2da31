"""Documents: only the bytes of translations change, and the Translate Toolkit reads what comes out."""

import difflib
import re
import time
from contextlib import suppress
from html import unescape
from typing import get_args
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.documents.document import translate_document
from glassformer.documents.endings import ENDINGS_OF, DocumentKind, kind_of, tags_of
from glassformer.documents.reading import READERS, read_units
from glassformer.documents.subtitles import break_lines
from glassformer.documents.tags import as_html, as_xml
from glassformer.documents.units import apply
from glassformer.errors import ConfigError, DataError
from glassformer.generation.config import SearchConfig
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.translator import Translator
from glassformer.markup.translate import translate_markup
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

XLIFF_1 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" original="x"><body>
  <trans-unit id="1" ><source>One ü</source><target/></trans-unit><!-- kept -->
  <trans-unit id="2">
    <source>Two &amp;
      more</source>
  </trans-unit>
  <trans-unit id="3"><source>done</source><target state="final">fertig</target></trans-unit>
  <trans-unit id="4"><source>with <g id="1">tag</g></source></trans-unit>
  <trans-unit id="5" translate="no"><source>never</source></trans-unit>
  <trans-unit id="6"><source>Six</source><target  state='new' xml:lang="de"></target></trans-unit>
</body></file></xliff>
"""
XLIFF_2 = """<x:xliff version="2.0" srcLang="en" xmlns:x="urn:oasis:names:tc:xliff:document:2.0"><x:file id="f">
  <x:unit id="1"><x:segment state="initial"><x:source>One</x:source></x:segment></x:unit>
  <x:unit id="2"><x:segment><x:source>Two</x:source><x:target></x:target></x:segment></x:unit>
</x:file></x:xliff>
"""
TMX = """<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
  <tu>
    <tuv xml:lang="en">
      <seg>One ü</seg>
    </tuv>
  </tu>
  <tu><tuv xml:lang="en-GB"><seg>Two</seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>
  <tu><tuv xml:lang="en"><seg>Done</seg></tuv><tuv xml:lang="de-AT"><seg>Fertig</seg></tuv></tu>
  <tu><tuv xml:lang="fr"><seg>Trois</seg></tuv></tu>
</body></tmx>
"""
PO = r"""# Comment ü
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\n"

#: a.c:1
msgctxt "menu"
msgid "One \"ü\""
msgstr ""

#, fuzzy
#| msgid "before"
msgid "done"
msgstr "fertig"

msgid "file\n"
msgid_plural "files\n"
msgstr[0] ""
msgstr[1] ""

msgid ""
"first\n"
"second"
msgstr ""

#~ msgid "obsolete"
#~ msgstr ""
"""
SRT = """1
00:00:01,000 --> 00:00:02,000
<i>One two
three four</i>

2
00:00:03,000 --> 00:00:04,000
- Who ü?
- Me!

3
00:00:05,000 --> 00:00:06,000
some <b>bold</b>
""".replace("\n", "\r\n")
VTT = """﻿WEBVTT - a film
Kind: captions

STYLE
::cue(b) { color: red }

NOTE never

intro
00:01.000 --> 00:02.000 align:start
One two
three &amp; four

1:00:03.000 --> 1:00:04.000
<v Roger Bingham>Who ü?
<v Esme>- Me!</v>
1:00:05.000 --> 1:00:06.000
<00:19.000>some <00:20.000>text <b>bold</b>

never
""".replace("\n", "\r\n")
JSON = '{"title": "One", "n": [1.0, "Gr\\u00fc\\u00dfe",\n {"a : \\"b": "x \\"y\\"\\nz"}], "": "", "no": null}\n'
HTML = """<!DOCTYPE html>
<html lang="en"><head><meta http-equiv="Content-Type" content="text/html; charset=UTF-8"><title>One &amp; ü</title>
<script>
if (a < b) write("<p>never</p>");
</script></head><!-- kept
kept -->
<body><p class=x>
  Two
  more</p><p translate="no">never</p><p>12</p><p>with <b>tag</b></p></body></html>
"""
FILES = {
    "page.html": HTML,
    "one.xlf": XLIFF_1,
    "two.xliff": XLIFF_2,
    "m.tmx": TMX,
    "c.po": PO,
    "s.srt": SRT,
    "w.vtt": VTT,
    "t.json": JSON,
}
STATE = 'state="translated"'
CHANGED = {
    "page.html": [
        '<html lang="en"><head><meta http-equiv="Content-Type" content="text/html; charset=UTF-8">'
        "<title>[One &amp; ü&lt;]</title>",
        '  [Two more&lt;]</p><p translate="no">never</p><p>12</p><p>with <b>tag</b></p></body></html>',
    ],
    "one.xlf": [
        f'  <trans-unit id="1" ><source>One ü</source><target {STATE}>[One ü&lt;]</target></trans-unit><!-- kept -->',
        f"    <target {STATE}>[Two &amp; more&lt;]</target>",
        f'  <trans-unit id="6"><source>Six</source><target  {STATE} xml:lang="de">[Six&lt;]</target></trans-unit>',
    ],
    "two.xliff": [
        f'  <x:unit id="1"><x:segment {STATE}><x:source>One</x:source>'
        "<x:target>[One&lt;]</x:target></x:segment></x:unit>",
        f'  <x:unit id="2"><x:segment {STATE}><x:source>Two</x:source>'
        "<x:target>[Two&lt;]</x:target></x:segment></x:unit>",
    ],
    "m.tmx": [
        *('    <tuv xml:lang="de">', "      <seg>[One ü&lt;]</seg>", "    </tuv>"),
        '  <tu><tuv xml:lang="en-GB"><seg>Two</seg></tuv><tuv xml:lang="de"><seg>[Two&lt;]</seg></tuv></tu>',
    ],
    "c.po": [
        'msgstr "[One \\"ü\\"<]"',
        *('"[file\\n"', '"<]"', '"[files\\n"', '"<]"', '"[first\\n"', '"second<]"'),
    ],
    "s.srt": ["<i>[One two\r", "three four<]</i>\r", "- [Who ü?<]\r", "- [Me!<]\r"],
    "w.vtt": ["[One two three\r", "&amp; four&lt;]\r", "<v Roger Bingham>[Who ü?&lt;]\r", "<v Esme>- [Me!&lt;]</v>\r"],
    "t.json": [
        '{"title": "[One<]", "n": [1.0, "[Gr\\u00fc\\u00dfe<]",',
        ' {"a : \\"b": "[x \\"y\\"\\nz<]"}], "": "", "no": null}',
    ],
}
"""Lines of the translated files that are new."""


def bracketed(name: str) -> str:
    """The file of this name with each text in brackets as its translation."""
    coding = "iso-8859-1" if name == "m.tmx" else "utf-8"
    content = FILES[name].encode(coding)
    units = [
        one for one in read_units(content, kind_of(name), name, ("en", "de")) if not (one.has_tags or one.is_translated)
    ]
    return apply(content, [edit for one in units for edit in one.place(f"[{one.source}<]")]).decode(coding)


@pytest.mark.parametrize("name", FILES)
def test_only_the_targets_change(name):
    diff = difflib.ndiff(FILES[name].split("\n"), bracketed(name).split("\n"))
    assert [line[2:] for line in diff if line.startswith("+ ")] == CHANGED[name]


CUES = "1\n00:00:01,000 --> 00:00:02,000\n{}\n2\n00:00:03,000 --> 00:00:04,000\nb\n"
SILENCE = "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00.000,MPEGTS:0\n\n"
CUE = "WEBVTT\n\n00:01.000 --> 00:02.000\n"
UNITS = '<xliff version="1.2"><file><body><trans-unit id="1"><source>{0}</source></trans-unit></body></file></xliff>'
FILLED = UNITS.replace("{0}</source>", '{0}</source><target state="translated">[{0}]</target>')
KEEPING, KEEPING_FILLED = (one.replace('"1">', '"1" xml:space="preserve">') for one in (UNITS, FILLED))
SEGMENTED = (
    '<xliff version="1.2"><file><body><trans-unit id="1"><source>a. 7 <g>b</g></source><seg-source>'
    '<mrk mtype="seg" mid="1">a.</mrk> <mrk mtype="seg" mid="2">7</mrk> <mrk mtype="seg" mid="3"><g>b</g></mrk>'
    "</seg-source><target{}>{} {} {}</target></trans-unit></body></file></xliff>"
)
MARKED = "<mrk mid='1'>a</mrk> <g id='1'><mrk mid='2'>b</mrk></g>"
WITHIN = (
    f"<xliff version='1.2'><trans-unit><source>a <g id='1'>b</g></source><seg-source>{MARKED}</seg-source>"
    '<target state="{}">{}</target></trans-unit></xliff>'
)
SEGMENT = (
    '<xliff version="2.0"><file id="f"><unit id="1"><segment {}><source>a</source>{}</segment></unit></file></xliff>'
)
HARD = {
    "no empty line between cues.srt": (CUES.format("a"), ["a", "b"], CUES.format("[a]").replace("b", "[b]")),
    "no text and no empty line.srt": (CUES.replace("{}\n", ""), ["b"], CUES.replace("{}\n", "").replace("b", "[b]")),
    "an empty line within a cue.srt": (
        CUES.format("a\n\nc\n"),
        ["a", "c", "b"],
        CUES.format("[a]\n\n[c]\n").replace("b", "[b]"),
    ),
    "a mark of the byte order.srt": (
        "\ufeff0:00:01.0 --> 0:00:02.0\na\n",
        ["a"],
        "\ufeff0:00:01.0 --> 0:00:02.0\n[a]\n",
    ),
    "two elements.srt": (
        "0:00:01.0 --> 0:00:02.0\n<i>a</i> & <i>b</i>\n",
        ["<i>a</i> &amp; <i>b</i>"],
        "0:00:01.0 --> 0:00:02.0\n[<i>a</i> & <i>b</i>]\n",
    ),
    "codes.srt": (
        '0:00:01.0 --> 0:00:02.0\n{\\an8}a {\\i1}b{\\i0} {\\pos(1,2)}{"} < c\n',
        ['a <style-i title="{\\i1}">b</style-i title="{\\i0}"> <wbr title="{\\pos(1,2)}">{"} < c'],
        '0:00:01.0 --> 0:00:02.0\n{\\an8}[a {\\i1}b{\\i0} {\\pos(1,2)}{"} < c]\n',
    ),
    "speakers after codes and tags.srt": (
        CUES.format("{\\an8}- a?\n- b.")
        + CUES.format("<i>- c?\n– d.</i>").replace("\nb\n", "\n<i>- e</i>\n<i>-f</i>\n"),
        ["a?", "b.", "b", "c?", "d.</i>", "e", "f"],
        CUES.format("{\\an8}- [a?]\n- [b.]").replace("\nb\n", "\n[b]\n")
        + CUES.format("<i>- [c?]\n– [d.</i>]").replace("\nb\n", "\n<i>- [e]</i>\n<i>-[f]</i>\n"),
    ),
    "a style that ends within a text with a dash.srt": (
        CUES.format("{\\an8}{\\i1}- a{\\i0} c"),
        ['<style-i title="{\\i1}">- a</style-i title="{\\i0}"> c', "b"],
        CUES.format("{\\an8}[{\\i1}- a{\\i0} c]").replace("\nb\n", "\n[b]\n"),
    ),
    "a tag that ends within a text with a dash.srt": (
        CUES.format("<i>- a</i> c"),
        ["<i>- a</i> c", "b"],
        CUES.format("[<i>- a</i> c]").replace("\nb\n", "\n[b]\n"),
    ),
    "letters of all kinds.srt": (
        "0:00:01.0 --> 0:00:02.0\r\n😀 é\r\nאב\r\n\r\n0:00:03.0 --> 0:00:04.0\r\n中",
        ["😀 é אב", "中"],
        "0:00:01.0 --> 0:00:02.0\r\n[😀 é\r\nאב]\r\n\r\n0:00:03.0 --> 0:00:04.0\r\n[中]",
    ),
    "two elements.vtt": (
        f"{CUE}<i>a</i> &amp;<c.x.y> b</c>\n",
        ['<g id="0">a</g> &amp;<g id="2"> b</g>'],
        f"{CUE}[<i>a</i> &amp;<c.x.y> b</c>]\n",
    ),
    "elements around a text.vtt": (f"{CUE}<c.x><i>a b</i></c>", ["a b"], f"{CUE}<c.x><i>[a b]</i></c>"),
    "times within a text.vtt": (
        f"{CUE}<00:01.000>a <00:01.500>b\n",
        ['a <x id="0"/>b'],
        f"{CUE}<00:01.000>[a <00:01.500>b]\n",
    ),
    "an empty first line, and one within.vtt": (
        f"{CUE} \n&nbsp;\nall<00:01.300><c> right</c>\n \nfine\n",
        ['all<x id="0"/><g id="1"> right</g> fine'],
        f"{CUE} \n&nbsp;\n[all<00:01.300><c>\nright</c> fine]\n",
    ),
    "no-break spaces around a text.vtt": (f"{CUE}&nbsp;a&nbsp;\n&nbsp;\n", ["a"], f"{CUE}&nbsp;[a]&nbsp;\n&nbsp;\n"),
    "a voice of two lines.vtt": (
        f"{CUE}<v Ann>a\nb\n<v.loud Bob>c <v Ann>d</v>\n",
        ["a b", "c", "d"],
        f"{CUE}<v Ann>[a\nb]\n<v.loud Bob>[c] <v Ann>[d]</v>\n",
    ),
    "dashes after marks of a direction.vtt": (
        f"{CUE}&rlm;- א\n\u202b- ב\u202c\n",
        ["א", "ב"],
        f"{CUE}&rlm;- [א]\n\u202b- [ב]\u202c\n",
    ),
    "lines that end as on old computers.vtt": (
        f"{CUE}a\nb\n\nc\n".replace("\n", "\r"),
        ["a b"],
        f"{CUE}[a\nb]\n\nc\n".replace("\n", "\r"),
    ),
    "references that are no characters.vtt": (
        f"{CUE}a &#{'9' * 5000};\n\n00:03.000 --> 00:04.000\na \x01<i>b</i> c\n",
        ["a \ufffd", 'a <g id="0">b</g> c'],
        f"{CUE}[a \ufffd]\n\n00:03.000 --> 00:04.000\n[a <i>b</i> c]\n",
    ),
    "no cue, as in the pieces of a stream.vtt": (SILENCE, [], SILENCE),
    "an element over two speakers.vtt": (f"{CUE}<i>- a\n– b</i>\n", ["a", "b"], f"{CUE}<i>- [a]\n– [b]</i>\n"),
    "characters that should be escaped.vtt": (
        f"{CUE}Q&A 1 < 2 &nbsp;&Uuml;\n",
        ["Q&A 1 < 2 \xa0Ü"],
        f"{CUE}[Q&amp;A 1 &lt; 2 \xa0Ü]\n",
    ),
    "the next cue without an empty line.vtt": (
        f"{CUE}a\n00:03.000-->00:04.000\nb\n",
        ["a", "b"],
        f"{CUE}[a]\n00:03.000-->00:04.000\n[b]\n",
    ),
    "no letters.vtt": (f"{CUE}<v A>♪ 12 &nbsp;\n", [], f"{CUE}<v A>♪ 12 &nbsp;\n"),
    "a mark of the byte order.po": ('\ufeffmsgid "a"\nmsgstr ""\n', ["a"], '\ufeffmsgid "a"\nmsgstr "[a]"\n'),
    "the only form is of many.po": (
        'msgid "a file"\nmsgid_plural "files"\nmsgstr[0] ""\n',
        ["files"],
        'msgid "a file"\nmsgid_plural "files"\nmsgstr[0] "[files]"\n',
    ),
    "codes are bytes.po": (
        r'msgid "f\303\274r \x41\"\\n\q"' + '\nmsgstr ""\n',
        ['für A"\\nq'],
        r'msgid "f\303\274r \x41\"\\n\q"' + '\nmsgstr "[für A\\"\\\\nq]"\n',
    ),
    "a string below its name.po": ('msgid\r\n"a"\r\nmsgstr\r\n""', ["a"], 'msgid\r\n"a"\r\nmsgstr\r\n"[a]"'),
    "tags.po": (
        'msgid "<b>Q&A</b>\\nx"\nmsgstr ""\n',
        ["<b>Q&amp;A</b><br class=end-of-line>x"],
        'msgid "<b>Q&A</b>\\nx"\nmsgstr ""\n"[<b>Q&A</b>\\n"\n"x]"\n',
    ),
    "tags that are mentioned.po": (
        'msgid "Wrap <i>it</i> in <pre> or <code>, not <code>x</code>."\nmsgstr ""\n',
        ["Wrap <i>it</i> in <wbr title=alone-2> or <wbr title=alone-3>, not <code>x</code>."],
        'msgid "Wrap <i>it</i> in <pre> or <code>, not <code>x</code>."\n'
        'msgstr "[Wrap <i>it</i> in <pre> or <code>, not <code>x</code>.]"\n',
    ),
    "tags.json": ('["1 < 2 <b>a&amp;b</b>"]', ["1 < 2 <b>a&amp;b</b>"], '["[1 < 2 <b>a&amp;b</b>]"]'),
    "other characters where nothing says UTF-8.html": (
        "<p>a&nbsp;&uuml; <!-- x --> <br>b <a title=c>&#252;</a>\u0007",
        ["a&nbsp;&uuml; <!-- x -->", "b <a title=c>&#252;</a>\u0007"],
        "<p>[a&nbsp;&uuml; <!-- x -->] <br>[b <a title=c>&#252;</a>\u0007]",
    ),
    "a mark of the byte order.htm": ("\ufeffa\n<p>ü<hr> b", ["a", "ü", "b"], "\ufeff[a]\n<p>[ü]<hr> [b]"),
    "an end that is missing.html": (
        "<p>a <kbd>X</p><p>b <code>Y<p>Z</p></code> c</p>",
        ["a <kbd>X", "b <code>Y<p>Z</p></code> c"],
        "<p>[a <kbd>X]</p><p>[b <code>Y<p>Z</p></code> c]</p>",
    ),
    "buttons.html": (
        "<button>a</button><label>b <input></label>",
        ["a", "b <input>"],
        "<button>[a]</button><label>[b <input>]</label>",
    ),
    "references of thousands of digits.html": (
        f"a &#{'1' * 5000}; &#{'0' * 5000}98;",
        ["a \ufffd b"],
        "[a &#65533; b]",
    ),
    "nothing.html": ("", [], ""),
    "no letter.html": ("<p>1 &nbsp;<b>&lt;</b>", [], "<p>1 &nbsp;<b>&lt;</b>"),
    "no tag.html": ("a\n b", ["a b"], "[a b]"),
    "what isn't closed.html": ("a <b>c<p>d<script>e", ["a <b>c", "d<script>e"], "[a <b>c]<p>[d<script>e]"),
    "escaped tags.xlf": (
        UNITS.format("a &lt;b&gt;x&lt;/b&gt;&lt;br&gt; &amp;"),
        ['a <g id="0">x</g><x id="2"/> &amp;'],
        FILLED.format("a &lt;b&gt;x&lt;/b&gt;&lt;br&gt; &amp;"),
    ),
    "lines that count, with tags.xlf": (
        KEEPING.format("a <g id='1'\n>b</g>\n\n<!-- \n -->c"),
        ["a <g id='1'\n>b</g><?end-of-line?><?end-of-line?><!-- \n -->c"],
        KEEPING_FILLED.format("a <g id='1'\n>b</g>\n\n<!-- \n -->c"),
    ),
    "lines that count, with escaped tags.xlf": (
        KEEPING.format("a &lt;b&gt;b&lt;/b&gt;\nc"),
        ['a <g id="0">b</g><?end-of-line?>c'],
        KEEPING_FILLED.format("a &lt;b&gt;b&lt;/b&gt;\nc"),
    ),
    "tags as they stand.xlf": (
        UNITS.format("\n <g id='1'\n x='p  q'>a</g>\n"),
        ["\n <g id='1'\n x='p  q'>a</g>\n"],
        FILLED.format("\n <g id='1'\n x='p  q'>a</g>\n"),
    ),
    "a copy of the source is no translation.xlf": (
        UNITS.format('a</source><target state="needs-translation">a</target>').replace(
            "</target></source>", "</target>"
        ),
        ["a"],
        UNITS.format('a</source><target state="translated">[a]</target>').replace("</target></source>", "</target>"),
    ),
    "segments that wait for their translation.xlf": (
        UNITS.format(
            'a</source><target><mrk mtype="seg" mid="1"/> <mrk mid="2" comment="a>b"> </mrk></target>'
        ).replace("</target></source>", "</target>"),
        ["a"],
        UNITS.format('a</source><target state="translated">[a]</target>').replace("</target></source>", "</target>"),
    ),
    "segments of a source that is segmented.xlf": (
        SEGMENTED.format(
            ' state="new"', '<mrk mtype="seg" mid="1"></mrk>', '<mrk mid="2"/>', '<mrk mid="3" mtype="seg"> </mrk>'
        ),
        ["a.", "<g>b</g>"],
        SEGMENTED.format(
            ' state="translated"',
            '<mrk mtype="seg" mid="1">[a.]</mrk>',
            '<mrk mid="2">7</mrk>',
            '<mrk mid="3" mtype="seg">[<g>b</g>]</mrk>',
        ),
    ),
    "segments within codes.xlf": (
        WITHIN.format("new", "<mrk mid='1'>a</mrk> <g id='1'><mrk mid='2'>b</mrk></g>"),
        ["a", "b"],
        WITHIN.format("translated", "<mrk mid='1'>[a]</mrk> <g id='1'><mrk mid='2'>[b]</mrk></g>"),
    ),
    "empty segments within codes.xlf": (
        WITHIN.format("final", "<mrk mid='1'/> <g id='1'><mrk mid='2'></mrk></g>"),
        ["a", "b"],
        WITHIN.format("translated", "<mrk mid='1'>[a]</mrk> <g id='1'><mrk mid='2'>[b]</mrk></g>"),
    ),
    "escaped tags that keep their text.xlf": (
        UNITS.format('a &lt;b translate="no"&gt;x&lt;/b&gt; &lt;i class="notranslate"&gt;y&lt;/i&gt;'),
        ['a <g id="0" translate="no">x</g> <g id="2" translate="no">y</g>'],
        FILLED.format('a &lt;b translate="no"&gt;x&lt;/b&gt; &lt;i class="notranslate"&gt;y&lt;/i&gt;'),
    ),
    "a finer state goes with its state.xlf": (
        SEGMENT.format('state="initial" subState="x:y"', "<target>a</target>"),
        ["a"],
        SEGMENT.format('state="translated"', "<target>[a]</target>"),
    ),
    "the language before its regions.tmx": (
        '<tmx><tu><tuv xml:lang="en-GB"><seg>a</seg></tuv><tuv xml:lang="EN"><seg>b</seg></tuv></tu></tmx>',
        ["b"],
        '<tmx><tu><tuv xml:lang="en-GB"><seg>a</seg></tuv><tuv xml:lang="EN"><seg>b</seg></tuv>'
        '<tuv xml:lang="de"><seg>[b]</seg></tuv></tu></tmx>',
    ),
}
"""Texts of documents that are hard to read: what is to be translated, and the document with that in brackets."""


@pytest.mark.parametrize("name", HARD)
def test_what_is_hard_to_read_is_read_and_written_as_it_was(name):
    content, sources, expected = HARD[name]
    units = read_units(content.encode(), kind_of(name), name, ("en", "de"))
    assert [unit.source for unit in units] == sources
    assert not any(unit.is_translated for unit in units)
    edits = [edit for one in units for edit in one.place(f"[{one.source}]")]
    assert apply(content.encode(), edits).decode() == expected


def test_a_target_with_a_code_or_text_in_a_segment_is_a_translation():
    for held in ("<x id='2'/>", "<![CDATA[A]]>"):
        content = WITHIN.format("final", f"<mrk mid='1'>{held}</mrk> <g id='1'><mrk mid='2'></mrk></g>").encode()
        assert [unit.is_translated for unit in read_units(content, "xliff", "a.xlf", None)] == [True, True]


def test_times_within_a_cue_keep_their_order():
    """WebVTT wants them so: each word of karaoke begins after the one before it."""
    content = f"{CUE}I <00:01.500>have <00:02.000>seen <00:02.500><c>it</c>\n".encode()
    [unit] = read_units(content, "vtt", "a.vtt", None)
    assert unit.source == 'I <x id="0"/>have <x id="1"/>seen <x id="2"/><g id="3">it</g>'
    moved = 'Ich <x id="0"/>habe <x id="2"/><g id="3">es</g> <x id="1"/>gesehen'
    assert (
        apply(content, unit.place(moved)).decode()
        == f"{CUE}Ich <00:01.500>habe <00:02.000><c>es</c> <00:02.500>gesehen\n"
    )


@pytest.mark.parametrize(
    ("head", "written"),
    [
        ("", "&#252; &amp;"),
        ("<meta charset=latin1>", "&#252; &amp;"),
        ("<!-- <meta charset=utf-8> -->", "&#252; &amp;"),
        ("<meta name=description content='charset=utf-8'>", "&#252; &amp;"),
        ("<META CharSet = 'UTF-8'/>", "ü &amp;"),
        ("<meta http-equiv=Content-Type content='text/html;charset=utf8'>", "ü &amp;"),
        ("é", "ü &amp;"),
    ],
)
def test_a_page_that_does_not_say_its_encoding_is_read_the_same_in_all(head, written):
    content = f"{head}<p>a".encode()
    [*_, unit] = read_units(content, "html", "a.html", None)
    assert apply(content, unit.place("ü &")).decode() == f"{head}<p>{written}"


@given(
    st.lists(
        st.sampled_from(
            [
                *("a", " ", "\r\n", "ü", "\ufeff", "&lt;", "<p>", "</p>", "<b>", "</b>", "<!-- x -->", "<br>", "<kbd>"),
                *("<code>x</code>", "<script>a\n</script>", "<p translate=no>", "<style>", "<a", "<!--"),
            ]
        )
    )
)
def test_a_page_whose_texts_stay_is_the_same_page(pieces):
    content = "".join(pieces).encode()
    units = read_units(content, "html", "a.html", None)
    for unit in units:
        [edit] = unit.place(unit.source)
        read = content[edit.start : edit.end].decode()
        assert unit.source == (read if unit.has_tags else re.sub(r"\s+", " ", unescape(read)))
        assert read == read.strip("\ufeff \r\n")
    with_tags = [edit for unit in units if unit.has_tags for edit in unit.place(unit.source)]
    assert apply(content, with_tags) == content


def test_each_kind_of_document_has_a_reader():
    assert {*READERS, "tmx"} == set(ENDINGS_OF) == set(get_args(DocumentKind))


def test_tags_are_given_as_xml_where_the_document_is_xml():
    names = ["a.xlf", "a.XLIFF", "a.tmx", "a.vtt", "a.po", "a.pot", "a.srt", "a.json", "a.htm"]
    assert [name for name in names if tags_of(kind_of(name)) == "xml"] == names[:4]


@given(
    st.lists(
        st.sampled_from(
            ["a", " ", "<b>", "</b>", "<i x='1'>", "</I>", "<br/>", "<code>", "</code>", "&", "&lt;", "<", "\n"]
        ),
        max_size=9,
    )
)
def test_tags_of_html_are_read_back_as_they_were(pieces):
    text = "".join(pieces)
    for form in (as_html, as_xml):
        markup, written = form(text)
        assert written(markup) == text
    ElementTree.fromstring(f"<r>{as_xml(text)[0]}</r>")


@given(
    st.lists(
        st.sampled_from(
            [
                *("a", " ", "\n", "\r\n", "- ", "<v B>", "</v>", "<i>", "</i>", "<c.x>", "</c>", "<00:01.500>"),
                *("&", "&lt;", "<"),
            ]
        )
    )
)
def test_cues_whose_texts_stay_are_read_the_same_again(pieces):
    content = f"{CUE}{''.join(pieces)}\n\n00:03.000 --> 00:04.000\nb\n".encode()
    units = read_units(content, "vtt", "a.vtt", None)
    again = apply(content, [edit for unit in units for edit in unit.place(unit.source)])
    read = [unit.source for unit in read_units(again, "vtt", "a.vtt", None)]
    assert read == [re.sub(" +", " ", unit.source) for unit in units]
    assert units[-1].source == "b"


def test_a_large_document_takes_time_that_grows_with_its_length():
    unit = '<trans-unit id="1"><source>a</source></trans-unit>\n'
    large = f'<xliff version="1.2"><!--{" " * (1 << 24)}--><file><body>{unit * 400}</body></file></xliff>'
    units = read_units(large.encode(), "xliff", "a.xlf", None)
    began = time.thread_time()
    assert len([edit for one in units for edit in one.place("b")]) == 400
    others = {
        "a.po": "\n" * 50_000,
        "a.srt": "1:00:00,0 --> 1:00:00,0\n" + " " * 50_000,
        "a.html": "<meta " * 50_000,
        "a.vtt": CUE + "<i>" * 20_000,
        "b.vtt": CUE + " " * 50_000,
        "c.vtt": CUE + "</" * 50_000,
        "d.vtt": f"{CUE}</{'a' * 50_000}",
        "e.vtt": f"{CUE}<{'a' * 50_000}",
        "f.vtt": f"{CUE}a{' &nbsp;' * 20_000}",
    }
    for name, text in others.items():
        with suppress(DataError):
            read_units(text.encode(), kind_of(name), name, None)
    assert time.thread_time() - began < 1, "each unit copied all that is before it"


def test_the_translate_toolkit_reads_them(tmp_path):
    storage = pytest.importorskip("translate.storage", reason="pip install 'glassformer[formats]'")
    from translate.storage import po, tmx, xliff, xliff2

    assert storage is not None
    found = {}
    kinds = {"one.xlf": xliff.xlifffile, "two.xliff": xliff2.Xliff2File, "m.tmx": tmx.tmxfile, "c.po": po.pofile}
    for name, kind in kinds.items():
        store = kind()
        store.parse(bracketed(name).encode("iso-8859-1" if name == "m.tmx" else "utf-8"))
        found[name] = [(str(unit.target), unit.isfuzzy()) for unit in store.units if unit.target]
    assert [text for text, _ in found["one.xlf"]] == ["[One ü<]", "[Two & more<]", "fertig", "[Six<]"]
    assert [text for text, _ in found["two.xliff"]] == ["[One<]", "[Two<]"]
    assert [text for text, _ in found["m.tmx"]][:3] == ["[One ü<]", "[Two<]", "Fertig"]
    assert found["c.po"][1:] == [
        ('[One "ü"<]', False),
        ("fertig", True),
        ("[file\n<]", False),
        ("[first\nsecond<]", False),
    ]


@pytest.fixture(scope="module")
def translator() -> Translator:
    words = SymbolTokenizer(["One", "Two", "Two."])
    torch.manual_seed(3)
    sizes = ModelConfig.tiny(source_vocab_size=words.vocab_size, target_vocab_size=words.vocab_size)
    return Translator.of(Transformer(sizes), words, words, "float32")


SEARCH = SearchConfig(beam=1, max_length=4, min_length=1)


def test_a_document_has_the_translations_of_its_texts(translator, tmp_path):
    source = tmp_path / "a.JSON"
    source.write_text('["One Two", "Two.\\n\\nOne", 5]')
    done = translate_document(translator, source, tmp_path / "out.json", config=SEARCH)
    one, two, three = (f"{text}" for text in translator.translate(["One Two", "Two.", "One"], SEARCH))
    assert (tmp_path / "out.json").read_text() == f'["{one}", "{two}\\n\\n{three}", 5]'
    assert (done.translated, done.kept) == (2, 0)
    [first] = translator.translations(["One Two"], SEARCH)
    assert done.plain.cuts.lines == first.cut + 1
    again = translate_document(translator, str(source), tmp_path / "o.json", config=SEARCH, segment="paragraph")
    assert again.translated == 2


def test_what_is_translated_is_kept_or_replaced_and_tags_come_back(translator, tmp_path):
    (tmp_path / "a.xlf").write_text(XLIFF_1, encoding="utf-8")
    done = translate_document(translator, tmp_path / "a.xlf", tmp_path / "b.xlf", config=SEARCH)
    assert (done.translated, done.kept) == (4, 1)
    assert 'state="final">fertig<' in (tmp_path / "b.xlf").read_text(encoding="utf-8")
    done = translate_document(translator, tmp_path / "a.xlf", tmp_path / "c.xlf", config=SEARCH, overwrite_targets=True)
    assert (done.translated, done.kept) == (5, 0)
    out = (tmp_path / "c.xlf").read_text(encoding="utf-8")
    (expected,) = translate_markup(translator, ['with <g id="1">tag</g>'], format="xml", config=SEARCH)
    assert f'<target state="translated">{expected}</target></trans-unit>' in out
    assert "fertig" not in out
    draws = SearchConfig(sample=True)
    with pytest.raises(ConfigError, match="text with tags is translated by a search"):
        translate_document(translator, tmp_path / "a.xlf", tmp_path / "d.xlf", config=draws, placeholders=None)


BAD = {
    "a.txt": (b"x", "must be a document that ends with one of .xliff"),
    "a.xlf": (b"<xliff version='1.2'><file></xliff>", "a.xlf is not XML that can be read: mismatched tag"),
    "b.xlf": (b"<tmx/>", "root element tmx, xliff was expected"),
    "c.xlf": (b"<xliff version='3.0'/>", "XLIFF of the version 3.0: 1.2 and 2 can be read"),
    "d.xlf": (
        b'<!DOCTYPE x [<!ENTITY a "aa">]><xliff version="1.2">&a;</xliff>',
        "declares entities, which are not read",
    ),
    "e.xlf": (b'<!DOCTYPE x [<!ENTITY a SYSTEM "/etc/passwd">]><xliff>&a;</xliff>', "declares entities"),
    "f.xlf": (b"<xliff>" * 200, "has too many elements, or they are nested too deeply"),
    "g.xlf": (b'<?xml version="1.0" encoding="Shift_JIS"?><xliff/>', "is in shift_jis: save it as UTF-8"),
    "h.xlf": ("<xliff/>".encode("utf-16"), "save it as UTF-8"),
    "i.xlf": (b'<!DOCTYPE x SYSTEM "x.dtd"><xliff version="1.2">&a;</xliff>', "declares entities"),
    "a.tmx": (b"<xliff/>", "root element xliff, tmx was expected"),
    "b.tmx": (b"<tmx/>", "has no segment in the language en"),
    "a.po": (b"hello", "has no msgid: is it a PO file"),
    "b.po": (b'msgid "a"\nmsgstr ""\nwhat\n', "b.po, line 3: it is no line of a PO file"),
    "c.po": (b'msgid "a\nmsgstr ""\n', "c.po, line 1: a string doesn't end"),
    "d.po": (b'msgid "\xff"\nmsgstr ""\n', "is not UTF-8 .byte 7.: convert it from the encoding that it is in"),
    "e.po": (b'msgid_plural "a"\nmsgstr[0] ""\nmsgid "b"\n', "e.po, line 2: msgstr without msgid"),
    "f.po": (
        b'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\nmsgid "a"\nmsgstr ""\n',
        "f.po says that it is in ISO-8859-1: convert it with msgconv",
    ),
    "g.po": (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=GB18030\\n"\n\nmsgid "他吃鱼"\nmsgstr ""\n'.encode(
            "gb18030"
        ),
        "g.po says that it is in GB18030: convert it with msgconv",
    ),
    "h.po": (
        'msgid ""\nmsgstr "Project: x\\nContent-Type: text/plain; charset=GBK\\n"\n\nmsgid "他"\nmsgstr ""\n'.encode(
            "gbk"
        ),
        "h.po says that it is in GBK: convert it with msgconv",
    ),
    "i.po": (
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=latin1\\n"\n\nmsgid "ü"\nmsgstr ""\n'.encode("latin-1"),
        "i.po says that it is in latin1: convert it with msgconv",
    ),
    "a.srt": (b"1\n", "has no cue such as 00:00:01,000"),
    "b.srt": (
        "1\n00:00:01,000 --> 00:00:02,000\n他今天在家里吃鱼。\n".encode("gb18030"),
        "b.srt is not UTF-8 .byte 32.: it may be gb18030: convert it with iconv -f gb18030 -t utf-8",
    ),
    "c.srt": (
        "1\n00:00:01,000 --> 00:00:02,000\nHe eats.\n".encode("utf-16"),
        "c.srt is not UTF-8 .byte 0.: convert it with iconv -f utf-16 -t utf-8",
    ),
    "a.vtt": (b"00:01.000 --> 00:02.000\na\n", "a.vtt doesn't begin with WEBVTT, as .vtt files do"),
    "b.vtt": (b"WEBVTT\n\n00:01,000 --> 00:02,000\na\n", "has no cue with a text after times such as 00:01.000 -->"),
    "b.html": (
        b"<meta charset=ISO-2022-JP><p>\x1b$B",
        "b.html says that it is in iso-2022-jp: convert it with iconv -f iso-2022",
    ),
    "c.html": ("<meta charset=latin1><p>ü".encode(), "c.html says that it is in latin1, and is UTF-8: let"),
    "d.html": (
        '<meta charset="windows-1250"><p>Łódź'.encode("windows-1250"),
        "d.html says that it is in windows-1250: convert it with iconv -f windows-1250 -t utf-8, and let it say utf-8",
    ),
    "a.html": (b"<p>\xff", "a.html is not UTF-8 .byte 3.: convert it from the encoding that it is in"),
    "a.json": (b'{"a": }', "is not JSON: Expecting value"),
    "b.json": (b"[" * 100_000, "is not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_document_is_named_and_nothing_written(name, translator, tmp_path):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as wrong:
        translate_document(translator, tmp_path / name, tmp_path / "out", languages=("en", "de"))
    assert "\n" not in str(wrong.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_settings_that_a_document_can_not_have_are_refused(translator, tmp_path):
    (tmp_path / "a.tmx").write_text("<tmx/>")
    with pytest.raises(ConfigError, match="n_best must be 1, got 2"):
        translate_document(translator, tmp_path / "a.tmx", tmp_path / "b", config=SearchConfig(n_best=2))
    with pytest.raises(
        ConfigError, match="the run doesn't say which two it translates: give `languages`, such as en de"
    ):
        translate_document(translator, tmp_path / "a.tmx", tmp_path / "b")
    with pytest.raises(ConfigError, match=r"output and input must be two files, got .*a\.tmx for both"):
        translate_document(translator, tmp_path / "a.tmx", tmp_path / "a.tmx", languages=("en", "de"))
    with (tmp_path / "a.po").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="at most 67,108,864 are read"):
        translate_document(translator, tmp_path / "a.po", tmp_path / "b")


@pytest.mark.parametrize("segment", ["line", "paragraph"])
@pytest.mark.parametrize("kind", ["json", "po", "srt", "vtt", "xlf", "tmx", "html"])
def test_terms_and_placeholders_reach_every_kind_of_document(kind, segment, translator, tmp_path):
    texts = {
        "json": '{"a": "One %s. Two."}',
        "po": 'msgid "One %s. Two."\nmsgstr ""\n',
        "srt": "1\n00:00:01,000 --> 00:00:02,000\nOne %s. Two.\n",
        "vtt": f"{CUE}One %s. Two.\n",
        "xlf": '<xliff version="1.2"><trans-unit><source>One %s. Two.</source></trans-unit></xliff>',
        "tmx": '<tmx><tu><tuv xml:lang="en"><seg>One %s. Two.</seg></tuv></tu></tmx>',
        "html": "<p>One\n%s. Two.</p>",
    }
    (tmp_path / f"a.{kind}").write_text(texts[kind])
    done = translate_document(
        translator,
        tmp_path / f"a.{kind}",
        tmp_path / f"b.{kind}",
        config=SearchConfig(beam=2, max_length=12),
        segment=segment,
        glossary=Glossary({"One": "Eins", "Two": "Zwei|Drei"}),
        placeholders="default",
        languages=("en", "de"),
    )
    out = (tmp_path / f"b.{kind}").read_text()
    terms = done.plain.terms
    assert (terms.terms, terms.placeholders, terms.missing) == (2, 1, [])
    assert all(word in out for word in ("Eins", "Zwei|Drei"))
    assert out.count("%s") == (1 if kind in ("json", "srt", "vtt", "html") else 2)


def test_placeholders_of_a_document_are_copied_unless_that_is_turned_off(translator, tmp_path):
    (tmp_path / "a.po").write_text('#, python-format\nmsgid "One %(n)s Two"\nmsgstr ""\n')
    for name, found, options in (("b.po", 2, {}), ("c.po", 1, {"placeholders": None})):
        done = translate_document(translator, tmp_path / "a.po", tmp_path / name, config=SEARCH, **options)
        assert (tmp_path / name).read_text().count("%(n)s") == found
        assert done.plain.terms.placeholders == found - 1


@pytest.mark.parametrize(
    ("text", "count", "lines"),
    [
        *(("one two three four", 2, ["one two", "three four"]), ("one", 2, ["one"]), ("a b", 5, ["a", "b"])),
        *(("", 1, [""]), ("Quoi\u202f? Rien\xa0!", 4, ["Quoi\u202f?", "Rien\xa0!"])),
    ],
)
def test_a_cue_breaks_into_as_many_lines(text, count, lines):
    assert break_lines(text, count) == lines


TWO_REGIONS = '<tmx><tu><tuv xml:lang="en-GB"><seg>a</seg></tuv><tuv xml:lang="en-US"><seg>b</seg></tuv></tu></tmx>'
APART = '<tmx><tu><tuv xml:lang="pt-BR"><seg>a</seg></tuv></tu><tu><tuv xml:lang="pt"><seg>b</seg></tuv></tu></tmx>'


@pytest.mark.parametrize(
    ("content", "languages", "sources"),
    [
        (TWO_REGIONS, ("en", "en-GB"), ["b"]),
        (TWO_REGIONS, ("en-GB", "en"), ["a"]),
        (APART, ("pt", "pt-BR"), ["b"]),
        (APART, ("pt-BR", "pt"), ["a"]),
    ],
)
def test_a_source_is_never_its_own_target(content, languages, sources):
    assert [unit.source for unit in read_units(content.encode(), "tmx", "m.tmx", languages)] == sources
