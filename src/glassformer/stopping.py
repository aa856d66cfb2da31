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


@contextmanager
def raising_signals() -> Iterator[None]:
    """Raise `Stopped` inside where a signal comes that ends the process; one that is ignored (nohup) stays so.

    Compiled libraries may turn that, or the KeyboardInterrupt of a Ctrl-C, into an error of their own: what is raised
    here in its place is the first again.
    """
    if current_thread() is not main_thread():  # which gets all signals
        yield
        return
    came: list[BaseException] = []

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the same one again changes nothing while what is half made is removed
        came.append(Stopped(number))
        raise came[-1]

    def interrupt(number: int, frame: object) -> None:
        came.append(KeyboardInterrupt())
        raise came[-1]

    ours = {number: stop for number in ENDING if signal.getsignal(number) is signal.SIG_DFL}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ours[signal.SIGINT] = interrupt
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:  # a library may have made an error of its own of it (safetensors does), or nothing
            raise came[-1]
