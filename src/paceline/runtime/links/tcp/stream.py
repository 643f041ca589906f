"""Streams: bytes to and from a socket that never blocks, plain here and encrypted in `tls`."""

from __future__ import annotations

import fcntl
import socket
import termios
from collections.abc import Sequence
from struct import Struct
from typing import Protocol

BUFFERS = 64  # that one system call sends; the kernel takes at most 1,024
CLOSED = 7  # a state of TCP_INFO
INT = Struct("i")
PROBE_SECONDS = 1  # between two probes of a connection on which nothing is sent


class Stream(Protocol):
    """A connected socket. `None` means that it would block."""

    #: Whether nothing is left when `receive` has returned less than there was room for.
    short_is_all: bool

    def fileno(self) -> int:
        """The descriptor to poll."""

    def handshake(self) -> int | None:
        """Continue with what comes before the first byte: the events of poll to wait for, or None when it is done."""

    def send(self, buffers: Sequence[memoryview]) -> int | None:
        """Send the beginning of some bytes, and return how many."""

    def receive(self, into: memoryview) -> int | None:
        """Receive some bytes, and return how many; 0 at the end."""

    def wake_at(self, count: int) -> None:
        """Let poll report what arrives only from so many bytes on, as far as the socket can; its end at once."""

    def undelivered(self) -> int:
        """Return how many of the bytes that were sent the other end's kernel has not confirmed."""

    def finish(self) -> None:
        """Tell the other end that nothing more is sent."""

    def close(self) -> None:
        """Close the socket."""


class PlainStream:
    """A socket as it is."""

    short_is_all = True

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._send, self._receive = raw.sendmsg, raw.recv_into

    def fileno(self) -> int:
        return self._raw.fileno()

    def handshake(self) -> int | None:
        return None

    def send(self, buffers: Sequence[memoryview]) -> int | None:
        try:
            return self._send(buffers[:BUFFERS])
        except BlockingIOError:
            return None

    def receive(self, into: memoryview) -> int | None:
        try:
            return self._receive(into)
        except BlockingIOError:
            return None

    def wake_at(self, count: int) -> None:
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def undelivered(self) -> int:
        return undelivered(self._raw)

    def finish(self) -> None:
        self._raw.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._raw.close()


def undelivered(raw: socket.socket) -> int:
    """Return how many bytes the kernel has still to deliver; 0 if it has given up."""
    if raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSED:
        return 0
    (count,) = INT.unpack(fcntl.ioctl(raw, termios.TIOCOUTQ, INT.pack(0)))
    return int(count)


def prepare(raw: socket.socket, give_up: float) -> None:
    """Set what every connection needs.

    Args:
        raw: a socket of TCP.
        give_up: seconds after which the kernel closes a connection whose other end confirms nothing. It is no shorter
            than the longest wait: a healthy process that computes for long reads nothing meanwhile, and the kernel
            counts that too. Who is silent is noticed earlier, by heartbeats.
    """
    raw.setblocking(False)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(give_up * 1000))
