"""Stopping on request: SIGINT (Ctrl-C), SIGTERM (a scheduler), SIGHUP (a closed terminal)."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


def signal_name(number: int) -> str:
    """What a user calls the signal: "Ctrl-C" for SIGINT, otherwise its name."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _stop_signals() -> list[int]:
    """SIGTERM and SIGHUP; Windows has no SIGHUP, and nohup ignores it."""
    numbers = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    return [n for n in numbers if n is not None and signal.getsignal(n) != signal.SIG_IGN]


class StopRequest:
    """Remembers SIGTERM, SIGHUP or SIGINT, so that a loop can stop between two steps.

    The second signal has its usual effect. A scheduler signals child processes, too: from then on
    the end of a DataLoader's worker is not reported as an error.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._handlers: dict[int, Any] = {}
        self._at_end_of_child: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*_stop_signals(), signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        if self._at_end_of_child is not None:
            signal.signal(signal.SIGCHLD, self._at_end_of_child)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()
        if hasattr(signal, "SIGCHLD"):  # Windows has none
            self._at_end_of_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _restore(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, handler)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, stop) for number in _stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
