"""A thread that drives what is under way and no thread waits for. It runs only while there is, or was, such a thing.

It looks from time to time instead of being woken: waking it would cost every operation of DDP more than the operation.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

SHORTEST_NAP_SECONDS = 0.001
LONGEST_NAP_SECONDS = 0.03  # each look takes the interpreter, and with it a core, from the training
IDLE_SECONDS = 1.0  # before the thread ends
STOP_SECONDS = 5.0  # for the thread to end, with what it is doing


class Driven(Protocol):
    """What the thread drives: the progress engine of a group."""

    def busy(self) -> bool:
        """Whether anything is under way."""

    def drive_unwaited(self) -> bool:
        """Move what no thread waits for; whether there was anything."""


class BackgroundThread:
    """The thread of a process, for all its groups."""

    def __init__(self) -> None:
        self._watched: set[Driven] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def watch(self, engine: Driven) -> None:
        """Drive a group until nothing is under way in it; starts the thread where it does not run."""
        with self._lock:
            self._watched.add(engine)
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="paceline-background", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread with the process: one that the interpreter ends within PyTorch takes the process with it."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    def forget_all(self) -> None:
        """Begin afresh in a forked child, which has no such thread."""
        self._watched, self._lock, self._thread = set(), threading.Lock(), None
        self._stopped = threading.Event()

    def _run(self) -> None:
        nap, idle_since = SHORTEST_NAP_SECONDS, time.monotonic()
        while not self._stopped.wait(nap):
            with self._lock:
                watched = list(self._watched)
            unwaited = [engine.drive_unwaited() for engine in watched]
            nap = SHORTEST_NAP_SECONDS if any(unwaited) else min(1.5 * nap, LONGEST_NAP_SECONDS)
            with self._lock:
                self._watched = {engine for engine in self._watched if engine.busy()}
                if self._watched:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > IDLE_SECONDS:
                    self._thread = None
                    return


BACKGROUND = BackgroundThread()
