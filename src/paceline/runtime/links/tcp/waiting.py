"""How a thread waits at sockets, and a thread that sends while the main one computes."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import NamedTuple

from paceline.errors import ConnectionFailed, PeerLost, WaitedTooLong
from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.waiting import Cancelled

SECOND = 1_000_000_000


class Timing(NamedTuple):
    """Seconds that rule a connection. `silence` is several heartbeats, or a busy machine passes for a dead one."""

    heartbeat: float = 0.5  # a process sends at least that often
    silence: float = 2.5  # a peer that sends nothing for so long is reported
    handshake: float = 5.0  # for a new connection to authenticate itself
    give_up: float = 120.0  # the kernel closes a connection whose other end confirms nothing


TIMING = Timing()
#: A peer may be silent for longer by so many times the delay with which its own threads have run lately.
DELAYS = 3
#: The part of a silence that a peer has left when this process was away itself: what it sent meanwhile is read first.
GRACE = 0.4


class AbortFlag:
    """A flag that wakes every thread of this process which waits at sockets. It is never taken back."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        #: Whether it was cancelled.
        self.done = False

    def fileno(self) -> int:
        return self._event

    def set(self) -> None:
        """Cancel. May be called by any thread, and again."""
        self.done = True
        os.eventfd_write(self._event, 1)  # never read, so it stays readable for all who poll

    def close(self) -> None:
        os.close(self._event)


@dataclass
class SocketWaiter:
    """How one process waits for others. What made it closes `aborted`."""

    worker: int
    deadline: float = 120.0  # seconds
    where: Callable[[], str] = lambda: ""
    aborted: AbortFlag = field(default_factory=AbortFlag)
    silence: float = TIMING.silence  # seconds


class PeerWait:
    """One wait for something from one peer."""

    def __init__(self, waiter: SocketWaiter, connection: Connection) -> None:
        self._waiter, self._connection = waiter, connection
        self._start = monotonic_ns()
        #: Before this moment the peer's silence does not count: no one listened.
        self._listening = self._start
        self._end = self._start + int(waiter.deadline * SECOND)

    @property
    def nanoseconds(self) -> int:
        """How long it has taken so far."""
        return monotonic_ns() - self._start

    def poll(self, poller: select.poll) -> list[tuple[int, int]]:
        """Sleep until a descriptor is ready, and return which are with their events; maybe none.

        Raises:
            Cancelled: it was cancelled.
            WaitedTooLong: the deadline has passed.
            PeerLost: the peer has been silent for too long.
        """
        waiter, begun = self._waiter, monotonic_ns()
        silence = int(waiter.silence * SECOND) + DELAYS * self._connection.delay
        until = min(self._end, max(self._connection.heard, self._listening) + silence)
        ready = poller.poll(max(0, (until - begun) // 1_000_000 + 1))
        if waiter.aborted.done:
            raise Cancelled
        now = monotonic_ns()
        if now > until + silence // 2:  # this process was stopped itself: what came meanwhile was not looked at yet
            self._listening = now - int((1 - GRACE) * silence)
        if not ready and self._connection.hurry():
            ready = poller.poll(0)
        if ready:
            return ready
        if now >= self._end:
            raise WaitedTooLong(waiter.worker, self._connection.name, waiter.deadline, waiter.where())
        if now - max(self._connection.heard, self._listening) >= silence:
            raise PeerLost(self._connection.name, silent(silence / SECOND), silent=True)
        return ready


def silent(seconds: float) -> str:
    """Why a peer is taken for lost that says nothing, as the end of a sentence."""
    shown = f"{seconds:.{1 if seconds < 1 else 2}g}"
    return f"has been silent for {shown} s: its process is stopped, or its machine or the network is down"


# A thread that sends while the main thread computes: heartbeats, and what a socket did not take at once.
#
# A process that is in a long backward pass sends nothing itself, and must not be taken for dead. PyTorch releases the
# interpreter's lock while it computes, and Python gives it away every few milliseconds, so this thread gets its turn.
# It stops with its process: one that was stopped by SIGSTOP, or whose machine sleeps, sends no heartbeats. An
# extension module that keeps the interpreter's lock for longer than `Timing.silence` makes its process look dead;
# whatever relies on heartbeats must bear that, since no failure detector is perfect.
#
# The pump also measures by how much it runs too late, and heartbeats say so: on a machine that has far more to do than
# cores, or while C code keeps the interpreter's lock, a process is given more time by those who listen to it.
#
#     main thread                                   pump
#     -----------                                   ----
#     connection.post(...)  sends what it can
#                           the rest is queued ---> woken, polls, connection.flush()
#     computes                                      every `heartbeat`: connection.beat()

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
