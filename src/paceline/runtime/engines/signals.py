"""What signals ask of a run that keeps checkpoints, and of a command that has none to write.

The command line imports this before anything else, so it imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

INTERRUPTED = 128 + signal.SIGINT  # the exit code of a shell for a process that Ctrl-C has ended
#: Packages that are imported before anything else is done, and of which an interrupted import cannot be made again.
WHOLE = ("torch", "numpy", "pyarrow")
#: What Python does at the signals that end a command.
DEFAULTS: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class Termination:
    """Ends a command that gets SIGTERM or Ctrl-C: at once while it is imported, later by a KeyboardInterrupt."""

    def __init__(self) -> None:
        #: The signal that has interrupted the command; 0 for none.
        self.requested = 0
        self._command = 0  # its process: forked ones have the handler, too

    @property
    def exit_code(self) -> int:
        """The exit code of a command that was interrupted, as a shell has it; otherwise 0."""
        return 128 + self.requested if self.requested else 0

    def exit_at_once(self) -> None:
        """Exit at both signals from now on: nothing has begun that has to be undone."""
        for number, default in DEFAULTS.items():
            if signal.getsignal(number) == default:
                signal.signal(number, _exit)

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        """Let both signals interrupt the block, so that it leaves nothing behind."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals
            return
        self.requested, self._command = 0, os.getpid()
        before = {number: signal.getsignal(number) for number in DEFAULTS}
        for number, handler in before.items():
            if handler in (_exit, DEFAULTS[number]):  # others, as of a command in the background, stay
                signal.signal(number, self._take)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Interrupt the command if it goes on although it was interrupted; called wherever it waits for long.

        Code can catch everything, and what is raised while an object is being destroyed is lost.
        """
        if self.requested:
            raise KeyboardInterrupt

    def _take(self, number: int, _: object) -> None:
        if os.getpid() != self._command:
            signal.signal(number, DEFAULTS[signal.Signals(number)])
            os.kill(os.getpid(), number)
        if any(_is_being_imported(name) for name in WHOLE):
            _exit(number, None)
        self.requested = number
        raise KeyboardInterrupt


def _is_being_imported(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


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
