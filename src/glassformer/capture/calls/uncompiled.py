"""Let compiled code run as it is written, so that the calls in it can be seen."""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from glassformer.capture.calls.callers import may_call_flex

_LOCK, _INSIDE = threading.Lock(), ExitStack()
_count = 0


@contextmanager
def uncompiled(callers: Iterable[nn.Module]) -> Iterator[None]:
    """Run compiled functions uncompiled inside the context, in all threads.

    So is `flex_attention`, which else compiles itself. Torch's compiler is loaded only for callers of that: it takes
    over a second, and without it nothing is compiled.
    """
    global _count
    if "torch._dynamo" not in sys.modules and not any(map(may_call_flex, callers)):
        yield
        return
    with _LOCK:
        if not _count:
            _INSIDE.enter_context(torch.compiler.set_stance("force_eager"))
        _count += 1
    try:
        yield
    finally:
        with _LOCK:
            _count -= 1
            if not _count:
                _INSIDE.close()
