"""The command line: which command is meant, and how errors end it. torch loads when a command runs."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

import tyro
from tyro.conf import FlagCreatePairsOff

from glassformer.commands.demo import DemoFlags, demo
from glassformer.commands.evaluate import EvaluateFlags, evaluate
from glassformer.commands.export import ExportFlags, export_model
from glassformer.commands.heads import HeadsFlags, study_heads
from glassformer.commands.import_ import ImportFlags, import_model
from glassformer.commands.inspect import InspectFlags, inspect_run
from glassformer.commands.prune import prune_heads
from glassformer.commands.runs import RunsFlags, list_runs
from glassformer.commands.train import resume, train
from glassformer.commands.translate import TranslateFlags, translate
from glassformer.errors import FULL, GlassformerError
from glassformer.insight.config import PruneConfig
from glassformer.training.config import TrainConfig

COMMANDS: dict[str, tuple[type, Callable[[Any], int]]] = {
    "train": (TrainConfig, train),
    "runs": (RunsFlags, list_runs),
    "translate": (TranslateFlags, translate),
    "evaluate": (EvaluateFlags, evaluate),
    "import": (ImportFlags, import_model),
    "export": (ExportFlags, export_model),
    "heads": (HeadsFlags, study_heads),
    "inspect": (InspectFlags, inspect_run),
    "prune": (PruneConfig, prune_heads),
    "demo": (DemoFlags, demo),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit.

    The status is 0, 2 after an error that the user can mend, 130 after Ctrl-C, 143 after SIGTERM.
    """
    # Threads that wait for one another spin, by default so long that on busy cores hardly anything else is done: beside
    # one other busy process training got less than a tenth as far. torch's OpenMP reads this when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    warnings.showwarning = lambda message, *_: print(f"glassformer: warning: {message}", file=sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"glassformer {version('glassformer')}")
        sys.exit(0)
    try:
        status = _run(given)
        sys.stdout.flush()
        sys.exit(status)
    except (GlassformerError, ImportError) as error:  # ImportError: an extra is missing; the message says which
        _fail(error, str(error))
    except BrokenPipeError:  # whoever read our output has left
        _discard_output()
        sys.exit(0)
    except OSError as error:
        _discard_output()
        _fail(error, f"{error}: free some space, or write elsewhere" if error.errno in FULL else str(error))
    except KeyboardInterrupt as error:
        _fail(error, "interrupted", status=130)


def _run(given: list[str]) -> int:
    """Run the command that these arguments name, and return its exit status."""
    flags = tyro.extras.subcommand_cli_from_dict(
        {name: kind for name, (kind, _) in COMMANDS.items()},
        prog="glassformer",
        description="From pairs of text to a trained Transformer and its translations, one command each. "
        "--version says which version this is.",
        args=given,
        config=(FlagCreatePairsOff,),
    )
    if isinstance(flags, TrainConfig) and flags.resume:
        return resume(flags.out, given[1:])
    return next(command for kind, command in COMMANDS.values() if type(flags) is kind)(flags)


def _discard_output() -> None:
    """Point standard output at nothing, so that the interpreter doesn't try to write the rest once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: BaseException, message: str, status: int = 2) -> NoReturn:
    """Print the error's notes and one line for its message, and exit."""
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)
    print(f"glassformer: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
