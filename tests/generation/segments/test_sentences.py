"""Sentences of a line: where they end, that nothing is lost, and what comes back between them."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.demo.dates import make_dates
from glassformer.generation.segments.sentences import join_short, merged_spans, split_long, split_sentences

SENTENCES = {
    "english": [
        "It rained.",
        "Dr. Who came at 5 p.m. and left.",
        "J. Smith paid 3.50.",
        "See No. 5, please!",
        '"Oh?"',
        "Yes.",
    ],
    "numbers": ["It was in 1999.", "The price rose by 2.5.", "Then 20. May came."],
    "german": ["Er kam am 3. Mai an.", "Das war z. B. schön!", "„Hilfe!“ rief er.", "Ende."],
    "french": ["Il dit : « Viens ! »", "Il partit…", "Où ?"],
    "russian": ["Он пришёл.", "Т. е. г. Москва.", "Что?", "Да!"],
    "greek": ["Ήρθε.", "Έφυγε!"],
    "names": ["Yahoo! is fun.", "Was it?"],
    "hindi": ["मैं आया।", "वह गया॥", "ए. पी. जे. अब्दुल कलाम आए।", "डॉ. शर्मा आए।"],
    "arabic": ["هل جئت؟", "نعم.", "قال أ. محمد ذلك.", "وصل د. أحمد."],
    "hebrew": ["א. ב. יהושע כתב ספר.", "טוב."],
    "thai and korean": ["ก.", "ข.", "가.", "나."],
    "shortened words": ["En EE. UU. viven muchos.", "Пришёл проф. Иванов.", "Kościół św. Anny.", "Vgl. Kap. Drei."],
    "urdu": ["میں آیا۔", "وہ گیا۔"],
    "armenian": ["Բարեւ։", "Լավ։"],
    "amharic": ["ሰላም።", "ደህና።"],
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_end_where_they_do(language):
    assert split_sentences(" ".join(SENTENCES[language])).texts == SENTENCES[language]


@pytest.mark.parametrize("unit", [".", "a. B", "…", "。", "! ", ", ", "( ", "« "])
@pytest.mark.usefixtures("unchecked")
def test_a_line_takes_no_longer_than_its_length(unit):
    line = (unit * 40_000)[:40_000]
    began = time.thread_time()
    split = split_sentences(line)
    assert "".join(split.texts).replace(" ", "") == line.replace(" ", "")
    assert time.thread_time() - began < 1, "the word before each full stop was looked for from the line's beginning"


def test_a_date_is_never_cut_in_two():
    for date in make_dates(train=2000, valid=1, test=1).train:
        assert split_sentences(date.phrase).texts == [date.phrase]


def test_the_code_of_a_language_holds_for_its_whole_line_and_begins_no_sentence():
    assert split_sentences(">>deu<< It rained. It poured.").texts == [">>deu<< It rained. It poured."]
    assert split_sentences("He said. >>Bravo<< he cried. Yes.").texts == ["He said. >>Bravo<< he cried.", "Yes."]
    assert split_sentences("下雨了。>>deu<<").texts == ["下雨了。>>deu<<"]


def test_chinese_and_japanese_need_no_space():
    assert split_sentences("他说：“你好。”她走了！真的……我不知道。").texts == [
        "他说：“你好。”",
        "她走了！",
        "真的……我不知道。",
    ]
    assert split_sentences("「はい。」と言った。雨です。").texts == ["「はい。」と言った。", "雨です。"]


@given(st.text(alphabet='aA1 .!?…。।»"\t\n ', max_size=30))
def test_no_character_is_lost(line):
    found = split_sentences(line)
    assert "".join(gap + text for gap, text in zip(found.gaps, [*found.texts, ""], strict=True)) == line
    assert all(text == text.strip() != "" for text in found.texts)


@pytest.mark.parametrize(
    ("line", "translations", "joined"),
    [
        (" It rained.  It poured.\t", ["A.", "B."], " A.  B.\t"),
        ("It rained. It poured.", ["下雨了。", "下大雨了。"], "下雨了。下大雨了。"),
        ("It rained.  It poured.", ["下雨了。", "下大雨了。"], "下雨了。  下大雨了。"),
        ("下雨了。下大雨了。", ["It rained.", "It poured."], "It rained. It poured."),
        ("下雨了。下大雨了。", ["It rained.", ""], "It rained."),
        ("one\n\n two", ["A", "B"], "A\n\n B"),
    ],
)
def test_white_space_comes_back_between_translations(line, translations, joined):
    assert split_sentences(line).joined(translations) == joined


@given(st.text(alphabet="ab ,甲，;", max_size=40), st.integers(1, 9))
def test_a_long_sentence_is_split_into_pieces_that_fit(text, most):
    pieces = split_long(text, len, most)
    assert "".join(pieces) == text
    assert all(len(piece) <= most or len(piece.strip()) < 2 for piece in pieces)


def test_a_long_sentence_is_split_between_clauses_then_at_spaces_then_anywhere():
    def words(text: str) -> int:
        return len(text.split())

    assert split_long("one two, three four; five six", words, 4) == ["one two, three four;", " five six"]
    assert split_long("one two three four", words, 2) == ["one two ", "three four"]
    assert split_long("甲乙丙丁", len, 2) == ["甲乙", "丙丁"]
    assert split_long("3,000 m", len, 6) == ["3,000 ", "m"]


def test_a_line_with_the_code_of_a_language_stays_whole():
    assert split_sentences("A1. B2.\n>>deu<< C3. D4.\nE5. F6.").texts == ["A1.", "B2.", ">>deu<< C3. D4.", "E5.", "F6."]
    assert split_sentences("A1. B2.\r>>deu<< C3. D4.").texts == ["A1.", "B2.", ">>deu<< C3. D4."]
    assert split_sentences(" \t>>deu<< A1. B2.").texts == [">>deu<< A1. B2."]
    assert split_long(">>deu<< one, two, three", len, 8) == [">>deu<< one, two, three"]
    assert split_long(" >>deu<< one, two, three", len, 8) == [" >>deu<< one, two, three"]


def test_no_piece_of_a_long_sentence_begins_with_a_code():
    pieces = split_long("he said, >>Bravo<< and ran, then", len, 20)
    assert pieces == ["he said, >>Bravo<< ", "and ran,", " then"]
    assert split_long("one >>two<<", len, 6) == ["one >", ">two<<"]
    text = "a" * 50 + " " * 100_000 + ">>b" + "c" * 50
    begun = time.monotonic()
    assert "".join(split_long(text, len, 100_050)) == text
    assert time.monotonic() - begun < 5  # each place within the spaces was looked at to their end: half a minute


@given(st.text(alphabet="ab >,\n", max_size=40), st.integers(1, 9))
def test_no_piece_begins_with_what_its_text_does_not(text, most):
    pieces = split_long(text, len, most)
    assert "".join(pieces) == text
    assert not any(piece.lstrip().startswith(">>") for piece in pieces[1:])


@given(st.text(alphabet="aA1 .。,;\n", max_size=40), st.integers(1, 12), st.integers(1, 4))
def test_sentences_together_are_short_and_the_line_is_whole(line, most, at_once):
    alone = split_sentences(line)
    found = join_short(alone, len, most, at_once)
    assert "".join(gap + text for gap, text in zip(found.gaps, [*found.texts, ""], strict=True)) == line
    assert all(text in alone.texts or len(text) <= most for text in found.texts)
    begins = {begin: n for n, begin in enumerate([*alone.starts(), len(line)])}
    places = [begins[begin] for begin in [*found.starts(), len(line)]]
    assert all(later - place <= at_once for place, later in pairwise(places))


def test_starts_are_places_in_the_line_and_in_what_is_joined():
    segments = split_sentences(" It rained.  It poured.")
    assert segments.starts() == [1, 13]
    assert segments.starts(["Abc.", "D."]) == [1, 7]
    assert split_sentences("下雨了。下大雨了。").starts(["A.", "B."]) == [0, 3]


def test_only_a_single_space_or_nothing_is_left_to_the_model():
    def together(line: str) -> list[str]:
        return join_short(split_sentences(line), len, 99, 3).texts

    assert together("A1. B2. C3. D4.") == ["A1. B2. C3.", "D4."]
    assert together("他来了。她走了！我不知道。") == ["他来了。她走了！我不知道。"]
    assert together("Aa.  Bb. Cc.\tDd.\nEe.") == ["Aa.", "Bb. Cc.", "Dd.", "Ee."]


@given(st.text(alphabet="a. ,!", max_size=30), st.lists(st.tuples(st.integers(0, 15), st.integers(1, 15)), max_size=3))
def test_what_is_whole_stays_in_one_piece(text, spans):
    spans = merged_spans((begin, begin + length) for begin, length in spans)
    line = text.ljust(31, "a")
    sentences = split_sentences(line, spans)
    pieces = split_long(line, len, 4, spans)
    assert "".join(pieces) == line
    ends = [sum(map(len, pieces[: n + 1])) for n in range(len(pieces))]
    ends += [sum(map(len, [*sentences.gaps[: n + 1], *sentences.texts[: n + 1]])) for n in range(len(sentences.texts))]
    assert not any(begin < end < stop for end in ends for begin, stop in spans)


def test_spans_that_overlap_are_one():
    assert merged_spans([(5, 9), (0, 2), (1, 3), (6, 7), (3, 4)]) == [(0, 3), (3, 4), (5, 9)]


def test_a_line_of_marks_is_split_like_any_other():
    text = "a" + "\u0301" * 3000
    pieces = split_long(text, len, 100)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 100
