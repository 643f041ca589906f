"""A thread that sends while the main thread computes: heartbeats, and what a socket did not take at once.

A process that is in a long backward pass sends nothing itself, and must not be taken for dead. PyTorch releases the
interpreter's lock while it computes, and Python gives it away every few milliseconds, so this thread gets its turn. It
stops with its process: one that was stopped by SIGSTOP, or whose machine sleeps, sends no heartbeats. An extension
module that keeps the interpreter's lock for longer than `Timing.silence` makes its process look dead; whatever relies
on heartbeats must bear that, since no failure detector is perfect.

The pump also measures by how much it runs too late, and heartbeats say so: on a machine that has far more to do than
cores, or while C code keeps the interpreter's lock, a process is given more time by those who listen to it.

    main thread                                   pump
    -----------                                   ----
    connection.post(...)  sends what it can
                          the rest is queued ---> woken, polls, connection.flush()
    computes                                      every `heartbeat`: connection.beat()
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from time import monotonic_ns

from paceline.errors import ConnectionFailed
from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.tcp.waiting import SECOND, TIMING

HALF_LIFE = 5.0  # seconds
STOPPED = int(TIMING.silence * SECOND)


class Pump:
    """The sending thread of a process, for all connections that were given to `watch`."""

    def __init__(self, heartbeat: float = TIMING.heartbeat) -> None:
        self._interval = int(heartbeat * SECOND)
        self._nap = max(1, int(heartbeat * 1000 / 4))  # milliseconds
        self._forgets = 0.5 ** (self._nap / 1000 / HALF_LIFE)
        #: Nanoseconds by which this thread has run too late again and again; half is forgotten in `HALF_LIFE`.
        self.delay = 0
        #: The same, but for once.
        self._once = 0
        self._watched: set[Connection] = set()
        #: Held while `_watched` is used.
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="paceline-pump", daemon=True)
        self._thread.start()

    def watch(self, connection: Connection, at_once: bool = True) -> None:
        """Send for a connection from now on; not `at_once` where its owner polls it, and sends most itself."""
        connection.on_queued = self._kick if at_once else None
        with self._lock:
            self._watched.add(connection)
        self._kick()

    def forget(self, connection: Connection) -> None:
        """Send no longer for a connection; to be called before it is closed."""
        with self._lock:
            self._watched.discard(connection)
        connection.on_queued = None

    def close(self) -> None:
        """End the thread."""
        if self._ends:
            return
        self._ends = True
        self._kick()
        self._thread.join()
        os.close(self._wake)

    def _kick(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not self._ends:
            # 1. Sleep until a socket takes more, a connection has queued something, or a heartbeat may be due.
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            with self._lock:
                for connection in self._watched:
                    if connection.wants_write and (descriptor := connection.fileno()) >= 0:
                        poller.register(descriptor, select.POLLOUT)
            asleep = monotonic_ns()
            woken = poller.poll(self._nap)
            self._measure(monotonic_ns() - asleep)
            for descriptor, _ in woken:
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
            # 2. Send. Under the lock, so that none is closed meanwhile; no call here blocks.
            now = monotonic_ns()
            with self._lock:
                for connection in self._watched:
                    with contextlib.suppress(ConnectionFailed):  # the main thread gets it from its next call
                        connection.flush()
                        connection.beat(now, self._interval, self.delay)

    def _measure(self, slept: int) -> None:
        """Note by how much this thread was late, which had to sleep no longer than `_nap`.

        A process that was late by seconds was stopped, or its machine was: others do not wait for that. Nor do they if
        it was late once, since what is short of cores is late again and again. A process that was stopped for a moment,
        and is stopped again, would otherwise be waited for by several times that moment.
        """
        late = slept - self._nap * 1_000_000
        late = late if late < STOPPED else 0
        once, delay = int(self._once * self._forgets), int(self.delay * self._forgets)
        self.delay, self._once = max(delay, min(late, once)), max(once, late)
