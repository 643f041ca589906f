"""How a thread waits at sockets: until a deadline, until the peer has been silent for too long, or until cancelled."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import NamedTuple

from paceline.errors import PeerLost, WaitedTooLong
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


class Wait:
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
