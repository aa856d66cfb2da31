from pathlib import Path

import pytest

from glassformer.errors import ArgumentError, DataError
from glassformer.generation.lexical.glossary import Glossary


def found(glossary: Glossary, line: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(line[match.begin : match.end], match.forms) for match in glossary.find(line)]


def test_of_entries_that_overlap_the_first_counts_then_the_longest():
    glossary = Glossary({"New York": "A", "York City Hall": "B", "New York City": "C", "Hall": "D"})
    assert found(glossary, "New  York City Hall, York City Hall") == [
        ("New  York City", ("C",)),
        ("Hall", ("D",)),
        ("York City Hall", ("B",)),
    ]


def test_words_match_whole_but_for_scripts_without_spaces():
    glossary = Glossary({"cat": "Katze", "狗": "Hund", "50%": "halb"})
    assert found(glossary, "cat's concat cats 小狗的 50% 150%") == [
        ("cat", ("Katze",)),
        ("狗", ("Hund",)),
        ("50%", ("halb", "Halb")),
    ]


def test_an_entry_with_a_capital_matches_as_it_is_written():
    glossary = Glossary({"US": "USA", "us": "uns", "Apple": "Apple", "apple": "Apfel"})
    assert found(glossary, "Us and US: us, Apple, apple, APPLE") == [
        ("Us", ("uns", "Uns")),
        ("US", ("USA",)),
        ("us", ("uns", "Uns")),
        ("Apple", ("Apple",)),
        ("apple", ("Apfel",)),
    ]


def test_a_letter_with_its_mark_is_one_however_it_is_written():
    glossary = Glossary({"café": "Kaffee", "a\u030a": []})
    assert found(glossary, "Cafe\u0301 café å") == [
        ("Cafe\u0301", ("Kaffee",)),
        ("café", ("Kaffee",)),
        ("å", ("å",)),
    ]


def test_in_a_line_of_capitals_entries_without_a_capital_match():
    assert found(Glossary({"red dog": "Rotfuchs"}), "A RED DOG") == [("RED DOG", ("Rotfuchs", "ROTFUCHS"))]


def test_what_has_no_form_or_itself_is_kept_as_it_stands():
    glossary = Glossary({"foo bar": [], "ABC": "", "xyz": "xyz"})
    assert found(glossary, "Foo bar, ABC xyz") == [("Foo bar", ("Foo bar",)), ("ABC", ("ABC",)), ("xyz", ("xyz",))]


def test_files_are_read_with_forms_and_what_is_kept(tmp_path: Path):
    terms, keep = tmp_path / "terms.tsv", tmp_path / "keep.txt"
    terms.write_text("dog\tHund | Köter\n\nShop\ndog\tRüde\n", encoding="utf-8")
    keep.write_text("a\tb\n glassformer \n", encoding="utf-8")
    read = Glossary.read(terms, keep)
    assert [(term.source, term.forms) for term in read.terms] == [
        ("dog", ("Hund", "Köter", "Rüde")),
        ("Shop", ()),
        ("a b", ()),
        ("glassformer", ()),
    ]
    assert len(read) == 4
    assert read.digest == Glossary.read(terms, keep).digest != Glossary.read(terms).digest


@pytest.mark.parametrize("line", ["dog\tHund\tx", "dog\tHund||Rüde", "\tHund"])
def test_a_line_of_another_form_is_named(line, tmp_path: Path):
    path = tmp_path / "terms.tsv"
    path.write_text(f"cat\tKatze\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"terms\.tsv, line 2, must be a source, a tab and a target"):
        Glossary.read(path)


@pytest.mark.parametrize("separator", [",", ";", " = ", " - "])
def test_a_table_that_another_separator_parts_is_refused(separator, tmp_path: Path):
    path = tmp_path / "terms.csv"
    path.write_text(f"cat{separator}Katze\ndog{separator}Hund\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"terms\.csv has no tab, and a '{separator.strip()}' in every line, got 'cat"):
        Glossary.read(path)
    path.write_text(f"cat{separator}Katze\ndog\n", encoding="utf-8")
    assert len(Glossary.read(path)) == 2


def test_a_source_that_is_kept_has_no_targets(tmp_path: Path):
    terms, keep = tmp_path / "terms.tsv", tmp_path / "keep.txt"
    terms.write_text("dog\tdog\ncat\tKatze\n", encoding="utf-8")
    keep.write_text("dog\ncat\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"keep\.txt, line 2: 'cat' is to be kept, and .*terms\.tsv has targets for it"):
        Glossary.read(terms, keep)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_term_is_refused():
    with pytest.raises(ArgumentError, match="terms must be str with str, or with several, got 3"):
        Glossary({"a": [3]})
    with pytest.raises(ArgumentError, match="terms must be str with str, or with several, got None"):
        Glossary({"a": None})
    with pytest.raises(
        ArgumentError, match=r"terms must be a mapping from each source to its forms, got \[\('a', 'b'\)\]"
    ):
        Glossary([("a", "b")])
    with pytest.raises(DataError, match="a term must have letters or marks, got ' '"):
        Glossary({" ": "x"})
