"""A candidate: a connection whose other end has not proved yet who it is."""

from __future__ import annotations

import os
import select
import socket
from time import monotonic_ns

from paceline.errors import PeerRefused
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.tcp.credentials import Credentials
from paceline.runtime.links.tcp.handshake import (
    NONCE_BYTES,
    UNPROVED,
    Accepted,
    Identity,
    Message,
    Peer,
    dialling,
    listening,
)
from paceline.runtime.links.tcp.waiting import SECOND


class Candidate:
    """One handshake on a socket, either side: connecting, then TLS's own handshake if there is one, then frames."""

    def __init__(
        self, raw: socket.socket, credentials: Credentials, me: Identity, seconds: float, dialled: Address | None
    ) -> None:
        """
        Args:
            raw: a socket that never blocks, connected or about to be.
            credentials: how peers are authenticated.
            me: who this process is.
            seconds: how long the handshake may take.
            dialled: the address that this process has dialled; None if it was dialled itself.

        Raises:
            PeerRefused: the other end is not let in, whatever it may say.
            OSError: it has gone again.
        """
        self._raw, self._credentials, self.dialled = raw, credentials, dialled
        #: The machine at the other end.
        self.host = dialled.host if dialled else str(raw.getpeername()[0])
        self.end = monotonic_ns() + int(seconds * SECOND)
        #: Events of poll that it waits for.
        self.events = select.POLLOUT if dialled else select.POLLIN
        self._handshake = (dialling if dialled else listening)(me, credentials.token, os.urandom(NONCE_BYTES))
        self._connection: Connection | None = None if dialled else self._connected()
        self._secured = False

    def fileno(self) -> int:
        return self._raw.fileno() if self._connection is None else self._connection.fileno()

    def advance(self) -> tuple[Peer, Connection] | None:
        """Go on as far as possible; return who the peer is as soon as that is known.

        Raises:
            ConnectionFailed: the other end is refused, has refused or has ended.
            OSError: it cannot be reached.
        """
        if self._connection is None:
            self._connection = self._connected()
        connection = self._connection
        if not self._secured:
            if (events := connection.stream.handshake()) is not None:
                self.events = events
                return None
            self._secured = True
            self._post(connection, next(self._handshake))
        connection.flush()
        while (frame := connection.next()) is not None:
            try:
                self._post(connection, self._handshake.send(frame))
            except StopIteration as end:
                accepted: Accepted = end.value
                self._post(connection, accepted.last)
                if accepted.keys is not None:
                    connection.seal(accepted.keys)
                return accepted.peer, connection
        self.events = select.POLLIN | (select.POLLOUT if connection.wants_write else 0)
        return None

    def _connected(self) -> Connection:
        raw = self._raw
        if error := raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        if raw.getsockname() == raw.getpeername():  # the kernel connects a socket to itself where no one listens yet
            raise PeerRefused("was not there yet")
        return Connection(self._credentials.stream(raw, self.dialled is None, self.host), self.host, UNPROVED)

    def _post(self, connection: Connection, message: Message | None) -> None:
        if message is not None:
            connection.post(message.kind, message.ints, [message.body])

    def close(self) -> None:
        self._raw.close() if self._connection is None else self._connection.close()


def open_socket(address: Address, attempt: int) -> socket.socket:
    """Return a socket that begins to connect to an address. A name is looked up now, which may take its time.

    A name may mean several addresses, of which only one is listened at; each attempt takes the next.
    """
    entries = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    family, kind, protocol, _, target = entries[attempt % len(entries)]
    raw = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        raw.connect(target)
    except BlockingIOError:
        pass
    except BaseException:
        raw.close()
        raise
    return raw
