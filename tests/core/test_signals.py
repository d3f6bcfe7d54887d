"""Requests to stop."""

import os
import signal

import pytest

from segcal.core.signals import StopRequest, signal_name, sigterm_as_interrupt


def test_the_first_signal_is_remembered_and_the_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is before  # a second one has its usual effect
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_interrupts_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_names_are_those_that_users_know() -> None:
    assert signal_name(signal.SIGINT) == "Ctrl-C"
    assert signal_name(signal.SIGTERM) == "SIGTERM"
