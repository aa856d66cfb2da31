"""Ctrl-C and SIGTERM as a flag, so that an update is never left half done."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


class Interruption:
    """Which signal has asked the training to stop, if one has."""

    signal: int | None = None

    def __init__(self, *, patient: bool, shown: bool) -> None:
        self._patient = patient
        self._shown = shown

    def note(self, signum: int, frame: object) -> None:
        """What a signal does: the first asks for a stop; a second Ctrl-C is immediate unless `patient`."""
        self.signal = self.signal or signum
        if signum == signal.SIGINT and not self._patient:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._shown:  # straight to the file: a signal may come in the middle of a print
            again = "; Ctrl-C again stops at once" if signum == signal.SIGINT and not self._patient else ""
            os.write(2, f"\nsaving after this update{again}\n".encode())


@contextmanager
def interruption(*, patient: bool, shown: bool = True) -> Iterator[Interruption]:
    """What SIGINT and SIGTERM ask for inside, in the main thread; elsewhere nobody asks.

    `patient` for a process of several: torchrun passes Ctrl-C on to those that the terminal has told already; `shown`
    for the one of them that tells the user.
    """
    asked = Interruption(patient=patient, shown=shown)
    if current_thread() is not main_thread():
        yield asked
        return
    before = {number: signal.signal(number, asked.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
