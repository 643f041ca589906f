"""A connection for a thread that waits: requests and answers, with a deadline and a way to cancel."""

from __future__ import annotations

import select
from collections.abc import Sequence

from paceline.errors import PeerLost
from paceline.runtime.links.tcp.connection import Buffer, Connection
from paceline.runtime.links.tcp.frame import LEAVE, Frame
from paceline.runtime.links.tcp.waiting import SocketWaiter, Wait

BOTH = select.POLLIN | select.POLLOUT


class BlockingConnection:
    """A connection to one peer, used by one thread.

        connection.send(PUSH, (batch,), [gradient])      returns when all was handed to the kernel
        answer = connection.receive()

    Both raise `WaitedTooLong` after the deadline, `Cancelled` when cancelled, and `PeerLost` when the peer has ended
    or says nothing. After any of these the connection is closed: half a frame may have been sent.
    """

    def __init__(self, connection: Connection, waiter: SocketWaiter) -> None:
        self.connection, self.waiter = connection, waiter
        #: Nanoseconds that were waited.
        self.waited = 0
        #: A frame that arrived while one was sent: two ends that both send first must not wait for each other.
        self._early: Frame | None = None
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)
        self._poller.register(waiter.aborted, select.POLLIN)

    def send(self, kind: int, ints: Sequence[int] = (), bodies: Sequence[Buffer] = ()) -> None:
        """Send a frame; the buffers may be changed afterwards."""
        try:
            self.connection.post(kind, ints, bodies, copy=False)
            if self.connection.wants_write:
                self._until_sent()
        except PeerLost:
            self._listen_to_the_end()
            raise

    def receive(self) -> Frame:
        """Return the next frame."""
        frame, self._early = self._early, None
        if frame is None:
            frame = self.connection.next() or self._until_received()
        if frame.kind == LEAVE:
            raise self._has_left()
        return frame

    def close(self) -> None:
        self.connection.close()

    def _listen_to_the_end(self) -> None:
        """Raise PeerLost with `left` if the other end has said so before it closed the connection."""
        while self.connection.lost is None and (frame := self.connection.next()) is not None:
            if frame.kind == LEAVE:
                raise self._has_left()

    def _has_left(self) -> PeerLost:
        return PeerLost(self.connection.name, "has left, while something was expected of it", left=True)

    def _until_sent(self) -> None:
        connection, wait = self.connection, Wait(self.waiter, self.connection)
        try:
            while connection.wants_write:
                listens = self._early is None
                self._poller.modify(connection, BOTH if listens else select.POLLOUT)
                wait.poll(self._poller)
                connection.flush()
                if listens:
                    self._early = connection.next()
        except BaseException:
            connection.close()
            raise
        self._poller.modify(connection, select.POLLIN)
        self.waited += wait.nanoseconds

    def _until_received(self) -> Frame:
        connection, wait = self.connection, Wait(self.waiter, self.connection)
        try:
            while (frame := connection.next()) is None:
                wait.poll(self._poller)
        except BaseException:
            connection.close()
            raise
        self.waited += wait.nanoseconds
        return frame
