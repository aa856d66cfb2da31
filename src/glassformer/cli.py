"""The command line: which command is meant, and how errors end it. torch loads when a command runs."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any, NoReturn, TextIO

from glassformer.commands.align import AlignFlags, align
from glassformer.commands.check import CheckFlags, check_pairs
from glassformer.commands.demo import DemoFlags, demo
from glassformer.commands.distill import HEADINGS as DISTILL
from glassformer.commands.distill import (
    BacktranslateFlags,
    DistillFlags,
    distill_teacher,
    train_on_backtranslations,
)
from glassformer.commands.evaluate import EvaluateFlags, evaluate
from glassformer.commands.export import ExportFlags, export_model
from glassformer.commands.heads import HeadsFlags, study_heads
from glassformer.commands.import_ import ImportFlags, import_model
from glassformer.commands.inspect import InspectFlags, inspect_run
from glassformer.commands.prune import prune_heads
from glassformer.commands.runs import RunsFlags, list_runs
from glassformer.commands.serve import HEADINGS as SERVE_HEADINGS
from glassformer.commands.serve import serve
from glassformer.commands.train import HEADINGS, resume, train
from glassformer.commands.translate import HEADINGS as TRANSLATE_HEADINGS
from glassformer.commands.translate import SEARCH, TranslateFlags, translate
from glassformer.errors import FULL, ConfigError, GlassformerError, abridged, closest, describe_full, printable
from glassformer.insight.config import PruneConfig
from glassformer.serve.config import ServeConfig
from glassformer.settings.parser import Command, overview, parse
from glassformer.stopping import Stopped, raising_signals
from glassformer.training.config import TrainConfig

GROUPS: dict[str, list[Command]] = {
    "Train": [
        Command("train", TrainConfig, HEADINGS),
        Command("check", CheckFlags),
        Command("runs", RunsFlags),
        Command("distill", DistillFlags, DISTILL),
        Command("backtranslate", BacktranslateFlags, DISTILL),
    ],
    "Translate": [
        Command("translate", TranslateFlags, TRANSLATE_HEADINGS),
        Command("evaluate", EvaluateFlags, SEARCH),
        Command("align", AlignFlags),
    ],
    "Look inside": [Command("inspect", InspectFlags), Command("heads", HeadsFlags), Command("prune", PruneConfig)],
    "Exchange": [Command("import", ImportFlags), Command("export", ExportFlags)],
    "Serve": [Command("serve", ServeConfig, SERVE_HEADINGS)],
    "Try it": [Command("demo", DemoFlags)],
}
COMMANDS = {command.name: command for commands in GROUPS.values() for command in commands}
FUNCTIONS: dict[str, Callable[[Any], int]] = {
    "train": train,
    "check": check_pairs,
    "runs": list_runs,
    "distill": distill_teacher,
    "backtranslate": train_on_backtranslations,
    "translate": translate,
    "evaluate": evaluate,
    "align": align,
    "inspect": inspect_run,
    "heads": study_heads,
    "prune": prune_heads,
    "import": import_model,
    "export": export_model,
    "serve": serve,
    "demo": demo,
}

LONGEST_ERROR = 1800
"""Most characters of the line of an error or a warning; what is between its beginning and its end is left out."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit.

    The status is 0, 2 after an error that the user can mend, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    _open_closed_streams()
    # Threads that wait for one another spin, by default so long that on busy cores hardly anything else is done: beside
    # one other busy process training got less than a tenth as far. torch's OpenMP reads this when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    warnings.showwarning = _warn
    _show_log()
    if isinstance(sys.stdout, TextIOWrapper):
        # The name of a file that isn't UTF-8 is printed as it is; what another encoding lacks, as its code.
        sys.stdout.reconfigure(errors="surrogateescape" if sys.stdout.encoding == "utf-8" else "backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with raising_signals():
            status = _run(given)
            sys.stdout.flush()
        sys.exit(status)
    except (GlassformerError, ImportError) as error:  # ImportError: an extra is missing; the message says which
        _fail(error, str(error))
    except BrokenPipeError:  # whoever read our output has left
        _discard(sys.stdout)
        sys.exit(0)
    except OSError as error:
        _discard(sys.stdout)
        full = error.errno in FULL
        _fail(error, f"{describe_full(error)}: free some space, or write elsewhere" if full else str(error))
    except KeyboardInterrupt as error:
        _fail(error, "interrupted", status=130)
    except Stopped as error:
        _fail(error, str(error), status=128 + error.number)


def _run(given: list[str]) -> int:
    """Run the command that these arguments name, and return its exit status."""
    name, rest = given[0] if given else "", given[1:]
    if given == ["--version"]:
        from importlib.metadata import version  # slow to load, and needed by nothing else

        print(f"glassformer {version('glassformer')}")
        return 0
    if name in ("", "help", "-h", "--help") and not rest:
        print(overview(GROUPS), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    if name in ("help", "-h", "--help"):
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        raise ConfigError(
            f"there is no command {abridged(name)}{closest(name, list(COMMANDS)) or ': see glassformer --help'}"
        )
    try:
        flags, named = parse(COMMANDS[name], rest)
        if isinstance(flags, TrainConfig) and flags.resume:
            return resume(flags.out, {name: getattr(flags, name) for name in named})
        return FUNCTIONS[name](flags)
    except GlassformerError as error:
        error.args = (COMMANDS[name].with_flags(str(error)),)
        raise


def _open_closed_streams() -> None:
    """Open the standard streams that are closed, at nothing: a file would get their number, and messages with it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _warn(message: Warning | str, *_: object) -> None:
    """Print one line for a warning; where standard error takes nothing more, there is nobody to warn."""
    try:
        print(f"glassformer: warning: {_as_line(message)}", file=sys.stderr)
    except OSError:
        _discard(sys.stderr)


class _Shown(logging.Handler):
    """Show on standard error, as it is then, what the package logs: what takes long, and why."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        try:
            print(f"glassformer: {_as_line(record.getMessage())}", file=sys.stderr)
        except OSError:
            _discard(sys.stderr)


def _show_log() -> None:
    """Show what the package logs."""
    log = logging.getLogger("glassformer")
    log.handlers = [_Shown()]
    log.setLevel(logging.INFO)


def _discard(stream: TextIO) -> None:
    """Point a stream at nothing, so that the interpreter doesn't try to write the rest once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(error: BaseException, message: str, status: int = 2) -> NoReturn:
    """Print the error's notes and one line for its message, and exit."""
    lines = [printable(note) for note in getattr(error, "__notes__", ())]
    try:
        print(*lines, f"glassformer: error: {_as_line(message)}", sep="\n", file=sys.stderr)
    except OSError:  # its disk is full, or its reader has left: the status says that it failed
        _discard(sys.stderr)
    sys.exit(status)


def _as_line(message: object) -> str:
    """Return a message as one line without control characters, of which the middle is left out if it is long."""
    line = printable(" ".join(str(message).split()))
    return line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR // 2]} ... {line[-LONGEST_ERROR // 2 :]}"
