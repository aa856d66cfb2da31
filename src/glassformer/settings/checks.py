"""Rules for the values of settings: written beside the type, `beam: Count = 5`, and read by `check_settings`."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from glassformer.errors import ConfigError, shown

_HOLDS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "less_than": operator.lt}


class Rule(ABC):
    """Checks the value of a setting, and gives it the form that the setting has."""

    @abstractmethod
    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError for a value that can't be; `name` is what the message calls it."""

    def own(self, value: Any) -> Any:
        """Return a checked value in the form that the setting has, however it was given."""
        return value


@dataclass(frozen=True, kw_only=True)
class Number(Rule):
    """A number within bounds. NaN is within none, and True and False are no numbers.

    >>> Number(at_least=0, less_than=1).check("dropout", 1.5)
    Traceback (most recent call last):
        ...
    glassformer.errors.ConfigError: dropout must be at least 0 and less than 1, got 1.5
    """

    at_least: float | int = -math.inf
    above: float | int | None = None
    at_most: float | int | None = None
    less_than: float | int | None = None
    limit: float | int | None = None
    """Largest value that is taken, far beyond what is of use: memory or time would run out. Only what exceeds it is
    told of it."""
    note: str = ""
    """An addition to the message about the bounds, such as "0 turns it off"."""

    kind: ClassVar[type] = Real
    called: ClassVar[str] = "a number"

    def own(self, value: Any) -> Any:
        """Return Python's own number in place of NumPy's, which no file can hold."""
        return int(value) if isinstance(value, Integral) else float(value)

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError unless the value is such a number; `name` is what the message calls it."""
        is_right_type = isinstance(value, self.kind) and not isinstance(value, bool)
        bounds = {word: bound for word in _HOLDS if (bound := getattr(self, word)) is not None}
        if is_right_type and all(_HOLDS[word](value, bound) for word, bound in bounds.items()):
            if self.limit is not None and value > self.limit:
                raise ConfigError(f"{name} must be {_said('at_most', self.limit)}, got {shown(value)}")
            return
        said = [_said(word, bound) for word, bound in bounds.items() if bound != -math.inf]
        expected = [*([] if is_right_type and said else [self.called]), *([" and ".join(said)] if said else [])]
        note = f" ({self.note})" if self.note else ""
        raise ConfigError(f"{name} must be {', '.join(expected)}{note}, got {shown(value)}")


@dataclass(frozen=True, kw_only=True)
class Whole(Number):
    """A whole number within bounds; 7.0 and "7" are none."""

    kind: ClassVar[type] = Integral
    called: ClassVar[str] = "a whole number"


class Choice(Rule):
    """One of the given words; with `numbered` a number may follow, as in cuda:1."""

    def __init__(self, *words: str, numbered: bool = False) -> None:
        self.words = words
        self.numbered = numbered

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError unless the value is one of the words; `name` is what the message calls it."""
        word = value.partition(":")[0] if self.numbered and isinstance(value, str) else value
        if word not in self.words:
            raise ConfigError(f"{name} must be one of {', '.join(self.words)}, got {shown(value)}")


@dataclass(frozen=True)
class Flag:
    """The form of a setting on the command line. It says nothing about its value."""

    label: str = ""
    """The word that stands for its value in the help; left out, what its type says."""
    positional: bool = False
    """It is given without the name of a flag."""
    bare: bool = False
    """It may be given without the name of its flag."""
    without: tuple[str, ...] = ()
    """Names of fields that are no flags and keep their defaults, where the setting is itself a dataclass."""


@dataclass(frozen=True)
class Instance(Rule):
    """A value of this type."""

    kind: type
    called: str

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError unless the value is of the type; `name` is what the message calls it."""
        if not isinstance(value, self.kind):
            raise ConfigError(f"{name} must be {self.called}, got {shown(value)}")


class OnePath(Rule):
    """A path, which may be given as text."""

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError unless the value is a path; `name` is what the message calls it."""
        if not isinstance(value, str | PathLike):
            raise ConfigError(f"{name} must be a path, got {shown(value)}")

    def own(self, value: Any) -> Path:
        """Return it as a Path."""
        return Path(value)


class SeveralPaths(Rule):
    """Several paths, of which one may be given alone."""

    fewest: ClassVar[int] = 0

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError unless the value is a path or several; `name` is what the message calls it."""
        given = _several(value)
        if len(given) < self.fewest or not all(isinstance(one, str | PathLike) for one in given):
            raise ConfigError(f"{name} must be a path or a list of paths, got {shown(value)}")

    def own(self, value: Any) -> Any:
        """Return them as a tuple of Paths."""
        return tuple(map(Path, _several(value)))


class OneOrMorePaths(SeveralPaths):
    """One path or several, but not none."""

    fewest: ClassVar[int] = 1

    def own(self, value: Any) -> Any:
        """Return the Path, or a tuple of Paths; a list of one is that one."""
        paths = super().own(value)
        return paths[0] if len(paths) == 1 else paths


class TwoNames(Rule):
    """Two names, in place of which numbers may be given."""

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError unless the value is two names or numbers; `name` is what the message calls it."""
        given = _several(value)
        if len(given) != 2 or not all(isinstance(one, str | int) and not isinstance(one, bool) for one in given):
            raise ConfigError(f"{name} must be two names or numbers, such as ('en', 'de'), got {shown(value)}")

    def own(self, value: Any) -> tuple[str, str]:
        """Return them as a tuple of texts."""
        first, second = value
        return str(first), str(second)


def _several(value: Any) -> Sequence[Any]:
    """Return the values of a list or a tuple, or the one value."""
    return value if isinstance(value, list | tuple) else [value]


MOST = 10**9
"""Largest number of anything."""
Natural = Annotated[int, Whole(at_least=0, limit=MOST)]
Count = Annotated[int, Whole(at_least=1, limit=MOST)]
VocabularySize = Annotated[int, Whole(at_least=1, limit=1 << 24)]
BatchTokens = Annotated[int, Whole(at_least=1, limit=1 << 24)]
LONGEST = 1 << 16
"""Most tokens of a sequence: the time of attention grows with their square."""
Threads = Annotated[int, Whole(at_least=1, limit=1024)]
"""Number of CPU threads. OpenMP ends the process where the system refuses one: 8,192 were started on two cores, 16,384
were not."""
Seed = Annotated[int, Whole(at_least=0, less_than=2**32)]
Positive = Annotated[float, Number(above=0, limit=MOST)]
Share = Annotated[float, Number(at_least=0, at_most=1)]
Probability = Annotated[float, Number(at_least=0, less_than=1)]
Device = Annotated[str, Choice("auto", "cpu", "cuda", "mps", numbered=True)]

_PLAIN: Mapping[Any, Rule] = {
    bool: Instance(bool, "True or False"),
    int: Whole(),
    float: Number(),
    str: Instance(str, "text"),
    Path: OnePath(),
    tuple[Path, ...]: SeveralPaths(),
    Path | tuple[Path, ...] | None: OneOrMorePaths(),
    tuple[str, str]: TwoNames(),
}
"""The rules of types without a rule of their own."""


def check_settings(settings: Any) -> None:
    """Raise ConfigError for the first field of a dataclass that breaks the rule of its type.

    A rule stands in the field's annotation, `Annotated[int, Whole(at_least=2)]`; bool, int, float, str, Path, several
    Paths and two texts have one of their own. None is allowed where the type allows it. Fields of other types are
    left alone. What was given in another form is put into the field's own: text becomes a Path, a list a tuple.
    """
    for name, (rule, optional) in _rules(type(settings)).items():
        value = getattr(settings, name)
        if optional and value is None:
            continue
        rule.check(name, value)
        object.__setattr__(settings, name, rule.own(value))  # settings are frozen


@cache
def _rules(kind: type) -> dict[str, tuple[Rule, bool]]:
    """Return each checked field's rule, and whether it may be None."""
    hints = get_type_hints(kind, include_extras=True)
    found = {field.name: _rule(hints[field.name]) for field in fields(kind)}
    return {name: (rule, optional) for name, (rule, optional) in found.items() if rule is not None}


def _rule(hint: Any) -> tuple[Rule | None, bool]:
    """Return the rule of a type, if it has one, and whether it allows None."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        rule, optional = _rule(inner)
        return next((mark for mark in marks if isinstance(mark, Rule)), rule), optional
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        rule = _rule(members[0])[0] if len(members) == 1 else _PLAIN.get(hint)
        return rule, len(members) < len(get_args(hint))
    return _PLAIN.get(hint), False


def _said(word: str, bound: float | int) -> str:
    """Return a bound in words: at least 1e-6, less than 2^32, finite."""
    if word == "less_than" and bound == math.inf:
        return "finite"
    if isinstance(bound, int) and bound >= 1 << 20 and bound.bit_count() == 1:
        number = f"2^{bound.bit_length() - 1}"
    elif isinstance(bound, int):
        number = f"{bound:,}"
    else:
        number = f"{bound:g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{word.replace('_', ' ')} {number}"
