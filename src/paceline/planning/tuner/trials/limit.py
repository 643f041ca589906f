"""A limit for the time that code of the user's may take in the tuner's own process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIMIT = 120.0  # seconds, after which what makes a model or computes its first batch is taken to hang
AGAIN = 1.0  # seconds until the next attempt ends, where the first one's error was taken for something else


@contextmanager
def limited(seconds: float | None = None) -> Iterator[None]:
    """A context that is left with TimeoutError after so many seconds; in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    most = seconds or LIMIT

    def late(*_: Any) -> None:
        raise TimeoutError(f"it was silent for {most:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, most, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
