"""The two columns of a table that are the pair: the user names them, or their names say it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from shlex import quote
from typing import Any

from glassformer.errors import DataError, closest, shown

SOURCES = ("source", "src", "input", "question", "text", "original", "from", "原文", "源语言", "源", "输入", "问题")
TARGETS = (
    "target",
    "tgt",
    "trg",
    "output",
    "answer",
    "translation",
    "reference",
    "ref",
    "label",
    "to",
    "译文",
    "目标语言",
    "目标",
    "输出",
    "答案",
    "回答",
)
"""Names of columns that say which side they are."""
_NAMES = (
    "af am ar as az be bg bn bo br bs ca ceb cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr ht "
    "hu hy ig is it ja jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my nb ne nl nn no oc or pa "
    "pl ps pt ro ru rw sa sd si sk sl sn so sq sr su sv sw ta te tg th ti tk tl tr tt ug uk ur uz vi wo xh yi yo "
    "zh zu ara cmn ces deu ell eng fas fin fra heb hin hun ind ita jpn kor nld pol por ron rus spa swe tur ukr "
    "vie zho arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian "
    "indonesian italian japanese korean norwegian persian polish portuguese romanian russian spanish swedish "
    "turkish ukrainian vietnamese "
    "中文 英文 日文 韩文 法文 德文 汉语 英语 日语 韩语 法语 德语 俄语 西班牙语 "
)
LANGUAGES = frozenset(_NAMES.split())
"""Codes and names of languages that people name columns by."""


KEYS = frozenset({"id", "index", "idx", "key", "nr", "no.", "#", "score", "split", "编号", "序号"})
"""Names of columns that hold neither side; in a first row they tell that it is a header."""


@dataclass(frozen=True)
class ColumnChooser:
    """Chooses the pair among the columns of a file."""

    path: Path
    wanted: Sequence[str] | None = None
    """The two columns that the user named, by name or by number from 1; None: their names say it."""
    say: Callable[[str], object] = lambda said: None
    """Called with the choice in words."""

    def is_header(self, names: Sequence[str], following: Sequence[Sequence[Any]] = ()) -> bool:
        """Return whether the cells of a first row are names: all different, and two of them known, or one wanted.

        An "id" among more than two is enough, or a word above numbers in the rows that follow. Two cells must be a
        source and a target, or two languages.
        """
        lower = [name.strip().lower() for name in names]
        return self._has_names(names) or (_stand_above_numbers(lower, following) and len(set(lower)) == len(lower))

    def _has_names(self, names: Sequence[str]) -> bool:
        """Return whether these cells are names, whatever follows."""
        lower = {name.strip().lower() for name in names}
        wanted = (name.strip().lower() for name in self.wanted or ())
        if any(name in lower and not name.isdecimal() for name in wanted):
            return True
        if len(names) > 2 and KEYS & lower and len(lower) == len(names):
            return True
        known = (
            sum(_side(name) is not None for name in names) >= 2 if len(names) > 2 else self._known(names) is not None
        )
        return known and len(set(names)) == len(names)

    def is_title(self, rows: Sequence[Sequence[str]]) -> bool:
        """Return whether the first of these rows is the title of a table: a single cell above names.

        Words above numbers are no names here: the cell may be the first source, whose target is to be written yet.
        """
        is_one = len(rows) > 1 and sum(map(bool, rows[0])) == 1 and len(rows[1]) > 1
        return is_one and not self._has_names(rows[0]) and self._has_names(rows[1])

    def say_title(self, row: Sequence[str]) -> None:
        """Say that a row is taken for the title of a table."""
        self.say(f"{self.path}: {next(filter(None, row))} is taken for a title, the next row for the header")

    def choose_without_names(self, first: Sequence[str]) -> tuple[int, int]:
        """Return the numbers, from 0, of the source's and the target's column of a table whose first row is no header.

        Raises DataError, which shows that row, where there are more than two and the user named none.
        """
        if self.wanted is None and len(first) > 2:
            left, right = text_columns([first])
            names = f"{quote(first[left])} {quote(first[right])}"
            raise DataError(
                f"{self.path} has {len(first)} columns, in the first row {_shown(first)}: say which are source and "
                f"target, by number such as --columns {left + 1} {right + 1}, or if that row is a header by name such "
                f"as --columns {names}"
            )
        left, right = self.choose([str(number) for number in range(1, len(first) + 1)])
        self.say(f"{self.path}: the first row is a pair, {first[left]} -> {first[right]}, and no header")
        return left, right

    def choose(
        self, names: Sequence[str], what: str = "columns", likely: Sequence[str] | None = None
    ) -> tuple[int, int]:
        """Return the numbers, from 0, of the source's and the target's column.

        They are those that the user wants. Otherwise they are those whose names say it: source and target, or the only
        two languages, in their order; or the only two within another column, or of the `likely` ones. Raises DataError,
        which lists the columns, where that isn't clear.
        """
        likely = names if likely is None else likely
        left, right = self._wanted(names, what) or self._known(names) or self._only(names, likely, what)
        of = "" if len(names) == 2 else f" (of the {what} {_shown(names)})"
        self.say(f"{self.path}: {names[left]} is the source, {names[right]} the target{of}")
        return left, right

    def _wanted(self, names: Sequence[str], what: str) -> tuple[int, int] | None:
        if self.wanted is None:
            return None
        left, right = (self._find(names, one, what) for one in self.wanted)
        if left == right:
            raise DataError(f"--columns must name two columns of {self.path}, got {shown(names[left])} twice")
        return left, right

    def _known(self, names: Sequence[str]) -> tuple[int, int] | None:
        """Return the columns whose names say which they are."""
        sides: dict[str | None, list[int]] = {}
        for number, name in enumerate(names):
            sides.setdefault(_side(name), []).append(number)
        match sides:
            case {"source": [left], "target": [right]}:
                return left, right
            case {"language": [left, right]}:
                return left, right
        return None

    def _only(self, names: Sequence[str], likely: Sequence[str], what: str) -> tuple[int, int]:
        """Return the only two likely columns, or those within another one where all but one are; else DataError."""
        nested = [name for name in likely if "." in name]  # as in {"id": "7", "translation": {"en": ..., "xx": ...}}
        if len(nested) == 2 and len(likely) == 3 and len({name.rpartition(".")[0] for name in nested}) == 1:
            likely = nested
        if len(likely) == 2:
            return names.index(likely[0]), names.index(likely[1])
        if len(names) < 2:
            raise DataError(f"{self.path} has one column: a pair needs a source and a target")
        example = " ".join(map(quote, (likely if len(likely) > 1 else names)[:2]))
        raise DataError(
            f"{self.path} has the {what} {_shown(names)}: say which are source and target, such as --columns {example}"
        )

    def _find(self, names: Sequence[str], wanted: str, what: str) -> int:
        """Return the number of a column that the user named."""
        short = [name.rpartition(".")[2] for name in names]  # translation.en may be called en
        for known in (list(names), short):
            if known.count(wanted) == 1:
                return known.index(wanted)
        plain = wanted.strip().lower()
        for known in ([name.strip().lower() for name in names], [name.strip().lower() for name in short]):
            if known.count(plain) == 1:
                return known.index(plain)
        regional = [name for name in names if base_language(name) == plain]
        if what == "languages" and len(regional) == 1:  # en may stand for en-US
            return list(names).index(regional[0])
        if plain.isdecimal() and 1 <= int(plain) <= len(names):
            return int(plain) - 1
        named = {name.strip(): None for name in names}
        its = f"its {what} are {_shown(list(named))}"
        raise DataError(f"{self.path} has no column {shown(wanted)} ({its}){closest(wanted, named)}")


def base_language(code: str) -> str:
    """Return the language of a code in lower case, without its region: en of en-US."""
    return re.split("[-_]", code.strip().lower())[0]


def text_columns(rows: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Return the numbers, from 0, of the two columns that are the pair in a table without a header.

    They are the first two, unless the first has numbers alone in these rows, such as ids or scores. Then they are the
    next two, or with numbers between these, as in the downloads of Tatoeba, the second and the fourth.

    >>> text_columns([["1276", "Let's try it.", "77", "Versuchen wir es."], ["1277", "7", "78", "Sieben."]])
    (1, 3)
    """
    kinds = ""
    for cells in islice(zip_longest(*rows, fillvalue=""), 4):
        filled = [cell for cell in cells if cell]
        kinds += "n" if filled and all(map(_is_number, filled)) else "t"
    return (1, 2) if kinds.startswith("ntt") else (1, 3) if kinds == "ntnt" else (0, 1)


def _stand_above_numbers(names: Sequence[str], following: Sequence[Sequence[Any]]) -> bool:
    """Return whether a name of letters has only numbers below it, two at least, and no name is empty or a number."""
    if len(following) < 2 or not all(names) or any(map(_is_number, names)):
        return False
    columns = zip(names, *(list(row)[: len(names)] for row in following), strict=False)
    return any(any(map(str.isalpha, name)) and all(map(_is_number, below)) for name, *below in columns)


def _is_number(cell: Any) -> bool:
    return re.fullmatch(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?|[+-]?(nan|inf)", str(cell).strip(), re.I) is not None


def _side(name: str) -> str | None:
    """Return what a column's name, one word or two joined by a sign, says: source, target, language, or None."""
    words = re.split(r"[._-]", name.strip().lower())
    if len(words) > 2 or not all(map(str.isalpha, words)):
        return None
    if len(words) == 2 and words[1] in LANGUAGES:  # translation.en, sentence_en
        return "language"
    for side, known in (("source", SOURCES), ("target", TARGETS), ("language", LANGUAGES)):
        if words[0] in known:
            return side
    return None


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
