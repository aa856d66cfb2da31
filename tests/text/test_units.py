from glassformer.text.units import are_one_word, count_of, units_of


def test_words_are_those_that_spaces_part_or_single_letters_where_none_do():
    words = [unit.text for unit in units_of("Der E-Mail-Client, 我们的产品v2! नमस्ते ราคา 서울에서")]
    chinese, thai, korean = list("我们的产品"), list("ราคา"), list("서울에서")
    assert words == ["Der", "E", "-", "Mail", "-", "Client", ",", *chinese, "v2", "!", "नमस्ते", *thai, *korean]


def test_a_danda_ends_a_word_and_a_joiner_goes_on():
    """A Hindi term at the end of a sentence was no match, and part of a Persian word was one."""
    words = [unit.text for unit in units_of("राम।घर॥ می\u200cخواهم क्\u200dष ކުރި")]
    assert words == ["राम", "।", "घर", "॥", "می\u200cخواهم", "क्\u200dष", "ކުރި"]


def test_where_words_stand_is_where_they_were_read():
    line = "  A dog,\t狗 (x)"
    assert all(line[begin:end] == word for word, begin, end in units_of(line))


def test_a_form_counts_where_it_is_a_whole_word():
    assert count_of(["Hund"], "Hund. Hunde, Jagdhund; (Hund) Hund") == 3
    assert count_of(["50"], "50 of 150, 50%") == 2
    assert count_of(["狗"], "小狗和大狗") == 2
    assert count_of(["aa"], "aaaa aa") == 1
    assert count_of(["狗", "小狗", "小狗狗"], "小狗狗、小狗") == 3, "those that overlap are one"
    assert count_of(["red dog", "dog"], "red dog") == 1
    assert count_of(["C++"], "C++ and C++11") == 2, "a letter after a mark begins another word"


def test_marks_and_other_scripts_end_a_word():
    assert are_one_word("a", "b")
    assert not any(are_one_word(*pair) for pair in [("a", " b"), ("a", "狗"), ("(", "b"), ("", "b"), ("a", "")])
