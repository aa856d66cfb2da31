"""The first signal asks; who asks twice is heard at once, unless others have to be waited for."""

import os
import signal
import threading

import pytest

from glassformer.training.interruption import deferring_signals

HANDLED = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", HANDLED)
@pytest.mark.parametrize("patient", [False, True])
def test_a_signal_is_noted_and_changes_nothing_else(number, patient, capfd):
    before = [signal.getsignal(each) for each in HANDLED]
    with deferring_signals(patient=patient) as asked:
        assert asked.signal is None
        os.kill(os.getpid(), number)
        assert asked.signal == number
    assert [signal.getsignal(each) for each in HANDLED] == before
    out, err = capfd.readouterr()
    again = "; Ctrl-C again stops at once" if number == signal.SIGINT and not patient else ""
    assert (out, err) == ("", f"\nsaving after this update{again}\n")


def test_of_several_processes_one_says_so(capfd):
    with deferring_signals(patient=True, shown=False) as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked.signal == signal.SIGTERM
    assert capfd.readouterr() == ("", "")


def press_ctrl_c(times: int) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_is_immediate():
    with pytest.raises(KeyboardInterrupt), deferring_signals(patient=False):
        press_ctrl_c(2)
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_with_patience_it_is_not():
    """torchrun passes a Ctrl-C on to the processes that have had it from the terminal."""
    with deferring_signals(patient=True) as asked:
        press_ctrl_c(3)
        assert asked.signal == signal.SIGINT


@pytest.mark.parametrize("patient", [False, True])
def test_sigterm_is_noted_as_often_as_it_comes(patient):
    with deferring_signals(patient=patient) as asked:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert asked.signal == signal.SIGTERM


@pytest.mark.parametrize(("first", "second"), [HANDLED, HANDLED[::-1]])
def test_of_two_signals_the_first_says_how_it_ended(first, second):
    with deferring_signals(patient=False) as asked:
        signal.raise_signal(first)
        signal.raise_signal(second)
        assert asked.signal == first


def test_after_an_error_the_handlers_are_back():
    before = [signal.getsignal(each) for each in HANDLED]
    with pytest.raises(ValueError, match="inside"), deferring_signals(patient=False):
        raise ValueError("inside")
    assert [signal.getsignal(each) for each in HANDLED] == before


def test_in_a_thread_of_a_program_the_signals_are_the_programs_own():
    before = [signal.getsignal(each) for each in HANDLED]
    seen = []

    def work() -> None:
        with deferring_signals(patient=False) as asked:
            seen.append((asked.signal, [signal.getsignal(each) for each in HANDLED]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [(None, before)]
