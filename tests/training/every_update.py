"""`glassformer` with a line in metrics.jsonl for every update, a mishap at a chosen one, and no pickle.

MISHAP="12 9 1,7 15 0" in the environment sends the process of rank 1 the signal 9 during its update 12; and when
torchrun has started it again, that of rank 0 the signal 15 during its update 7. TRACE names a file to which each
process appends a line with its rank for every update it makes. PAUSE names a file: as long as it is not there an update
takes a tenth of a second longer. PID names a file to which the process writes its number.

`python every_update.py run ADDRESS WORDS` is the same in a fork of `python every_update.py serve ADDRESS` (forked.py).
"""

import ctypes
import os
import pickle
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).parents[1]))
forked = import_module("forked")
IMPORTED = ("glassformer.training.train", "glassformer.data.facts", "sacrebleu", "torch._dynamo")
"""Modules that a training imports on its way."""


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("pickle was used")


def without(kind: type) -> Any:
    """The class, none of which can be made: torch derives others from it."""
    return type(kind.__name__, (kind,), {"__init__": refuse})


class Mishap:
    def __init__(self) -> None:
        self._update, self._rank = 0, int(os.environ.get("RANK", "0"))
        mishaps = [tuple(map(int, mishap.split())) for mishap in os.environ.get("MISHAP", "").split(",") if mishap]
        start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._at, self._signal, rank = mishaps[start] if start < len(mishaps) else (0, 0, 0)
        if rank != self._rank:
            self._at = 0

    def __call__(self, *_: object) -> None:
        self._update += 1
        if trace := os.environ.get("TRACE"):
            with open(trace, "a") as file:
                file.write(f"{self._rank}\n")
        if (pause := os.environ.get("PAUSE")) and not os.path.exists(pause):
            time.sleep(0.1)
        if self._update == self._at:
            os.kill(os.getpid(), self._signal)


def refuse_pickles() -> None:
    """Let nothing that is imported from here on read or write one."""
    pickle.load, pickle.loads, pickle.dump, pickle.dumps = refuse, refuse, refuse, refuse
    pickle.Unpickler, pickle.Pickler = without(pickle.Unpickler), without(pickle.Pickler)
    sys.modules["numba"] = None  # as if it were not installed: what it compiles it keeps in pickles of its own
    # From here on, so that whoever takes one of these by name takes what refuses.
    import torch

    torch.load, torch.save = refuse, refuse


def command() -> None:
    """Be the command line."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from glassformer import cli
    from glassformer.training import loop

    if path := os.environ.get("PID"):
        Path(path).write_text(str(os.getpid()))
    loop.REPORT_EVERY = 1
    register_optimizer_step_post_hook(Mishap())
    cli.main()


def main() -> None:
    if sys.platform == "linux":  # it ends with its parent, however that ends
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if sys.argv[1] == "run":
        forked.run(sys.argv[2], sys.argv[3:])
    refuse_pickles()
    if sys.argv[1] == "serve":
        for name in IMPORTED:
            import_module(name)
        forked.serve(sys.argv[2], command)
    command()


if __name__ == "__main__":
    main()
