"""Programs that wait for a signal."""

from __future__ import annotations

import signal
import threading


def event() -> None:
    event = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: event.set())
    event.wait()


PROGRAMS = {"pause": signal.pause, "sigwait": lambda: signal.sigwait({signal.SIGUSR1}), "event": event}
