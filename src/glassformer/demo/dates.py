"""Dates as people write them, in sixteen languages, each with its ISO 8601 form: the demonstration's data.

The phrases come from CLDR through Babel, so nothing is downloaded. The task is well-posed: a phrase alone,
without its language, names one date. Month names, written-out numerals and each country's order of day and
month make it a real one.
"""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import cycle

from glassformer.errors import ArgumentError

_FIRST, _LAST = date(1900, 1, 1), date(2099, 12, 31)
_N_DATES = (_LAST - _FIRST).days + 1


@dataclass(frozen=True)
class DatePhrase:
    """A date as written in `language`, and the ISO 8601 date (`YYYY-MM-DD`) that it names."""

    phrase: str
    iso: str
    language: str
    style: str


@dataclass(frozen=True)
class DateSplits:
    """Phrases for training, validation and test. No date and no phrase occurs twice in the three together."""

    train: list[DatePhrase]
    valid: list[DatePhrase]
    test: list[DatePhrase]


def make_dates(*, seed: int = 0, train: int = 40_000, valid: int = 500, test: int = 2_000) -> DateSplits:
    """Draw dates from 1900 to 2099 and write each once, in one language and one style.

    In each split the languages take turns, and a language's styles are equally likely. A numeric phrase whose
    day and month could be exchanged never occurs. `test` and `valid` do not depend on the size of `train`,
    and a smaller `train` is the beginning of a larger one.

    Raises:
        ArgumentError: a size is below 1, or the three sum to more than there are dates in those years (73,049).
        ImportError: Babel is missing; the extra `demo` installs it.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentError(f"{name} must be at least 1 phrase, got {size}.")
    if sum(sizes.values()) > _N_DATES:
        got = " + ".join(f"{name}={size}" for name, size in sizes.items())
        raise ArgumentError(
            f"train + valid + test must be at most {_N_DATES}, the number of dates from {_FIRST} to {_LAST} "
            f"(each is used once), got {got} = {sum(sizes.values())}: ask for fewer."
        )

    languages = _languages()
    rng = random.Random(seed)
    days = [_FIRST + timedelta(offset) for offset in range(_N_DATES)]
    rng.shuffle(days)
    # The held-out splits come first, so that trying another amount of training data leaves them as they are.
    parts = days[:test], days[test : test + valid], days[test + valid : test + valid + train]
    splits = [[_write(day, language, rng) for day, language in zip(part, cycle(languages))] for part in parts]
    _check_each_names_one_date(phrase for split in splits for phrase in split)
    return DateSplits(test=splits[0], valid=splits[1], train=splits[2])


# A CLDR date pattern ("d. MMMM y") or, for what its letters cannot say, a function from the date to one.
_Pattern = str | Callable[[date], str]


@dataclass(frozen=True)
class _Language:
    name: str
    styles: dict[str, tuple[_Pattern, ...]]
    render: Callable[[date, str], str]  # (date, CLDR pattern) -> phrase


def _write(day: date, language: _Language, rng: random.Random) -> DatePhrase:
    style = _choose_style(day, language, rng)
    pattern = rng.choice(language.styles[style])
    phrase = language.render(day, pattern if isinstance(pattern, str) else pattern(day))
    # CLDR puts a narrow no-break space after a Russian year; people type the ordinary one.
    phrase = phrase.replace("\u202f", " ")
    # Records are not always as tidy as CLDR.
    if rng.random() < 0.1:
        phrase = phrase.replace(",", "")
    if rng.random() < 0.1:
        phrase = phrase.lower()
    return DatePhrase(phrase=phrase, iso=day.isoformat(), language=language.name, style=style)


def _exchangeable(day: date) -> bool:
    """Return whether a date in numbers, such as "4/5/2017", is another date in another country's order."""
    return day.day <= 12 and day.day != day.month


# The share of dates that may be written in numbers: each of 200 years has 12 * 11 that may not.
_NUMERIC_SHARE = 1 - 200 * 12 * 11 / _N_DATES


def _choose_style(day: date, language: _Language, rng: random.Random) -> str:
    """Choose one of the language's styles, so that over all dates each is as likely as another.

    Exchangeable dates are never numeric, so the others must be numeric more often to make up for it.
    """
    chance = 0.0 if _exchangeable(day) else 1 / (len(language.styles) * _NUMERIC_SHARE)
    if "numeric" in language.styles and rng.random() < chance:
        return "numeric"
    return rng.choice([style for style in language.styles if style != "numeric"])


def _check_each_names_one_date(phrases: Iterable[DatePhrase]) -> None:
    seen: dict[str, DatePhrase] = {}
    for phrase in phrases:
        other = seen.setdefault(phrase.phrase, phrase)
        if other is not phrase:  # every date is written once, so the same words mean two dates
            raise RuntimeError(f"ambiguous phrase, a bug in glassformer's date styles: {other} and {phrase}.")


def _languages() -> list[_Language]:
    """Return the sixteen languages, with the styles that CLDR has for them and those given by hand below."""
    try:
        from babel import Locale
        from babel.dates import format_date
    except ImportError as error:
        raise ImportError('make_dates needs Babel: pip install "glassformer[demo]"') from error

    def language(code: str) -> _Language:
        locale = Locale.parse(code)
        full, long = (locale.date_formats[length].pattern for length in ("full", "long"))
        numeric, abbreviated, weekday = (
            locale.datetime_skeletons[skeleton].pattern for skeleton in ("yMd", "yMMMd", "yMMMEd")
        )

        def render(day: date, pattern: str) -> str:
            return format_date(day, pattern, locale)

        styles: dict[str, tuple[_Pattern, ...]] = {"full": (full,), "long": (long,), "weekday": (weekday,)}
        probe = date(2017, 10, 3)
        # Chinese, Japanese and Korean abbreviate no months.
        if render(probe, abbreviated) != render(probe, long):
            styles["abbreviated"] = (abbreviated,)
        year_first = ["y-MM-dd", "y/MM/dd", "y.MM.dd"]
        if numeric.startswith("y"):
            year_first.append(numeric)
        else:
            padded = re.sub("M+", "MM", re.sub("d+", "dd", numeric))
            styles["numeric"] = _distinct([numeric, padded, re.sub("[./]", "-", padded)])
        styles["year first"] = _distinct(year_first)
        return _Language(str(locale.english_name), styles | _BY_HAND[code], render)

    return [language(code) for code in _BY_HAND]


def _distinct(patterns: list[str]) -> tuple[_Pattern, ...]:
    return tuple(dict.fromkeys(patterns))


def _ordinal(day: date) -> str:
    """Return the English "1st", "2nd", "3rd", "4th", ..., quoted as a literal of a pattern."""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th") if day.day not in (11, 12, 13) else "th"
    return f"'{day.day}{suffix}'"


def _one_by_one(number: int, digits: str) -> str:
    return "".join(digits[int(digit)] for digit in str(number))


def _in_words(number: int, digits: str, units: str) -> str:
    """Write a number below 10,000 in Chinese or Korean words: 21 is two-ten-one, and a leading one is left unsaid."""
    words = ""
    for place, digit in enumerate(reversed(str(number))):
        if digit != "0":
            unit = units[place - 1] if place else ""
            words = ("" if digit == "1" and unit else digits[int(digit)]) + unit + words
    return words


def _han(day: date) -> str:
    digits = "〇一二三四五六七八九"
    month, day_of_month = _in_words(day.month, digits, "十"), _in_words(day.day, digits, "十")
    return f"'{_one_by_one(day.year, digits)}年{month}月{day_of_month}日'"


def _hangul(day: date) -> str:
    year, month, day_of_month = (
        _in_words(number, "영일이삼사오육칠팔구", "십백천") for number in (day.year, day.month, day.day)
    )
    month = {6: "유", 10: "시"}.get(day.month, month)  # the two months whose names drop a consonant
    return f"'{year}년 {month}월 {day_of_month}일'"


def _devanagari(day: date) -> str:
    year, day_of_month = (_one_by_one(number, "०१२३४५६७८९") for number in (day.year, day.day))
    return f"'{day_of_month}' MMMM '{year}'"


# Styles that CLDR lacks. "plain" is the long form with points and small words left out, spaced another way or
# in another country's order; "prose" is the long form as it stands within a sentence.
_BY_HAND: dict[str, dict[str, tuple[_Pattern, ...]]] = {
    "en": {
        "plain": ("d MMMM y", "d MMM y"),
        "hyphens": ("dd-MMM-y",),
        "ordinal": (
            lambda day: f"MMMM {_ordinal(day)}, y",
            lambda day: f"'the' {_ordinal(day)} 'of' MMMM y",
            lambda day: f"{_ordinal(day)} MMMM y",
        ),
    },
    "de": {"plain": ("d MMMM y",), "prose": ("'den' d. MMMM y", "EEEE, 'den' d. MMMM y", "'am' d. MMMM y")},
    "fr": {"prose": (lambda day: "'le 1er' MMMM y" if day.day == 1 else "'le' d MMMM y",)},
    "es": {"plain": ("d MMMM y",), "hyphens": ("dd-MMM-y",), "prose": ("'el' d 'de' MMMM 'de' y",)},
    "it": {"hyphens": ("dd-MMM-y",)},
    "pt": {"plain": ("d MMMM y",), "prose": ("'em' d 'de' MMMM 'de' y", "'dia' d 'de' MMMM 'de' y")},
    "nl": {"hyphens": ("dd-MMM-y",), "prose": ("'op' d MMMM y",)},
    "pl": {"hyphens": ("dd-MMM-y",), "prose": ("'dnia' d MMMM y 'r.'",)},
    "ru": {"plain": ("d MMMM y",), "prose": ("'от' d MMMM y 'года'",)},
    "sv": {"prose": ("'den' d MMMM y", "EEEE 'den' d MMMM y")},
    "tr": {"hyphens": ("dd-MMM-y",)},
    "el": {"hyphens": ("dd-MMM-y",)},
    "hi": {"numerals": (_devanagari,)},
    "zh": {"plain": ("y 年 M 月 d 日",), "numerals": (_han,)},
    "ja": {"plain": ("y年MM月dd日",), "numerals": (_han,)},
    "ko": {"plain": ("y년M월d일",), "numerals": (_hangul,)},
}
