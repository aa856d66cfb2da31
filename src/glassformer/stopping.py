"""Signals that end a process, turned into an exception: so what is half made is removed on the way out."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process which doesn't handle them: from a program, and from a terminal that is closed."""


class Stopped(BaseException):
    """A signal that ends the process. It is no `Exception`, as KeyboardInterrupt is none: only what cleans up sees it.

    Raised while a command runs, so that what is half made is removed on the way out. The command line ends with 128 and
    the number of the signal. Programs that import glassformer handle signals themselves, and never meet it.

    >>> print(Stopped(signal.SIGTERM))
    ended by SIGTERM
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def raise_stopped(number: int, frame: object) -> None:
    """Handle a signal; the same one again, while what is half made is being removed, changes nothing."""
    signal.signal(number, signal.SIG_IGN)
    raise Stopped(number)


@contextmanager
def raising_signals() -> Iterator[None]:
    """Raise `Stopped` inside where a signal comes that ends the process; one that is ignored (nohup) stays so."""
    if current_thread() is not main_thread():  # which gets all signals
        yield
        return
    ours = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, raise_stopped)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
