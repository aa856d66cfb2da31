"""Faults put into commands on purpose, and what the torture says of each: a line of its name, a tab, the verdict."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from random import Random

import children
import lab
from children import FaultError, cli
from faults import FAULTS, Case

from glassformer import Translator, files
from glassformer.interop import huggingface

COMMANDS = ("overwrite", "translate", "import")


def _sleep(*_: object) -> None:
    time.sleep(60)


def _nothing() -> None:
    pass


def _before(action: Callable[[], object]) -> None:
    """Let every command do this first."""
    real = cli.main

    def main() -> None:
        action()
        real()

    cli.main = main


def _after(action: Callable[[], object]) -> None:
    """Let every command do this last."""
    real = cli.main

    def main() -> None:
        try:
            real()
        finally:
            action()

    cli.main = main


def _write_in_place() -> None:
    @contextmanager
    def in_place(path: Path) -> Iterator[Path]:
        path.mkdir(parents=True)
        yield path

    huggingface.new_folder, huggingface.write_config = in_place, _sleep


def _write_half() -> None:
    Path("out.txt").write_text("half", encoding="utf-8")
    _sleep()


def _remove_run() -> None:
    shutil.rmtree("runs/new")
    _sleep()


def _draw_by_process() -> None:
    """Draw other numbers in each process, so that a training that goes on comes to other bits."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("glassformer") and hasattr(module, "derive_seed"):
            module.derive_seed = lambda *_, **__: os.getpid()


def _forget_signals() -> None:
    """Let a signal end the command at once, in the middle of its work."""
    cli.raising_signals, huggingface.write_config = nullcontext, _sleep


def _ignore_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _sleep()


def _answer_by_thread() -> None:
    """Let a Translator give other answers to a thread."""
    real = Translator.translate

    def translate(self: Translator, *given: object) -> list[str]:
        return real(self, *given) if threading.current_thread() is threading.main_thread() else []

    Translator.translate = translate


def _refuse() -> None:
    cli.main = lambda: cli._fail(OSError(), "another process is at work")


def _hide_reason() -> None:
    cli.FULL = ()


PLANTED: dict[str, tuple[str, str, Callable[[], object]]] = {
    "nothing": ("terminal", "import", _nothing),
    "an output written in place": ("kill", "import", _write_in_place),
    "half an output": ("kill", "translate", lambda: _before(_write_half)),
    "a run removed before the new one is there": ("kill", "overwrite", lambda: _before(_remove_run)),
    "other bits after going on": ("kill", "overwrite", _draw_by_process),
    "a temporary file left": ("terminal", "import", lambda: _after(lambda: files._make_scratch(Path("new/exported")))),
    "a file left": ("terminal", "translate", lambda: _after(lambda: Path("left").touch())),
    "an input changed": ("terminal", "translate", lambda: _after(lambda: Path("source.txt").write_text("other"))),
    "an input removed": ("terminal", "translate", lambda: _after(lambda: Path("source.txt").unlink())),
    "another output": ("sigpipe", "translate", lambda: _after(lambda: Path("out.txt").write_text("other"))),
    "a process left": ("terminal", "translate", lambda: _after(lambda: subprocess.Popen(["sleep", "60"]))),
    "a file written when refused": ("eio", "translate", lambda: _before(lambda: Path("left").touch())),
    "a full disk not named": ("full", "import", _hide_reason),
    "a signal that isn't handled": ("signal", "import", _forget_signals),
    "deaf to a signal": ("signal", "import", lambda: _before(_ignore_signals)),
    "a hang": ("terminal", "import", lambda: _before(_sleep)),
    "each refuses the other": ("two", "import", _refuse),
    "a traceback": ("eio", "import", lambda: _before(lambda: 1 / 0)),
    "a refusal without a reason": ("eio", "import", lambda: _before(lambda: sys.exit(2))),
    "another status": ("sigpipe", "import", lambda: _before(lambda: sys.exit(1))),
    "other answers in a thread": ("threads", "translate", _answer_by_thread),
}
"""Each with the fault that must show it, the command, and what is changed in the command."""
HANGING = ("deaf to a signal", "a hang")
"""Faults that are waited for in vain."""


class Middle(Random):
    """Numbers that are always in the middle of the work."""

    def random(self) -> float:
        return 0.5


def main() -> None:
    """Print a line for each planted fault."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "lab").mkdir()
        made = lab.make(scratch / "lab", COMMANDS)
        cases = [(made[command], scratch / str(n), name) for n, (name, (_, command, _)) in enumerate(PLANTED.items())]
        # Each in a process of its own, which ends with what was changed. Most of them sleep.
        with get_context("fork").Pool(2 * (os.cpu_count() or 1), maxtasksperchild=1) as pool:
            for (_, _, name), verdict in zip(cases, pool.imap(_judge, cases, chunksize=1), strict=True):
                print(name, verdict, sep="\t", flush=True)


def _judge(given: tuple[lab.Command, Path, str]) -> str:
    command, folder, name = given
    fault, _, plant = PLANTED[name]
    command.lay_out(folder)
    plant()
    children.PATIENCE = 0.3
    if name in HANGING:  # all others may take long on a busy machine
        children.LONGEST = 5.0
    if command.name != "overwrite":
        command.seconds = 4.0  # what is changed in it sleeps when it is struck
    try:
        FAULTS[fault].strike(Case(command, folder, Middle(1), 0))
    except FaultError as failure:
        return " ".join(str(failure).split())
    return "None"


if __name__ == "__main__":
    main()
