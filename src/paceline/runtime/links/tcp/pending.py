"""Pending handshakes, on accepted and dialled connections, whose other end has not proved yet who it is.

Unauthenticated connections cannot keep others out. Each has `Timing.handshake` seconds and a small buffer. There are at
most `PLACES` of them, and one more replaces the oldest of the machine that has most of them. So a candidate that sends
a byte a second competes with itself.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import monotonic_ns

from paceline.errors import ConnectionFailed, FrameError, PeerLost, PeerRefused
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
from paceline.runtime.links.tcp.stream import prepare
from paceline.runtime.links.tcp.waiting import SECOND, Timing

PLACES = 64  # unauthenticated connections at a time
ACCEPTED = 64  # at once, before other work is done
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two attempts to dial
REMEMBERED = 1000  # machines that were refused, and reported


class Refusals:
    """Tells of each machine that is refused once, and of so many machines at most."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._tell = report
        self._told: set[str] = set()
        #: How many connections were refused.
        self.count = 0

    def add(self, host: str, why: str) -> None:
        self.count += 1
        if host in self._told or len(self._told) > REMEMBERED:
            return
        self._told.add(host)
        if len(self._told) > REMEMBERED:
            self._tell(f"refused connections from more than {REMEMBERED} machines; further ones are not reported")
        else:
            self._tell(f"refused a connection from {host}: it {why}. Further ones from there are not reported")


@dataclass
class Dial:
    """An address that is dialled again and again until its deadline."""

    address: Address
    end: int
    due: int  # nanoseconds of the monotonic clock
    pause: float = FIRST_PAUSE
    attempts: int = 0
    why: str = "no one answered"  # the last attempt failed
    candidate: Candidate | None = None


class PendingHandshakes:
    """The handshakes of a process. Its owner polls the candidates, and says which of them are ready."""

    def __init__(self, me: Identity, credentials: Credentials, timing: Timing, report: Callable[[str], None]) -> None:
        self._me, self._credentials, self._timing, self._tell = me, credentials, timing, report
        #: Addresses whose process is not the right one, as was told.
        self._complained: set[Address] = set()
        self.refusals = Refusals(report)
        #: Those that were accepted, the oldest first.
        self._waiting: dict[int, Candidate] = {}
        self._dials: list[Dial] = []

    def dial(self, address: Address, seconds: float) -> None:
        """Dial an address from the next `due` on, for at most so long. One that is being dialled may take longer."""
        now = monotonic_ns()
        end = now + int(seconds * SECOND)
        for dial in self._dials:
            if dial.address == address:
                dial.end = max(dial.end, end)
                return
        self._dials.append(Dial(address, end, now))

    def stop_dialling(self, address: Address) -> None:
        """Dial an address no longer, and forget the connection to it that is not established yet."""
        for dial in [each for each in self._dials if each.address == address]:
            self._dials.remove(dial)
            if dial.candidate is not None:
                dial.candidate.close()

    @property
    def busy(self) -> bool:
        """Whether a connection is not established yet, so that time matters."""
        return bool(self._dials or self._waiting)

    def next_due(self) -> int | None:
        """When something has to be dialled or given up next."""
        ends = [candidate.end for candidate in islice(self._waiting.values(), 1)]
        ends += [min(d.end, d.candidate.end if d.candidate else d.due) for d in self._dials]
        return min(ends, default=None)

    def accept(self, listener: socket.socket) -> Iterator[Candidate]:
        """Accept who has come, and yield them to be polled.

        Raises:
            OSError: this process has no descriptors left.
        """
        for _ in range(ACCEPTED):
            try:
                raw, (host, *_) = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                continue
            try:
                prepare(raw, self._timing.give_up)
                candidate = Candidate(raw, self._credentials, self._me, self._timing.handshake, None)
            except (OSError, PeerRefused) as error:
                raw.close()
                if isinstance(error, PeerRefused):  # else it has gone again
                    self.refusals.add(str(host), str(error))
                continue
            if len(self._waiting) >= PLACES:
                self._evict()
            self._waiting[candidate.fileno()] = candidate
            yield candidate

    def due(self, now: int) -> Iterator[Candidate]:
        """Give up who took too long, and yield the connections that are dialled now."""
        for candidate in [s for s in self._waiting.values() if now >= s.end]:
            self.refuse(candidate, f"did not say who it is within {self._timing.handshake:g} s")
        for dial in self._dials:
            if dial.candidate is not None and now >= dial.candidate.end:
                self.refuse(dial.candidate, "does not answer")
            if (
                dial.candidate is None
                and dial.due <= now < dial.end
                and (new_candidate := self._attempt(dial)) is not None
            ):
                yield new_candidate

    def given_up(self, now: int) -> Iterator[tuple[Address, str]]:
        """The addresses whose deadline has passed, and why they could not be reached."""
        for dial in [d for d in self._dials if now >= d.end]:
            self._dials.remove(dial)
            if dial.candidate is not None:
                dial.candidate.close()
            yield dial.address, dial.why

    def advance(self, candidate: Candidate) -> tuple[Peer, Connection] | None:
        """Continue a handshake; return who the peer is as soon as that is known."""
        try:
            handshake = candidate.advance()
        except PeerLost as error:
            self.refuse(candidate, error.why)
            return None
        except ConnectionFailed as error:
            why = f"sent what is not allowed: {error}" if isinstance(error, FrameError) else str(error)
            self.refuse(candidate, why)
            self._complain(candidate, why)
            return None
        except OSError as error:
            self.refuse(candidate, f"cannot be reached ({error.strerror or error})")
            return None
        if handshake is not None:
            self._drop(candidate)
        return handshake

    def refuse(self, candidate: Candidate, why: str) -> None:
        """Close a connection without an answer. One that was dialled is dialled again later."""
        if candidate.dialled is None:
            self.refusals.add(candidate.host, why)
        self._drop(candidate, why)
        candidate.close()

    def close(self) -> None:
        """Close every connection that is not established yet."""
        for candidate in [*self._waiting.values(), *(d.candidate for d in self._dials if d.candidate)]:
            candidate.close()
        self._waiting.clear()
        self._dials.clear()

    def _attempt(self, dial: Dial) -> Candidate | None:
        try:
            dial.attempts += 1
            raw = open_socket(dial.address, dial.attempts - 1)
        except OSError as error:
            self._postpone(dial, error.strerror or str(error))
            return None
        prepare(raw, self._timing.give_up)
        dial.candidate = Candidate(raw, self._credentials, self._me, self._timing.handshake, dial.address)
        return dial.candidate

    def _drop(self, candidate: Candidate, why: str = "") -> None:
        """Forget a candidate; `why` it was refused, if it was."""
        if candidate.dialled is None:
            self._waiting.pop(candidate.fileno(), None)
            return
        (dial,) = [d for d in self._dials if d.candidate is candidate]
        if why:
            self._postpone(dial, why)
        else:
            self._dials.remove(dial)

    def _complain(self, candidate: Candidate, why: str) -> None:
        """Tell once why the process at an address is not the right one: waiting for it may take long."""
        if candidate.dialled is not None and candidate.dialled not in self._complained:
            self._complained.add(candidate.dialled)
            self._tell(f"dialled {candidate.dialled}: it {why}. It is dialled again until the deadline")

    def _postpone(self, dial: Dial, why: str) -> None:
        dial.candidate, dial.why = None, why
        dial.due = monotonic_ns() + int(dial.pause * SECOND)
        dial.pause = min(2 * dial.pause, LONGEST_PAUSE)

    def _evict(self) -> None:
        """Refuse the oldest candidate of the machine that has most of them."""
        counts = Counter(candidate.host for candidate in self._waiting.values())
        host = counts.most_common(1)[0][0]
        oldest = next(candidate for candidate in self._waiting.values() if candidate.host == host)
        self.refuse(oldest, f"opened {counts[host]} connections and did not say who it is")


# A candidate: a connection whose other end has not proved yet who it is.


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
