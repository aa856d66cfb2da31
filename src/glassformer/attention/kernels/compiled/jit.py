"""Compile Python for the processor at hand: numba, with one set of rules for all that is compiled."""

try:
    import numpy as np
    from llvmlite import binding as binding
    from llvmlite import ir as ir
    from numba import njit as njit
    from numba import types as types
    from numba.core import cgutils as cgutils
    from numba.core import config as config
    from numba.core import event
    from numba.extending import intrinsic as intrinsic
except ImportError as error:
    raise ImportError("compiled functions need numba: pip install 'glassformer[fast]'") from error

import hashlib
import logging
from collections.abc import Callable, Set
from inspect import unwrap
from pathlib import Path
from typing import Any

F, I = np.float32, np.int32
SUMS = {"reassoc", "contract", "nsz"}
"""Allow LLVM to sum in any order. NaN and infinity stay what they are."""


def version_of(*folders: Path) -> int:
    """Return a number that tells the code of folders from any other."""
    paths = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    return int.from_bytes(hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()[:7])


FOLDER = Path(__file__).parent
VERSION = version_of(FOLDER)
"""Tell the code of this folder from any other. A function that has this number in its closure is compiled again when
any file changes; numba by itself looks only at the function's own."""
NO_CACHE = (RuntimeError, OSError, EOFError)
"""Name what numba raises where it can write to no folder, the disk is full, or a crash has left an empty file."""


COMPILING = "compiling the fast functions for this processor: up to half a minute, once"


class _Notice(event.Listener):
    """Log once a process that functions of this package are compiled, since nothing else moves meanwhile."""

    given = False

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if not self.given and function.__module__.startswith("glassformer."):
            self.given = True
            logging.getLogger("glassformer").info(COMPILING)

    def on_end(self, event: Any) -> None:
        """Say nothing."""


NOTICE = _Notice()
event.register("numba:compile", NOTICE)

_ALWAYS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}


def inner(freedom: Set[str] = frozenset()) -> Any:
    """Return a decorator that compiles a function for compiled ones; `freedom` is what LLVM may do with numbers."""
    how: dict[str, Any] = {**_ALWAYS, "fastmath": set(freedom), "no_cpython_wrapper": True}

    def compiled(function: Callable[..., Any]) -> Any:
        return njit(**how)(unwrap(function))

    return compiled


def kept(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function for these types, without Python's lock, and keeps the machine code.

    numba keeps it beside the source or in the user's folder for caches, if it can.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return njit(signature, nogil=True, cache=True, **_ALWAYS)(function)
        except NO_CACHE:
            return njit(signature, nogil=True, **_ALWAYS)(function)

    return compiled


class KeptByTypes:
    """A decorator that compiles a function at its first call with arguments of each kind, and keeps it as `kept` does.

    Compiled functions can't call it: these are `inner`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = unwrap(function)  # from decorators that only check, such as those of a type checker's hook
        try:
            self._compiled = njit(nogil=True, cache=True, **_ALWAYS)(self._function)
        except NO_CACHE:
            self._compiled = self._without_cache()

    def __call__(self, *arguments: Any) -> None:
        try:
            self._compiled(*arguments)
        except NO_CACHE:
            self._compiled = self._without_cache()
            self._compiled(*arguments)

    def _without_cache(self) -> Any:
        return njit(nogil=True, **_ALWAYS)(self._function)
