"""What signals ask of a run that keeps checkpoints, and of a command that has none to write.

The command line imports this before anything else, so it imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

TERMINATED = 128 + signal.SIGTERM  # the exit code of a shell for a process that SIGTERM has ended
#: What Python does at the signals that end a command.
DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class Termination:
    """Ends a command that gets SIGTERM: at once while it is imported, as at Ctrl-C, later as Ctrl-C does.

    The exit code is 143; that of Ctrl-C is 130.
    """

    def __init__(self) -> None:
        #: Whether SIGTERM has interrupted the command.
        self.requested = False
        self._command = 0  # its process: forked ones have the handler, too

    def exit_at_once(self) -> None:
        """From now on exit at both signals: nothing has begun that has to be undone."""
        for number, default in DEFAULTS.items():
            if signal.getsignal(number) == default:
                signal.signal(number, _exit)

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        """Let SIGTERM interrupt the block as Ctrl-C does, so that it leaves nothing behind."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals
            return
        self.requested, self._command = False, os.getpid()
        before = signal.signal(signal.SIGTERM, self._take)
        if signal.getsignal(signal.SIGINT) == _exit:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def check(self) -> None:
        """Interrupt the command if it goes on although it was interrupted, as code can that catches everything."""
        if self.requested:
            raise KeyboardInterrupt

    def _take(self, number: int, _: object) -> None:
        if os.getpid() != self._command:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = True
        raise KeyboardInterrupt


def _exit(number: int, _: object) -> None:
    os._exit(128 + number)


termination = Termination()


class Signals:
    """SIGUSR1 requests a checkpoint; SIGTERM and Ctrl-C request one and then end the run; a second Ctrl-C ends it."""

    def __init__(self) -> None:
        #: Whether a checkpoint was requested that is not taken yet.
        self.requested = False
        #: The signal that ends the run as soon as a checkpoint is written; 0 for none.
        self.ending = 0
        #: Whether that was sent to a process of the run; otherwise a callback ends the run.
        self.sent = False
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
            self._asked, self.ending, self.sent = True, number, True

    def take_of_another(self, number: int) -> None:
        """Do what another process of the run was asked for: terminals send Ctrl-C to all of them at once."""
        self.requested, self.ending, self.sent = True, self.ending or number, True

    def stop(self) -> None:
        """Request a checkpoint that ends the run, as SIGTERM does, for a callback."""
        self.requested, self._asked, self.ending = True, True, signal.SIGTERM

    def check(self) -> None:
        """Raise a second Ctrl-C again: what is raised while an object is being destroyed is lost."""
        if self.interrupted:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals within the block."""
        termination.check()
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
