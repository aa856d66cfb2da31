"""Placeholders of a line: parts that must be copied as they are, taken out before translation and put back after it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.errors import ArgumentError, ConfigError, shown
from glassformer.text.units import is_single
from glassformer.text.words import UNSPACED

FIRST_MARK, MOST_MARKS = 0xF0000, 0xFFFD
OPENING, CLOSING = "([{«„“‘\"'¿¡", ")]}»”’\"'.,;:!?…，。；：！？）」、"
DEFAULT = "default"
"""The name of `PATTERN` for callers."""
_FLAGS = re.compile(r"\A(?:\(\?[aimsux]+\))+")
"""Match the flags at the beginning of an expression: they may stand nowhere else."""
_CONVERSION = r"(?:\d+\$)?[#0\-+']*(?:[1-9]\d*)?(?:\.\d+)?(?:hh|h|ll|l|q|L|z|t|j)?[diouxXeEfFgGcrsap@]"
_BRACES = r"\{\{\s*[^\s{}]+\s*\}\}|\{[^\s{}]*\}"
_NEVER = rf"\s<>\"'{{}}，。；：！？、（）「」『』《》【】…।॥۔؟،؛{UNSPACED}"
_LETTER = rf"(?<=[/=?#&_\-%{UNSPACED}])[{UNSPACED}]"
"""Match a letter of a script without spaces in the path of a URL; after other characters the text goes on with it."""
_IN_URL = rf"(?:[^{_NEVER}]|{_LETTER}|{_BRACES})*(?:[^{_NEVER}.,;:!?)\]]|{_LETTER}|{_BRACES})"
"""Match the rest of a URL after its beginning, up to a character that is no punctuation."""
_HOST = rf"(?:[^\W_{UNSPACED}]|-)+"
PATTERN = "|".join(
    (
        rf"(?:https?|ftp)://{_IN_URL}",
        rf"www\.{_HOST}(?:\.{_HOST})+(?:/{_IN_URL})?",
        r"(?<![A-Za-z0-9._%+\-])[A-Za-z0-9._%+\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)+",
        rf"[$#%]?(?:{_BRACES})",
        r"%\(\w+\)[#0\-+ ]*(?:[1-9]\d*)?(?:\.\d+)?[diouxXeEfFgGcrsa]|%%",
        rf"(?<!\d)%{_CONVERSION}|%{_CONVERSION}(?!\w)",
        r"<[A-Za-z][^<>]*/>",
    )
)
"""Match {name}, {0}, ${x}, #{x}, %{x}, {{x}}, %s, %1$d, %(name)s, %%, URLs, e-mail addresses, <ph/> and <x id="1"/>."""


@dataclass(frozen=True)
class Protected:
    """A line in parts, and the placeholders between them; placeholders without anything between are one.

    >>> line = protect("Hello {name}, you have %d new messages.")
    >>> line.parts, line.placeholders
    (('Hello ', ', you have ', ' new messages.'), ('{name}', '%d'))
    >>> first, second = line.marks
    >>> line.restore(f"{second} neue Nachrichten, {first}!")
    '%d neue Nachrichten, {name}!'
    """

    parts: tuple[str, ...]
    """Hold the text before, between and after the placeholders: one more than these are."""
    placeholders: tuple[str, ...]

    @property
    def marks(self) -> tuple[str, ...]:
        """The character that stands for each placeholder in `text`, of Unicode's private use."""
        return tuple(chr(FIRST_MARK + n) for n in range(len(self.placeholders)))

    @property
    def text(self) -> str:
        """The line with a mark in place of each placeholder."""
        return self.parts[0] + "".join(mark + part for mark, part in zip(self.marks, self.parts[1:], strict=True))

    def restore(self, text: str) -> str:
        """Return a text with each mark replaced by its placeholder, in whatever order the marks stand."""
        placeholders = dict(zip(self.marks, self.placeholders, strict=True))
        return "".join(placeholders.get(character, character) for character in text)


def compiled(pattern: str = DEFAULT) -> re.Pattern[str]:
    """Return the expression for runs of placeholders; ConfigError where `pattern` is none, or matches nothing at all.

    `pattern` is a regular expression, or "default" for `PATTERN`.
    """
    if not isinstance(pattern, str):
        raise ArgumentError(f'placeholders must be a pattern, or "default", got {shown(pattern)}')
    own = PATTERN if pattern == DEFAULT else pattern
    marks = f"[{chr(FIRST_MARK)}-{chr(FIRST_MARK + MOST_MARKS)}]"  # what a line has of these is protected too
    try:
        alone = re.compile(own)
        inner = _FLAGS.sub("", own) + ("\n" if alone.flags & re.X else "")  # which ends a comment
        whole = re.compile(f"(?:(?:{inner})|{marks})+", alone.flags)
    except (re.error, OverflowError) as error:
        raise ConfigError(f"placeholders must be a regular expression, got {shown(own)}: {error}") from None
    if alone.match("") is not None:
        raise ConfigError(f"placeholders must be an expression that no empty text matches, got {shown(own)}")
    return whole


_COMPILED = compiled(DEFAULT)


def protect(line: str, pattern: re.Pattern[str] = _COMPILED) -> Protected:
    """Take the placeholders out of a line; `pattern` is what `compiled` returns.

    Raises ConfigError where there are more than 65,533.

    >>> protect("Hello {name}!").text == "Hello " + protect("{name}").marks[0] + "!"
    True
    """
    parts, placeholders, end = list[str](), list[str](), 0
    for match in pattern.finditer(line):
        if not match[0]:
            continue
        parts.append(line[end : match.start()])
        placeholders.append(match[0])
        end = match.end()
    if len(placeholders) > MOST_MARKS:
        raise ConfigError(f"a line must have at most {MOST_MARKS:,} placeholders, got {len(placeholders):,}: split it")
    return Protected((*parts, line[end:]), tuple(placeholders))


def put_in(text: str, inserted: Sequence[tuple[int, str, str, str]]) -> str:
    """Return a text with others put in, each with spaces as its neighbours in the source and here ask for them.

    Each is a place in `text` (in ascending order), what is put there, and the source's text before and after it.
    """
    pieces, done = list[str](), 0
    for place, new, before, after in inserted:
        pieces.append(text[done:place])
        done = place
        pieces.append(_spaced("".join(pieces), new, before, after, text[place:]))
    return "".join([*pieces, text[done:]]).strip(" ")


def _spaced(left: str, new: str, before: str, after: str, right: str) -> str:
    """Return `new` with the spaces that part it from `left` and `right`."""
    opens = bool(left) and not left[-1].isspace() and not is_single(left[-1]) and left[-1] not in OPENING
    is_glued = before[-1:] == left[-1:] and not before[-1:].isspace()  # as in "(" + placeholder
    closes = bool(right) and not right[0].isspace() and not is_single(right[0]) and right[0] not in CLOSING
    return (" " if opens and not is_glued else "") + new + (" " if closes and not _continues(after, right) else "")


def _continues(after: str, right: str) -> bool:
    """Return whether the source goes on without a space, and the translation with the same character."""
    return after[:1] == right[:1] and not after[:1].isspace()
