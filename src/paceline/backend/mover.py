"""A helper thread for what is under way and nobody waits for. It is there only while there is, or was, such a thing.

It asks now and then instead of being woken: waking it would cost every operation of DDP more than the operation.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.backend.traffic import Traffic

SHORTEST_NAP_SECONDS = 0.001
LONGEST_NAP_SECONDS = 0.01
IDLE_SECONDS = 1.0  # before the thread ends
STOP_SECONDS = 5.0  # for the thread to end, with what it is at


class Mover:
    def __init__(self) -> None:
        self._watched: set[Traffic] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def watch(self, traffic: Traffic) -> None:
        with self._lock:
            self._watched.add(traffic)
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="paceline-mover", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """At the end of the process: a thread that the interpreter ends within PyTorch takes the process with it."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    def forget_all(self) -> None:
        """In a forked child, where the thread is not."""
        self._watched, self._lock, self._thread = set(), threading.Lock(), None
        self._stopped = threading.Event()

    def _run(self) -> None:
        nap, idle_since = SHORTEST_NAP_SECONDS, time.monotonic()
        while not self._stopped.wait(nap):
            with self._lock:
                watched = list(self._watched)
            unwaited = [traffic.move_unwaited() for traffic in watched]
            nap = SHORTEST_NAP_SECONDS if any(unwaited) else min(1.5 * nap, LONGEST_NAP_SECONDS)
            with self._lock:
                self._watched = {traffic for traffic in self._watched if traffic.busy()}
                if self._watched:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > IDLE_SECONDS:
                    self._thread = None
                    return


MOVER = Mover()
