"""What signals ask of a run that keeps checkpoints."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class Signals:
    """SIGUSR1 requests a checkpoint; SIGTERM and Ctrl-C request one and then end the run; a second Ctrl-C ends it."""

    def __init__(self) -> None:
        #: Whether a checkpoint was requested that is not taken yet.
        self.requested = False
        #: The signal that ends the run as soon as a checkpoint is written; 0 for none.
        self.ending = 0
        #: Whether this process was asked to end, not only another one of the run.
        self._asked = False
        #: Whether Ctrl-C was pressed again.
        self.interrupted = False

    def take(self, number: int) -> None:
        """Do what a signal asks for."""
        if self._asked and number == signal.SIGINT:
            self.interrupted = True
            raise KeyboardInterrupt
        self.requested = True
        if number != signal.SIGUSR1:
            self._asked, self.ending = True, number

    def take_of_another(self, number: int) -> None:
        """Do what another process of the run was asked for: terminals send Ctrl-C to all of them at once."""
        self.requested, self.ending = True, self.ending or number

    def stop(self) -> None:
        """Request a checkpoint that ends the run, as SIGTERM does."""
        self.take(signal.SIGTERM)

    def check(self) -> None:
        """Raise a second Ctrl-C again: what is raised while an object is being destroyed is lost."""
        if self.interrupted:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals within the block."""
        with handling((signal.SIGUSR1, signal.SIGTERM, signal.SIGINT), self):
            yield


class Noted:
    """Remembers the first signal; a second Ctrl-C interrupts the process."""

    def __init__(self) -> None:
        self.number = 0  # 0: none yet

    def take(self, number: int) -> None:
        """Note a signal."""
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = self.number or number


@contextlib.contextmanager
def handling(numbers: tuple[int, ...], taker: Signals | Noted) -> Iterator[None]:
    """Give these signals to `taker` within the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    before = {number: signal.signal(number, lambda given, _: taker.take(given)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
