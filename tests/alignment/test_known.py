"""Links that are known without attention: copies stand for themselves, forms for their terms."""

import re

import pytest

from glassformer.alignment.known import link_copies, link_known, link_terms
from glassformer.alignment.links import Link, pharaoh
from glassformer.generation.lexical.glossary import Glossary
from glassformer.text.units import units_of
from glassformer.text.words import split_words

TERMS = Glossary({"dog": ["Hund", "Rüde"], "red fox": "roter Fuchs", "name": "Name", "cat": []})
BRACES = re.compile(r"\{\w+\}")


def linked(function, links, source, target, *known) -> str:
    """The links as Pharaoh writes them, of words between spaces."""
    return pharaoh(function(links, source, split_words(source), target, split_words(target), *known))


@pytest.mark.parametrize(
    ("source", "target", "before", "after"),
    [
        ("a dog runs", "es rennt Hund", [Link(1, 1), Link(2, 2)], "1-2"),
        ("a dog runs", "ein Rüde rennt", [Link(0, 0), Link(1, 1, 0.25), Link(2, 1)], "0-0 1-1"),
        ("dog and dog", "Hund und Rüde", [Link(2, 0), Link(0, 2)], "0-0 2-2"),
        ("the red fox", "roter Fuchs da", [Link(0, 2), Link(2, 2)], "0-2 1-0 2-1"),
        ("the red fox", "roter Fuchs da", [Link(1, 1), Link(2, 0)], "1-1 2-0"),  # the links among its own words stay
        ("a cat runs", "da rennt cat", [Link(1, 0)], "1-2"),
        ("a dog runs", "Hund und Hund", [Link(1, 2), Link(2, 0)], "1-2 2-0"),
        ("a dog runs", "Hund und Hund", [Link(2, 0), Link(2, 2)], "1-0 2-2"),  # the first, where none is linked to it
        ("dog and dog", "ein Hund", [Link(0, 1), Link(2, 1)], "0-1 2-1"),
        ("a dog runs", "er rennt", [Link(1, 1)], "1-1"),
        ("dogs run", "Hund rennt", [Link(1, 0)], "1-0"),
        ("dog, runs", "es rennt Hund.", [Link(1, 2)], "0-2"),
        ("the dog-name", "Hund Name da", [Link(0, 2), Link(1, 2)], "0-2 1-0 1-1"),  # both terms are one word here
        ("a dog name", "ein Hund-Name", [Link(0, 0), Link(0, 1)], "0-0 1-1 2-1"),
    ],
)
def test_a_form_is_linked_to_its_term_and_to_nothing_else(source, target, before, after):
    assert linked(link_terms, before, source, target, TERMS) == after


def test_where_words_have_no_spaces_the_units_of_a_form_are_linked():
    terms = Glossary({"dog": "小狗"})
    pair = ("a dog .", "那是小狗。")
    words = [units_of(line) for line in pair]
    found = link_terms([Link(0, 0), Link(1, 4)], pair[0], words[0], pair[1], words[1], terms)
    assert pharaoh(found) == "0-0 1-2 1-3"


@pytest.mark.parametrize(
    ("source", "target", "before", "after"),
    [
        ("{a} sees {b}", "{b} von {a} gesehen", [Link(0, 0), Link(1, 3), Link(2, 2)], "0-2 1-3 2-0"),
        ("{a} and {a}", "{a} und {a}", [], "0-0 2-2"),
        ("({a}) sees", "sieht {a}.", [Link(1, 1)], "0-1"),
        ("{a} sees", "sieht", [Link(1, 0)], "1-0"),
        ("{a}{b} sees", "sieht {a}{b}", [Link(1, 0)], "0-1 1-0"),
        ("{a}@{b} failed", "failed {b} {a}", [Link(1, 0)], "0-1 0-2 1-0"),
        ("from {a}-{b}", "von {a} bis {b}", [Link(0, 0)], "0-0 1-1 1-3"),
        ("open {a} {b} now", "jetzt {a}{b}", [Link(3, 0)], "1-1 2-1 3-0"),
    ],
)
def test_a_copy_is_linked_to_itself_and_to_nothing_else(source, target, before, after):
    assert linked(link_copies, before, source, target, BRACES) == after


def test_a_term_within_a_copy_is_none():
    links = [Link(0, 0), Link(1, 1)]
    assert linked(link_terms, links, "name {name}", "{name} Name", TERMS, BRACES) == "0-1"
    assert linked(link_known, links, "name {name}", "{name} Name", TERMS, BRACES) == "0-1 1-0"
    assert linked(link_known, links, "name {name}", "{name} Name", None, None) == "0-0 1-1"
