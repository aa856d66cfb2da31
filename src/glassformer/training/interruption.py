"""Ctrl-C, SIGTERM and SIGHUP turned into a flag, so that an update is never left half done."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

from glassformer.stopping import ENDING

_PAUSE = 0.02
"""Seconds between two looks for a signal; waiting at a lock that its handler takes too might never end."""


class Interruption:
    """The signal that has asked the training to stop, if one has."""

    def __init__(self, *, patient: bool, shown: bool) -> None:
        self.signal: int | None = None
        self._patient = patient
        self._shown = shown

    def note(self, signum: int, frame: object) -> None:
        """Handle a signal: the first asks for a stop; a second Ctrl-C is immediate unless `patient`."""
        self.signal = self.signal or signum
        if signum == signal.SIGINT and not self._patient:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._shown:  # straight to the file: a signal may come in the middle of a print
            again = "; Ctrl-C again stops at once" if signum == signal.SIGINT and not self._patient else ""
            os.write(2, f"\nsaving after this update{again}\n".encode())

    def wait(self, seconds: float) -> None:
        """Return when a signal has come to this process, or after so many seconds."""
        until = time.monotonic() + seconds
        while self.signal is None and time.monotonic() < until:
            time.sleep(_PAUSE)


@contextmanager
def deferring_signals(*, patient: bool, shown: bool = True) -> Iterator[Interruption]:
    """Note SIGINT, SIGTERM and SIGHUP inside instead of stopping at once; only the main thread gets them.

    A signal that is ignored (by nohup, say) stays so.

    `patient` is for a process of several: torchrun passes Ctrl-C on to those that the terminal has told already.
    `shown` is for the one of them that tells the user.
    """
    interruption = Interruption(patient=patient, shown=shown)
    if current_thread() is not main_thread():
        yield interruption
        return
    wanted = [number for number in (signal.SIGINT, *ENDING) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interruption.note) for number in wanted}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
