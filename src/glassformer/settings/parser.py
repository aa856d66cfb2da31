"""From a command's dataclass to its flags, their help and their errors: a field is a flag, its docstring the help."""

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from glassformer.errors import ConfigError, abridged, closest, shown
from glassformer.settings.checks import Choice, Flag, check_settings
from glassformer.settings.docstrings import FIELDS, field_docs

NARROWEST, WIDEST = 30, 100
"""Fewest and most columns of a help text."""
UNITS = ("hours", "minutes", "seconds", "updates", "epochs", "tokens", "pairs")
"""Last words of a number's name that say what it counts."""
RUNS, FOLDERS = ("run", "from_", "unpruned", "reverse"), ("out", "folder", "runtime")
"""Names of paths that are runs, and of those that are other folders."""
_WITH_EXPONENT = re.compile(r"-[\d.]+e[+-]?\d+", re.I)
"""Negative numbers with an exponent, which argparse takes for flags."""


@dataclass(frozen=True)
class Command:
    """A command as the parser needs it."""

    name: str
    kind: type
    """The dataclass of its flags."""
    headings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The flags below each heading, by the names of their fields, in their order; "help" is one. The others come first.
    """

    @property
    def summary(self) -> str:
        """The first paragraph of the dataclass's docstring."""
        return _paragraphs(self.kind)[0]

    @property
    def arguments(self) -> "dict[str, _Argument]":
        """The arguments by the names of their fields."""
        return {argument.name: argument for argument in _arguments(self.kind)}

    def with_flags(self, message: str) -> str:
        """Return an error message with flags in place of the names of fields: --max-minutes for max_minutes.

        A name of one plain word, such as seed, is known in backticks, and where the message begins with it.
        """
        for argument in self.arguments.values():
            if argument.mark.positional:
                continue
            message = message.replace(f"`{argument.name}`", argument.flag)
            if "_" in argument.name:
                message = re.sub(rf"(?<![\w./'-]){argument.name}(?![\w./'=:-])", argument.flag, message)
            else:
                message = re.sub(rf"^{argument.name} (?=must be |(is|are) for )", f"{argument.flag} ", message)
        return message


def parse(command: Command, given: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the dataclass that these arguments make, and the values of the fields that they name.

    Prints the help and exits where it is asked for. Raises ConfigError, in one line, for what can't be understood.
    """
    given, after = (list(given[: given.index("--")]), given[given.index("--") + 1 :]) if "--" in given else (given, ())
    if empty := [argument for argument in given if argument.startswith("-") and argument.endswith("=--")]:
        raise ConfigError(f"{empty[0]} is no value that a flag can have")  # argparse would drop the --
    parser = _build(command)
    parsed, rest = parser.parse_known_intermixed_args(_joined(command, given))
    if rest:
        raise ConfigError(_unknown(command, rest[0], {name for name, value in vars(parsed).items() if value}))
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(parsed).items()}
    values = {name: value for name, value in plain.items() if value not in (None, ())}
    for argument in command.arguments.values():
        if (bare := values.pop(argument.bare, None)) is not None:
            if argument.name in values:
                raise ConfigError(
                    f"{command.name} has two {argument.flag}: {_shown(bare)} and {_shown(values[argument.name])}"
                )
            values[argument.name] = bare
    if after:
        _add_texts(command, values, after)
    missing = [argument.title for name, argument in command.arguments.items() if argument.needed and name not in values]
    if missing:
        raise ConfigError(f"{command.name} needs {' and '.join(missing)}: see glassformer {command.name} --help")
    return _make(command.kind, values), values


def _joined(command: Command, given: Sequence[str]) -> list[str]:
    """Return what was given, with each negative number that has an exponent joined to the flag before it."""
    of_numbers = {argument.flag for argument in command.arguments.values() if argument.kind in (int, float)}
    joined = list[str]()
    for argument in given:
        if joined and joined[-1] in of_numbers and _WITH_EXPONENT.fullmatch(argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _add_texts(command: Command, values: dict[str, Any], texts: Sequence[str]) -> None:
    """Put what comes after -- to the values that need no flag, the last of them; ConfigError where there is no room."""
    flagless = [one for one in command.arguments.values() if one.mark.bare or (one.mark.positional and one.count)]
    if not flagless:
        raise ConfigError(_unknown(command, texts[0]))
    last, read = flagless[-1], [flagless[-1].read(text) for text in texts]
    if last.count is not None:
        values[last.name] = (*values.get(last.name, ()), *read)
    elif last.name in values or len(read) > 1:
        raise ConfigError(_unknown(command, texts[-1]))
    else:
        values[last.name] = read[0]


def overview(groups: Mapping[str, Sequence[Command]]) -> str:
    """Return the help of all commands, in groups."""
    lines = ["usage: glassformer COMMAND ...", "", "From pairs of text to a trained Transformer and its translations."]
    width = max(len(command.name) for commands in groups.values() for command in commands)
    for heading, commands in groups.items():
        lines += ["", f"{heading}:"]
        for command in commands:
            first, *more = textwrap.wrap(command.summary, _columns() - width - 4)
            lines += [f"  {command.name:{width}}  {first}", *(f"  {'':{width}}  {line}" for line in more)]
    last = "glassformer COMMAND --help says more, glassformer --version which version this is."
    return "\n".join([*lines, "", last])


def help_text(command: Command) -> str:
    """Return what --help prints."""
    return _build(command).format_help()


@dataclass(frozen=True)
class _Argument:
    """A field of a dataclass as an argument of the command line."""

    name: str
    kind: Any
    """The type of a value: of one among several, where there may be more."""
    mark: Flag
    help: str
    needed: bool
    choices: Sequence[str] = ()
    count: int | Literal["+"] | None = None
    """Number of values; None: one."""

    @property
    def flag(self) -> str:
        return "--" + self.name.strip("_").replace("_", "-")

    @property
    def bare(self) -> str:
        """Name of the value that is given without the flag."""
        return f"bare {self.name}"

    @property
    def is_needed_path(self) -> bool:
        """Return whether it is a path that must be given with its flag."""
        return self.needed and self.kind is Path and not (self.mark.positional or self.mark.bare)

    @property
    def label(self) -> str:
        """The word that stands for the value in the help."""
        if self.mark.label:
            return self.mark.label
        if self.choices:
            return "{" + ",".join(self.choices) + "}"
        if self.kind is Path:
            return "RUN" if self.name in RUNS else "FOLDER" if self.name in FOLDERS else "FILE"
        if self.kind in (int, float):
            return self.unit.upper() or "N"
        return "TEXT"

    @property
    def title(self) -> str:
        """The argument as it is called in a message."""
        return self.label if self.mark.positional or self.mark.bare else self.flag

    @property
    def unit(self) -> str:
        """The unit of a number, or an empty text."""
        last = self.name.rpartition("_")[2]
        return last if last in UNITS else ""

    def add_to(self, group: Any) -> None:
        """Add the argument to a group of argparse."""
        text = self.help.replace("%", "%%") + (" The flag may be left out." if self.mark.bare else "")
        if self.kind is bool:
            group.add_argument(self.flag, dest=self.name, action="store_true", help=text)
        elif self.mark.positional:  # `parse` says what is missing
            count = "?" if self.count is None else "*"
            group.add_argument(self.name, type=self.read, metavar=self.label, nargs=count, default=None, help=text)
        else:
            again = "extend" if self.count == "+" else "store"  # files of a flag given twice are all of them
            group.add_argument(
                self.flag, dest=self.name, type=self.read, metavar=self.label, nargs=self.count, help=text, action=again
            )
        if self.mark.bare:
            count = "?" if self.count is None else "*"
            group.add_argument(self.bare, type=self.read, nargs=count, default=None, help=argparse.SUPPRESS)

    def read(self, text: str) -> Any:
        """Return the value that a text stands for; argparse shows the text of what this raises."""
        if get_origin(self.kind) is Literal:
            if text not in self.choices:
                raise argparse.ArgumentTypeError(f"expected one of {', '.join(self.choices)}, got {shown(text)}")
            return text
        expected = {int: "a whole number", float: "a number"}.get(self.kind, "")
        try:
            return self.kind(text)
        except ValueError:
            of = f" of {self.unit}" if self.unit else ""
            raise argparse.ArgumentTypeError(f"expected {expected}{of}, got {shown(text)}") from None


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are raised."""

    def error(self, message: str) -> NoReturn:
        if "ignored explicit argument" in message:  # -hello is taken for -h
            message = "text that begins with - comes last, after --"
        raise ConfigError(message.removeprefix("argument "))


def _build(command: Command) -> _Parser:
    """Return the parser of a command. Only what is given appears in its result."""
    parser = _Parser(
        prog=f"glassformer {command.name}",
        usage=_usage(command),
        description="\n\n".join(textwrap.fill(part, _columns()) for part in _paragraphs(command.kind)),
        formatter_class=_formatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    positional = parser.add_argument_group("arguments")
    below = {name for names in command.headings.values() for name in names}
    others = [name for name in (*command.arguments, "help") if name not in below]
    for heading, names in {"flags": others, **command.headings}.items():
        group = parser.add_argument_group(heading)
        for name in names:
            if name == "help":
                group.add_argument("-h", "--help", action="help", help="Show this and exit.")
            else:
                argument = command.arguments[name]
                argument.add_to(positional if argument.mark.positional else group)
    return parser


def _usage(command: Command) -> str:
    """Return how the command is called: its arguments without a flag, and the flags that must be given."""
    words = [command.name]
    for argument in command.arguments.values():
        label = f"{argument.label} ..." if argument.count == "+" else argument.label
        if argument.mark.positional or argument.mark.bare:
            words.append(label if argument.needed else f"[{label}]")
        elif argument.needed:
            words.append(f"{argument.flag} {argument.label}")
    return " ".join(["glassformer", *words, "[flags]"])


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, width=_columns(), max_help_position=28)


def _columns() -> int:
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))


@cache
def _arguments(kind: type) -> tuple[_Argument, ...]:
    """Return the arguments of a dataclass; a field that is itself a dataclass gives its own."""
    hints, helps = get_type_hints(kind, include_extras=True), field_docs(kind)
    found: list[_Argument] = []
    for one in fields(kind):
        hint = hints[one.name]
        marks = list(_marks(hint))
        value, count = _value(hint)
        if is_dataclass(value) and isinstance(value, type):
            found += [argument for argument in _arguments(value) if argument.name not in _without(hint)]
            continue
        choices = next((mark.words for mark in marks if isinstance(mark, Choice)), ())
        needed = one.default is MISSING and one.default_factory is MISSING
        says_nothing = needed or one.default is None or one.default is False or one.default == ()
        shown = "" if says_nothing else f" (default: {one.default})"
        mark = next((mark for mark in marks if isinstance(mark, Flag)), Flag())
        if get_origin(value) is Literal:
            choices = get_args(value)
        found.append(_Argument(one.name, value, mark, helps[one.name] + shown, needed, choices, count))
    return tuple(found)


def _marks(hint: Any) -> Iterator[Any]:
    """Yield what annotates a type, at any depth, from the outside in."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        yield from marks
        yield from _marks(inner)
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _marks(part)


def _without(hint: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass that are no flags, which the type of a field that holds it says."""
    return next((mark.without for mark in _marks(hint) if isinstance(mark, Flag)), ())


def _value(hint: Any) -> tuple[Any, int | Literal["+"] | None]:
    """Return the type of one value, and how many there are (see `_Argument.count`)."""
    if get_origin(hint) is Annotated:
        return _value(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        members = [part for part in get_args(hint) if part is not type(None)]
        return _value(next((part for part in members if get_origin(part) is tuple), members[0]))
    if get_origin(hint) is tuple:
        first, *rest = get_args(hint)
        return first, "+" if rest == [Ellipsis] else 1 + len(rest)
    return hint, None


def _make(kind: type, values: Mapping[str, Any]) -> Any:
    """Return the dataclass of these values, checked; a field that is itself a dataclass is made of its own."""
    made: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner, _ = _value(hint)
        if isinstance(inner, type) and is_dataclass(inner):
            made[name] = _make(inner, {key: value for key, value in values.items() if key not in _without(hint)})
    flags = kind(**made, **{one.name: values[one.name] for one in fields(kind) if one.name in values})
    check_settings(flags)
    return flags


def _shown(value: Any) -> str:
    return abridged(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _unknown(command: Command, word: str, given: Collection[str] = ()) -> str:
    """Return what is wrong with an argument that nothing takes; `given` names the fields that have values."""
    advice = f": see glassformer {command.name} --help"
    if not word.startswith("-"):
        sides = [command.arguments[name] for name in ("source", "target") if name in command.arguments]
        if len(sides) == 2 and not sides[0].mark.bare:
            advice = ": give files with --source and --target"
        elif missing := [
            one.flag for one in command.arguments.values() if one.is_needed_path and one.name not in given
        ]:
            advice = f": did you mean {missing[0]} {shown(word)}?"
        return f"{command.name} has no use for {shown(word)}{advice}"
    flag = word.partition("=")[0]
    known = ["--help", *(argument.flag for argument in command.arguments.values() if not argument.mark.positional)]
    if not flag.startswith("--"):  # one letter, which may be the first of a flag
        begins = [one for one in known if one.startswith(f"-{flag}")]
        advice = f": did you mean {begins[0]}?" if begins else advice
    return f"{command.name} has no flag {abridged(flag)}{closest(flag, known) or advice}"


def _paragraphs(kind: type) -> list[str]:
    """Return the paragraphs of a docstring but for the fields and examples in Python, each in one line."""
    text = inspect.cleandoc(kind.__doc__ or "").partition(f"\n\n{FIELDS}")[0]
    return [" ".join(part.split()) for part in text.split("\n\n") if not part.startswith((">>>", "Example: "))]
