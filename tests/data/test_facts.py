"""Facts about pairs of text, against counts by hand."""

import pytest

from glassformer.data.facts import describe_pairs, script_of, shortened


def test_counts_by_hand():
    facts = describe_pairs([("ab c", "x"), ("", "yy yy"), ("ab c", "x"), ("same", "same"), ("abcdefgh", "x y z")])
    source, target = facts.source, facts.target
    assert facts.pairs == 5
    assert (source.characters, source.words, source.longest) == (20 / 5, 6 / 5, 8)
    assert (source.distinct_words, source.distinct_characters) == (4, 11)
    assert list(source.histogram) == [1, 0, 0, 3, 1]  # of 0, 1, 2 to 3, 4 to 7, 8 to 15 characters
    assert list(target.histogram) == [0, 2, 0, 3]
    assert (facts.empty.count, facts.empty.number, facts.empty.example) == (1, 2, " -> yy yy")
    assert (facts.repeated.count, facts.repeated.number) == (1, 3)
    assert (facts.copies.count, facts.copies.example) == (1, "same -> same")
    assert facts.swapped.count == 0


def test_long_examples_are_cut():
    facts = describe_pairs([("a" * 100, "")])
    assert facts.empty.example == f"{'a' * 57}... -> "


def test_no_pairs_are_no_error():
    facts = describe_pairs([])
    assert (facts.pairs, facts.source.characters, facts.source.script) == (0, 0, "")
    assert list(facts.suspicions(are_all=True)) == []


@pytest.mark.parametrize(
    ("letter", "script"),
    [
        *(("a", "Latin"), ("ß", "Latin"), ("я", "Cyrillic"), ("世", "Han"), ("カ", "Katakana"), ("한", "Hangul")),
        *(("5", ""), ("。", "")),
    ],
)
def test_scripts(letter, script):
    assert script_of(letter) == script


def test_sides_that_changed_places_are_found_by_their_script():
    facts = describe_pairs(
        [
            ("hello", "你好"),
            ("再见再见 (bye)", "goodbye"),
            ("one", "一"),
            ("2", "3"),
            ("two words", "两个词语和更多的字"),
        ]
    )
    assert (facts.source.script, facts.target.script) == ("Latin", "Han")
    assert (facts.swapped.count, facts.swapped.number, facts.swapped.example) == (1, 2, "再见再见 (bye) -> goodbye")


@pytest.mark.parametrize("turned", [0, 50, 300, 490])
def test_sides_that_changed_places_are_found_where_most_letters_of_both_are_of_one_script(turned):
    pairs = [(f"the cat number {n} is sitting on the mat", f"猫{n}坐在垫子上") for n in range(1000)]
    facts = describe_pairs([pair[::-1] if n < turned else pair for n, pair in enumerate(pairs)])
    assert (facts.source.script, facts.target.script) == ("Latin", "Latin" if turned > 50 else "Han")
    assert facts.swapped.count == turned


def test_sides_that_changed_places_are_found_by_their_words(syllables):
    pairs = [(source, target.lower().replace("a", "å")) for source, target in syllables(400)]
    turned = [(target, source) if n in (7, 90, 200) else (source, target) for n, (source, target) in enumerate(pairs)]
    facts = describe_pairs(turned)
    assert 1 <= facts.swapped.count <= 3
    assert facts.swapped.number in (8, 91, 201)
    assert describe_pairs(pairs).swapped.count == 0


def test_what_is_suspicious_of_many_pairs_is_said_with_its_share():
    facts = describe_pairs([("one", "eins"), ("same", "same"), ("", "leer"), *[(str(n), f"{n}.") for n in range(7)]])
    assert list(facts.suspicions(are_all=True, least=0.1)) == [
        "empty side (left out): 10% of the pairs, for example  -> leer",
        "target copies the source: 10% of the pairs, for example same -> same",
    ]
    assert list(facts.suspicions(are_all=True, least=0.2)) == []


def test_examples_hold_no_control_characters():
    facts = describe_pairs([("\x1b[2Jsame", "\x1b[2Jsame")])
    assert facts.copies.example == r"\x1b[2Jsame -> \x1b[2Jsame"
    assert shortened("\n" * 70)[-5:] == r"\n..."
