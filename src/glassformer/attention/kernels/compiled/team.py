"""The threads that share compiled work: torch's own where they can be had, else some of ours.

After an operation torch's threads spin for milliseconds in wait for the next one, on the cores that other threads need.
torch's builds for Linux have them from libgomp, which runs any function on all threads of a team: 1 x 8 x 2048 takes
54 ms so, in threads of our own 62 (AMD Zen 4, two cores).
"""

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def on_each_thread(function: Callable[[], None], threads: int) -> None:
    """Call a function on this thread and on up to `threads` - 1 others at once; raise what it raises on any.

    As with torch's own operations, a process that was forked after the first call can't have its threads.
    """
    parallel = _torch_team()
    if parallel is None:
        with ThreadPoolExecutor(threads - 1, "glassformer") as pool:
            others = [pool.submit(function) for _ in range(threads - 1)]
            function()
            for other in others:
                other.result()
        return
    errors: list[BaseException] = []

    def call(_: object) -> None:
        try:
            function()
        except BaseException as error:  # of any class: it is raised below, where the team is done
            errors.append(error)

    parallel(_FUNCTION(call), None, threads, 0)
    if errors:
        raise errors[0]


@cache
def _torch_team() -> Any | None:
    """Return libgomp's GOMP_parallel(function, its argument, threads, flags), or None where torch has no libgomp."""
    if sys.platform != "linux":
        return None
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    for name in (*map(str, bundled), "libgomp.so.1"):
        with suppress(OSError, AttributeError):  # it isn't loaded, or isn't what its name says
            parallel = ctypes.CDLL(name, mode=os.RTLD_NOLOAD).GOMP_parallel  # loads nothing
            parallel.argtypes = [_FUNCTION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            parallel.restype = None
            return parallel
    return None
