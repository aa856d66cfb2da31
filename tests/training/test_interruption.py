"""The first signal asks; who asks twice is heard at once, unless others have to be waited for."""

import os
import signal
import threading

import pytest

from glassformer.training.interruption import deferring_signals

HANDLED = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", HANDLED)
@pytest.mark.parametrize(("patient", "shown"), [(False, True), (True, True), (True, False)])
def test_a_signal_is_noted_and_changes_nothing_else(number, patient, shown, capfd):
    before = [signal.getsignal(each) for each in HANDLED]
    with deferring_signals(patient=patient, shown=shown) as interruption:
        assert interruption.signal is None
        os.kill(os.getpid(), number)
        assert interruption.signal == number
    assert [signal.getsignal(each) for each in HANDLED] == before
    out, err = capfd.readouterr()
    again = "; Ctrl-C again stops at once" if number == signal.SIGINT and not patient else ""
    assert (out, err) == ("", f"\nsaving after this update{again}\n" if shown else "")


def test_after_an_error_the_handlers_are_back():
    before = [signal.getsignal(each) for each in HANDLED]
    with pytest.raises(ValueError, match="inside"), deferring_signals(patient=False):
        raise ValueError("inside")
    assert [signal.getsignal(each) for each in HANDLED] == before


def test_a_second_ctrl_c_is_immediate():
    def press_ctrl_c_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), deferring_signals(patient=False):
        press_ctrl_c_twice()
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize(
    ("patient", "signals"),
    [
        (True, [signal.SIGINT] * 3),  # torchrun passes Ctrl-C on to processes that the terminal has told
        (True, [signal.SIGTERM] * 3),
        (False, [signal.SIGTERM] * 3),
        (False, [signal.SIGTERM, signal.SIGINT]),
        (False, [signal.SIGINT, signal.SIGTERM]),
    ],
)
def test_of_several_signals_the_first_says_how_it_ended(patient, signals):
    with deferring_signals(patient=patient) as interruption:
        for number in signals:
            signal.raise_signal(number)
        assert interruption.signal == signals[0]


def test_a_signal_is_waited_for_no_longer_than_asked():
    with deferring_signals(patient=True) as interruption:
        interruption.wait(0.01)
        assert interruption.signal is None
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.start()
        interruption.wait(60.0)
        assert interruption.signal == signal.SIGTERM
        timer.join()


def test_in_a_thread_of_a_program_the_signals_are_the_programs_own():
    before = [signal.getsignal(each) for each in HANDLED]
    seen = []

    def work() -> None:
        with deferring_signals(patient=False) as interruption:
            seen.append((interruption.signal, [signal.getsignal(each) for each in HANDLED]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [(None, before)]
