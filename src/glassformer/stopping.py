"""Signals that end a process, turned into an exception: so what is half made is removed on the way out.

An exception that comes at any moment has two weaknesses. It can come between the making of a thing and the `try` that
would remove it: code that is `unbroken` lets it wait. And any library can catch it, or a place where none can be raised
(a destructor, a function that compiled code calls) drops it: then it is raised again, until it ends the command.
"""

import _thread
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from threading import current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process which doesn't handle them: from a program, and from a terminal that is closed."""
_BETWEEN = (__file__, contextmanager.__code__.co_filename)
"""Files of the code that enters and leaves contexts: a signal between the two is raised inside or outside."""
AGAIN = 0.02
"""Seconds after which a signal that wasn't raised, or whose exception was lost, is sent again."""


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


class _Interrupted(KeyboardInterrupt):
    """A Ctrl-C whose exception can be told to be alive, which Python's own can't."""

    number = signal.SIGINT


class _Unbroken(threading.local):
    """A context inside which no signal is raised: it is once all such contexts of the main thread have ended."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


unbroken = _Unbroken()
"""The context itself, one for each thread: `with unbroken:`."""


class _UnbrokenEnds(AbstractContextManager[T_co]):
    """A context manager whose beginning and end are unbroken."""

    def __init__(self, manager: AbstractContextManager[T_co]) -> None:
        self._manager = manager

    def __enter__(self) -> T_co:
        with unbroken:
            return self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with unbroken:
            return self._manager.__exit__(kind, error, trace)


def unbroken_ends(make: Callable[P, Iterator[T_co]]) -> Callable[P, AbstractContextManager[T_co]]:
    """Turn a generator function into one of context managers, as `contextmanager` does, whose ends are unbroken.

    So what is made before the `yield` is removed after it, whenever a signal comes. Only what is short belongs there.
    """
    manage = contextmanager(make)

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T_co]:
        return _UnbrokenEnds(manage(*args, **kwargs))

    return made


class _Ending:
    """The first signal that came, and its exception, which is raised until it gets through."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._error: weakref.ref[BaseException] | None = None
        self._watched = False
        self._lock = threading.Lock()
        self._over = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise the signal's exception; later where the code that it interrupts is unbroken.

        The same again changes nothing while what is half made is removed; but a person may press Ctrl-C once more.
        """
        self.number = self.number or number
        if self._is_alive() and number != signal.SIGINT:
            return
        watched = self._watched = self._watched or self._watch()
        between = frame is not None and frame.f_code.co_filename in _BETWEEN
        if watched and (unbroken.depth or between):
            return
        raise self.error(number)

    def error(self, number: int) -> BaseException:
        """Return an exception to raise for a signal; it isn't kept, so that it is seen to be lost."""
        error = _Interrupted() if number == signal.SIGINT else Stopped(number)
        self._error = weakref.ref(error)
        return error

    def end(self) -> None:
        """Send no signal any more."""
        with self._lock:
            self._over = True

    def _is_alive(self) -> bool:
        """Return whether the exception is on its way, or being handled: nobody else would keep it."""
        return self._error is not None and self._error() is not None

    def _watch(self) -> bool:
        """Start to send the signal again where its exception is lost; return whether that was possible."""
        try:
            # Not by `threading`, in whose locks the signal may have come.
            _thread.start_new_thread(self._send_again, ())
        except RuntimeError:  # there may be no more threads
            return False
        return True

    def _send_again(self) -> None:
        while True:
            time.sleep(AGAIN)
            with self._lock:
                if self._over or self.number is None:
                    return
                if not self._is_alive():
                    send(self.number)
                if signal.getsignal(self.number) != self.handle:  # others handle it by now, and were told
                    self._watched = False
                    return


def send(number: int) -> None:
    """Send a signal to the main thread, whatever that waits for."""
    if sys.platform == "win32":
        _thread.interrupt_main(number)
    else:
        signal.pthread_kill(main_thread().ident or 0, number)


@contextmanager
def raising_signals() -> Iterator[None]:
    """Raise `Stopped` inside where a signal comes that ends the process; one that is ignored (nohup) stays so.

    Compiled libraries may turn that, or the KeyboardInterrupt of a Ctrl-C, into an error of their own, and others drop
    it: it is raised again inside, and at the end.
    """
    if current_thread() is not main_thread():  # which gets all signals
        yield
        return
    ending, hook = _Ending(), sys.unraisablehook

    def pass_over(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, (Stopped, KeyboardInterrupt)):  # which are raised again
            hook(unraisable)

    ours = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ours.append(signal.SIGINT)
    before = {number: signal.getsignal(number) for number in ours}
    try:
        with unbroken:
            for number in ours:
                signal.signal(number, ending.handle)
            sys.unraisablehook = pass_over
        yield
    finally:
        with unbroken:
            ending.end()
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)
        if ending.number is not None and not _tells(sys.exception(), ending.number):
            raise ending.error(ending.number)


def _tells(error: BaseException | None, number: int) -> bool:
    """Return whether an exception tells of this signal; it then stays as it is, with its notes of what is kept."""
    return isinstance(error, (Stopped, _Interrupted)) and error.number == number
