import inspect
import re
import sys
from collections import Counter
from datetime import date, timedelta

import pytest

pytest.importorskip("babel", reason='needs the extra: pip install "glassformer[demo]"')

from glassformer.demo import dates
from glassformer.demo.dates import DatePhrase, DateSplits, _exchangeable, _languages, make_dates
from glassformer.errors import ArgumentError


@pytest.fixture(scope="module")
def splits() -> DateSplits:
    return make_dates(train=16_000)


@pytest.fixture(scope="module")
def phrases(splits: DateSplits) -> list[DatePhrase]:
    return splits.train + splits.valid + splits.test


def spell(name: str, style: str, iso: str) -> set[str]:
    """Every tidy way in which `style` may write a date."""
    day = date.fromisoformat(iso)
    language = next(language for language in _languages() if language.name == name)
    patterns = (p if isinstance(p, str) else p(day) for p in language.styles[style])
    return {language.render(day, pattern).replace("\u202f", " ") for pattern in patterns}


def test_default_sizes(splits):
    defaults = {name: x.default for name, x in inspect.signature(make_dates).parameters.items()}
    assert defaults == {"seed": 0, "train": 40_000, "valid": 500, "test": 2_000}
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (16_000, 500, 2_000)


def test_same_seed_same_dates_another_seed_other_dates():
    sizes = {"train": 101, "valid": 11, "test": 13}
    assert make_dates(seed=3, **sizes) == make_dates(seed=3, **sizes)
    assert make_dates(seed=3, **sizes) != make_dates(seed=5, **sizes)


def test_drawing_depends_on_the_seed_alone():
    # Pinned, so that an iteration order that changes between processes would show itself.
    drawn = make_dates(seed=0, train=1, valid=1, test=5).test
    assert [(p.iso, p.language, p.style) for p in drawn] == [
        ("1965-05-10", "English", "plain"),
        ("1915-06-20", "German", "year first"),
        ("1977-03-18", "French", "weekday"),
        ("1968-04-22", "Spanish", "prose"),
        ("1956-07-26", "Italian", "year first"),
    ]


def test_held_out_splits_do_not_depend_on_training_size(splits):
    fewer = make_dates(train=1_000)
    assert (fewer.test, fewer.valid) == (splits.test, splits.valid)
    assert fewer.train == splits.train[:1_000]


def test_no_date_and_no_phrase_twice_within_or_across_splits(phrases):
    assert len({p.iso for p in phrases}) == len(phrases)
    assert len({p.phrase for p in phrases}) == len(phrases)


def test_phrases_are_trimmed_single_lines_of_ordinary_spaces(phrases):
    for p in phrases:
        assert p.phrase == " ".join(p.phrase.split()), p
        assert p.phrase.isprintable(), p


def test_dates_lie_within_the_two_centuries_and_show_their_year(phrases):
    assert all("1900-01-01" <= p.iso <= "2099-12-31" for p in phrases)
    for p in phrases:
        if p.style != "numerals":  # every other style has the four digits
            assert p.iso[:4] in p.phrase, p


def test_languages_share_each_split_equally(splits):
    for split in (splits.train, splits.valid, splits.test):
        counts = Counter(p.language for p in split)
        assert len(counts) == 16
        assert {"Chinese", "German", "Hindi", "English"} <= set(counts)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_no_style_dominates(splits):
    for split in (splits.train, splits.test):
        counts = Counter(p.style for p in split)
        assert len(counts) >= 6
        assert max(counts.values()) <= 0.18 * len(split), counts


def test_a_languages_styles_are_equally_likely(splits):
    for language in _languages():
        assert len(language.styles) >= 4
        counts = Counter(p.style for p in splits.train if p.language == language.name)
        assert set(counts) == set(language.styles)
        expected = 1_000 / len(counts)
        for style, count in counts.items():  # 1,000 draws: three standard deviations stay below 30 %
            assert 0.7 * expected < count < 1.3 * expected, (language.name, style)


def readings(phrase: str) -> set[str]:
    """Every date that a phrase of three numbers may mean somewhere, read without the code under test."""
    first, second, third = (int(number) for number in re.findall(r"[0-9]+", phrase))
    orders = [(first, second, third)] if first > 31 else [(third, second, first), (third, first, second)]
    return {f"{y}-{m:02}-{d:02}" for y, m, d in orders if m <= 12 and d <= 31}


def test_numeric_phrases_have_one_reading(phrases):
    assert readings("4/5/2017") == {"2017-04-05", "2017-05-04"}
    assert readings("13/5/2017") == readings("5.13.2017") == readings("2017-05-13") == {"2017-05-13"}
    numeric = [p for p in phrases if re.fullmatch(r"[0-9./ -]+", p.phrase)]
    assert len(numeric) > 3_000
    for p in numeric:
        assert readings(p.phrase) == {p.iso}, p


def test_each_phrase_of_a_whole_year_names_one_date_in_every_language():
    # The year is always spelled out, so one leap year shows every clash there can be, between languages too.
    named: dict[str, date] = {}
    for language in _languages():
        for day in (date(2024, 1, 1) + timedelta(n) for n in range(366)):
            for style, patterns in language.styles.items():
                if style == "numeric" and _exchangeable(day):
                    continue
                for pattern in patterns:
                    tidy = language.render(day, pattern if isinstance(pattern, str) else pattern(day))
                    for phrase in {tidy, tidy.lower(), tidy.replace(",", ""), tidy.lower().replace(",", "")}:
                        assert named.setdefault(phrase, day) == day, (phrase, day)


def test_weekdays_are_right(phrases):
    english = 0
    for p in phrases:
        day = date.fromisoformat(p.iso)
        if p.language == "Chinese" and p.style in ("full", "weekday"):
            assert p.phrase[-1] == "一二三四五六日"[day.weekday()], p
        if p.language == "English" and p.style == "full":
            english += 1
            names = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".lower().split()
            assert p.phrase.lower().startswith(names[day.weekday()]), p
    assert english > 50


@pytest.mark.parametrize(
    ("language", "style", "phrase", "iso"),
    [
        ("German", "full", "Dienstag, 3. Oktober 2017", "2017-10-03"),
        ("German", "prose", "Samstag, den 1. Mai 1999", "1999-05-01"),
        ("German", "numeric", "23.4.1984", "1984-04-23"),
        ("English", "full", "Sunday, July 20, 1969", "1969-07-20"),
        ("English", "weekday", "Thu, Nov 9, 1989", "1989-11-09"),
        ("English", "numeric", "7/20/1969", "1969-07-20"),
        ("English", "hyphens", "03-Oct-2017", "2017-10-03"),
        ("English", "ordinal", "March 3rd, 2021", "2021-03-03"),
        ("English", "ordinal", "the 11th of March 2021", "2021-03-11"),
        ("English", "ordinal", "March 13th, 2021", "2021-03-13"),
        ("English", "ordinal", "22nd March 2021", "2021-03-22"),
        ("French", "full", "mardi 3 octobre 2017", "2017-10-03"),
        ("French", "prose", "le 1er mai 1999", "1999-05-01"),
        ("Spanish", "long", "3 de octubre de 2017", "2017-10-03"),
        ("Italian", "full", "martedì 3 ottobre 2017", "2017-10-03"),
        ("Portuguese", "full", "terça-feira, 3 de outubro de 2017", "2017-10-03"),
        ("Dutch", "weekday", "di 3 okt 2017", "2017-10-03"),
        ("Polish", "prose", "dnia 3 października 2017 r.", "2017-10-03"),
        ("Russian", "full", "вторник, 3 октября 2017 г.", "2017-10-03"),
        ("Swedish", "prose", "den 3 oktober 2017", "2017-10-03"),
        ("Turkish", "full", "3 Ekim 2017 Salı", "2017-10-03"),
        ("Greek", "full", "Τρίτη 3 Οκτωβρίου 2017", "2017-10-03"),
        ("Hindi", "numerals", "३ अक्टूबर २०१७", "2017-10-03"),
        ("Chinese", "full", "2017年10月3日星期二", "2017-10-03"),
        ("Chinese", "numerals", "二〇二一年三月二十一日", "2021-03-21"),
        ("Chinese", "numerals", "一九〇〇年十二月十日", "1900-12-10"),
        ("Japanese", "weekday", "2017年10月3日(火)", "2017-10-03"),
        ("Korean", "full", "2017년 10월 3일 화요일", "2017-10-03"),
        ("Korean", "year first", "2017. 10. 3.", "2017-10-03"),
        ("Korean", "numerals", "이천십칠년 시월 삼십일일", "2017-10-31"),
        ("Korean", "numerals", "천구백구십구년 유월 십일", "1999-06-10"),
    ],
)
def test_writes_as_people_do(language, style, phrase, iso):
    assert phrase in spell(language, style, iso)


@pytest.mark.parametrize("name", ["train", "valid", "test"])
@pytest.mark.parametrize("size", [0, -7])
def test_size_below_one_is_refused(name, size):
    with pytest.raises(ArgumentError, match=rf"{name} must be at least 1 phrase, got {size}\."):
        make_dates(**{name: size})


def test_more_phrases_than_dates_are_refused():
    message = r"at most 73049, .*1900-01-01 to 2099-12-31 .*got train=73000 \+ valid=30 \+ test=20 = 73050"
    with pytest.raises(ArgumentError, match=message):
        make_dates(train=73_000, valid=30, test=20)


def test_every_date_can_be_used(monkeypatch):
    monkeypatch.setattr(dates, "_LAST", date(1900, 12, 31))  # all 200 years take many seconds
    monkeypatch.setattr(dates, "_N_DATES", 365)
    splits = make_dates(train=300, valid=45, test=20)
    assert {p.iso for p in splits.train + splits.valid + splits.test} == {
        (date(1900, 1, 1) + timedelta(n)).isoformat() for n in range(365)
    }


def test_missing_babel_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ImportError, match=r'pip install "glassformer\[demo\]"'):
        make_dates(train=1, valid=1, test=1)
