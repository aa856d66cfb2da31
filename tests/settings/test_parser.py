"""Flags, help and errors, made from a command's dataclass."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from glassformer import cli
from glassformer.errors import ConfigError
from glassformer.settings.checks import Choice, Flag
from glassformer.settings.parser import Command, help_text, overview, parse
from glassformer.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Not shown."""

    beam: int = 5
    """Width of the beam."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Do this.

    And say how,
    at length.
    """

    run: Annotated[Path, Flag(positional=True)]
    """The run."""
    text: Annotated[tuple[str, ...], Flag(positional=True)] = ()
    """Some lines."""
    to: Literal["here", "there"]
    """Where to, 100 %."""
    source: Annotated[Path | None, Flag(bare=False)] = None
    """A file."""
    from_: Path | None = None
    """Another run."""
    columns: tuple[str, str] | None = None
    """Two columns."""
    files: tuple[Path, ...] = ()
    """Several files."""
    max_minutes: float | None = None
    """When to stop."""
    metric: Annotated[str, Choice("bleu", "chrf")] = "bleu"
    """A score."""
    fast: bool = False
    """Hurry."""
    search: Inner = field(default_factory=Inner)


COMMAND = Command("do", Flags, {"search": ("beam", "help")})


def test_each_type_is_read():
    line = "R one --to there 'two words' --from x --columns a b --files f g --max-minutes 2.5 --fast --beam 7"
    given = line.replace("'two words'", "two-words").split()
    flags, named = parse(COMMAND, given)
    assert flags == Flags(
        run=Path("R"),
        text=("one", "two-words"),
        to="there",
        from_=Path("x"),
        columns=("a", "b"),
        files=(Path("f"), Path("g")),
        max_minutes=2.5,
        fast=True,
        search=Inner(beam=7),
    )
    assert set(named) == {"run", "text", "to", "from_", "columns", "files", "max_minutes", "fast", "beam"}
    assert parse(COMMAND, ["R", "--to=here"]) == (Flags(run=Path("R"), to="here"), {"run": Path("R"), "to": "here"})


def test_a_flag_that_may_be_bare():
    @dataclass(frozen=True)
    class Bare:
        """Do."""

        source: Annotated[Path | None, Flag(bare=True)] = None
        """A file."""

    command = Command("do", Bare)
    for given in (["a.tsv"], ["--source", "a.tsv"]):
        assert parse(command, given) == (Bare(Path("a.tsv")), {"source": Path("a.tsv")})
    assert parse(command, []) == (Bare(), {})
    with pytest.raises(ConfigError, match=r"^do has two --source: a.tsv and b.tsv$"):
        parse(command, ["a.tsv", "--source", "b.tsv"])
    with pytest.raises(ConfigError, match=r"^train has two --source: a.tsv and b.tsv c.tsv$"):
        parse(Command("train", TrainConfig), ["a.tsv", "--source", "b.tsv", "c.tsv", "--out", "r"])


def test_text_after_two_dashes_goes_where_no_flag_is_needed():
    @dataclass(frozen=True)
    class Bare:
        """Do."""

        run: Annotated[Path, Flag(positional=True)]
        """The run."""
        text: Annotated[str | None, Flag(bare=True)] = None
        """A line."""

    command = Command("do", Bare)
    assert parse(command, ["R", "--", "-hello"])[0] == Bare(Path("R"), "-hello")
    for given in (["R", "a", "--", "-hello"], ["R", "--", "a", "-hello"]):
        with pytest.raises(ConfigError, match=r"^do has no flag -hello"):
            parse(command, given)
    assert parse(COMMAND, ["R", "a", "--to", "here", "--", "-b", "-c"])[0].text == ("a", "-b", "-c")
    assert parse(Command("train", TrainConfig), ["--out", "r", "--", "-a.tsv"])[0].source == Path("-a.tsv")
    with pytest.raises(ConfigError, match=r"^rest has no flag -a"):
        parse(Command("rest", Inner), ["--", "-a"])


@pytest.mark.parametrize("number", ["-1", "-.5", "-1e-3", "-2.5E+1", "-1e2"])
def test_a_negative_number_is_a_value(number):
    for given in (["--max-minutes", number], [f"--max-minutes={number}"]):
        assert parse(COMMAND, ["R", "--to", "here", *given])[0].max_minutes == float(number)


def test_fields_of_two_dataclasses_inside_may_have_one_name():
    @dataclass(frozen=True, kw_only=True)
    class Both:
        """Do."""

        search: Annotated[Inner, Flag(without=("beam",))] = field(default_factory=Inner)
        """Its beam is no flag."""
        other: Inner = field(default_factory=Inner)

    command = Command("do", Both)
    assert list(command.arguments) == ["beam"]
    assert parse(command, ["--beam", "7"]) == (Both(search=Inner(beam=5), other=Inner(beam=7)), {"beam": 7})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "do needs RUN and --to: see glassformer do --help"),
        ("R --to nowhere", "--to: expected one of here, there, got 'nowhere'"),
        ("R --to here --max-minutes two", "--max-minutes: expected a number of minutes, got 'two'"),
        ("R --to here --beam 2.5", "--beam: expected a whole number, got '2.5'"),
        ("R --to here --max-minuts 2", "do has no flag --max-minuts: did you mean --max-minutes?"),
        ("R --to here --hlep", "do has no flag --hlep: did you mean --help?"),
        ("R --to here --zzz=2", "do has no flag --zzz: see glassformer do --help"),
        ("R --to here --columns a", "--columns: expected 2 arguments"),
        ("R --to", "--to: expected one argument"),
        ("R --to=--", "--to=-- is no value that a flag can have"),  # argparse drops the dashes
    ],
)
def test_mistakes_are_named_in_one_line(given, message):
    with pytest.raises(ConfigError) as raised:
        parse(COMMAND, given.split())
    assert str(raised.value) == message


HELP = """\
usage: glassformer do RUN [TEXT ...] --to {here,there} [flags]

Do this.

And say how, at length.

arguments:
  RUN                      The run.
  TEXT                     Some lines.

flags:
  --to {here,there}        Where to, 100 %.
  --source FILE            A file.
  --from RUN               Another run.
  --columns TEXT TEXT      Two columns.
  --files FILE [FILE ...]  Several files.
  --max-minutes MINUTES    When to stop.
  --metric {bleu,chrf}     A score. (default: bleu)
  --fast                   Hurry.

search:
  --beam N                 Width of the beam. (default: 5)
  -h, --help               Show this and exit.
"""


def test_the_help_says_it_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        parse(COMMAND, ["--help"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == HELP


@pytest.mark.parametrize("columns", ["40", "80", "300"])
def test_every_command_has_help_that_fits(columns, capsys, monkeypatch, run_command):
    monkeypatch.setenv("COLUMNS", columns)
    for name in cli.COMMANDS:
        assert run_command(f"{name} --help") == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: glassformer {name} ")
        assert max(map(len, text.splitlines()[2:])) <= max(56, min(int(columns), 100))
        for argument in cli.COMMANDS[name].arguments.values():
            assert argument.help, argument.name
            assert argument.title in text


def test_the_overview_has_a_line_for_each_command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = overview({"Work": [COMMAND, Command("rest", Inner)]})
    assert "\nWork:\n  do    Do this.\n  rest  Not shown.\n" in text


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_minutes must be above 0, got 0", "--max-minutes must be above 0, got 0"),
        ("seed must be at least 0", "--seed must be at least 0"),
        ("leave out `seed`, `max_tokens`", "leave out --seed, --max-tokens"),
        ("the seed must be sown", "the seed must be sown"),
        ("metric must be one of bleu, got 'max_tokens'", "--metric must be one of bleu, got 'max_tokens'"),
        ("runs/max_tokens/a.tsv: no such file", "runs/max_tokens/a.tsv: no such file"),
        ("max_minutes: no such run folder", "max_minutes: no such run folder"),
        ("with from_ they are kept", "with --from they are kept"),
    ],
)
def test_messages_name_flags_not_fields(message, shown):
    assert Command("train", TrainConfig).with_flags(message) == shown


def test_one_letter_is_answered_with_a_flag_that_begins_with_it():
    with pytest.raises(ConfigError, match=r"train has no flag -o: did you mean --out\?"):
        parse(Command("train", TrainConfig), ["-o", "run"])


def test_two_files_without_flags_are_answered_with_the_flags():
    with pytest.raises(ConfigError, match=r"align has no use for 'b': give files with --source and --target"):
        parse(cli.COMMANDS["align"], ["a", "b"])
    for command, given, flag in (
        ("import", ["a", "--out", "b"], "--from"),
        ("import", ["--from", "a", "b"], "--out"),
        ("prune", ["a", "b"], "--out"),
    ):
        with pytest.raises(ConfigError, match=f"^{command} has no use for '[ab]': did you mean {flag} '[ab]'[?]$"):
            parse(cli.COMMANDS[command], given)
    with pytest.raises(ConfigError, match=r"^import has no use for 'c': see glassformer import --help$"):
        parse(cli.COMMANDS["import"], ["--from", "a", "--out", "b", "c"])
    help_ = help_text(cli.COMMANDS["export"]) + help_text(cli.COMMANDS["align"])
    assert "--runtime FOLDER" in help_
    assert "--reverse RUN" in help_
