import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import ArgumentError, ConfigError
from glassformer.generation.lexical.placeholders import FIRST_MARK, compiled, protect, put_in

KINDS = [
    "{name}",
    "{0}",
    "{0:.2f}",
    "${x}",
    "%{x}",
    "#{x}",
    "{{ x }}",
    "{}",
    "%s",
    "%1$d",
    "%(name)s",
    "%-5.2f",
    "%%",
    "<ph/>",
]
KINDS += ['<x id="1"/>', "https://a.b/c?d=1&e=f", "www.x.org/y", "a.b+c@d.org"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_placeholder_is_found_whole_between_words(kind):
    assert protect(f"Press {kind}, then go.").placeholders == (kind,)


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("请访问https://example.com，然后登录。", "https://example.com"),
        ("https://example.com/aをご覧ください。次に", "https://example.com/a"),
        ("www.example.com的网站很好", "www.example.com"),
        ("https://a.org।फिर", "https://a.org"),
        ("看https://zh.wikipedia.org/wiki/北京?q=天气 吧", "https://zh.wikipedia.org/wiki/北京?q=天气"),
        ("www.bücher.de/über, https", "www.bücher.de/über"),
        ("See https://a.org/{id}/edit?x=${y}&z={{ n }}.", "https://a.org/{id}/edit?x=${y}&z={{ n }}"),
    ],
)
def test_an_address_ends_where_the_text_goes_on(line, url):
    assert protect(line).placeholders == (url,)


def test_text_is_no_placeholder():
    line = "100% sure, 50%discount: a < b > c, { not one }, me @ home, <b>bold</b>, 5 % of"
    assert protect(line).placeholders == ()


@pytest.mark.parametrize(
    "unit", ["a", "%", "%0", "%1", "0", ".", "{", "{{ ", "<a", "http:", "www.", "a@", "%(", "-", "a@b.", "中", "{a}"]
)
@pytest.mark.usefixtures("unchecked")
def test_a_line_takes_no_longer_than_its_length(unit):
    began = time.thread_time()
    for begin in ("", "%", "http://", "{{", "a@"):
        line = begin + unit * 20_000
        assert protect(line).restore(protect(line).text) == line
    assert time.thread_time() - began < 1, "a long word was searched for an address from each of its letters"


def test_placeholders_that_touch_are_one():
    assert protect("{a}{b} {c}%s").placeholders == ("{a}{b}", "{c}%s")


@given(st.lists(st.sampled_from([*KINDS, "word", " ", ", ", "\U000f0001"]), max_size=9).map("".join))
def test_what_was_taken_out_comes_back_in_any_order(line):
    protected = protect(line)
    assert protected.restore(protected.text) == line
    backwards = protected.restore("".join(reversed(protected.marks)))
    assert backwards == "".join(reversed(protected.placeholders))
    assert Counter(backwards) <= Counter(line)


def test_a_pattern_replaces_the_usual_one_and_may_have_groups():
    line = protect("@a-1 {b} @c-2", compiled(r"@(a|c)-\d"))
    assert line.placeholders == ("@a-1", "@c-2")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", "must be a regular expression, got '\\('"), ("a*", "that no empty text matches, got 'a\\*'")],
)
def test_a_pattern_that_is_none_is_refused(pattern, message):
    with pytest.raises(ConfigError, match=message):
        compiled(pattern)


FLAGGED = [
    (r"(?i)\[name\]", "[NAME]"),
    (r"(?s)<.*?>", "<a\nb>"),
    ("(?x) \\{ \\w+ \\}  # names", "{x}"),
    (r"(?i)(?a)\[é\w+\]", "[éA]"),
]


@pytest.mark.parametrize(("pattern", "found"), FLAGGED)
def test_a_pattern_may_begin_with_flags(pattern, found):
    mark = chr(FIRST_MARK)
    assert protect(f"a {found} {mark}b", compiled(pattern)).placeholders == (found, mark)


@pytest.mark.usefixtures("unchecked")
def test_a_pattern_of_another_type_is_refused():
    with pytest.raises(ArgumentError, match="placeholders must be a pattern"):
        compiled(True)


@pytest.mark.parametrize(
    ("text", "place", "before", "after", "expected"),
    [
        ("Hallo, du", 5, "Hello ", ", you", "Hallo X, du"),
        ("Hallo du", 5, "Hello ", " you", "Hallo X du"),
        ("Hallo du", 6, "Hello ", " you", "Hallo X du"),
        ("( da)", 1, "(", " there)", "(X da)"),
        ("hat px", 3, "has ", "px", "hat X px"),
        ("hatpx", 3, "has ", "px", "hat Xpx"),
        ("你好，世界", 2, "hello ", ", world", "你好X，世界"),
        ("", 0, "", "", "X"),
        ("ab", 1, "", " ", "a X b"),
    ],
)
def test_spaces_are_as_in_the_source_and_as_the_script_has_them(text, place, before, after, expected):
    assert put_in(text, [(place, "X", before, after)]) == expected
