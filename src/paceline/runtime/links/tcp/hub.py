"""The hub: the event loop's side of a process with many peers.

    hub = Hub(Identity(Peer(DESK, 0), run, job), listener=listen(Address("127.0.0.1", 0), Loopback()))
    while ...:
        for event in hub.poll(timeout):
            match event:
                case Arrived(peer): ...
                case Received(peer, kind, ints, body): hub.post(peer, ANSWER, ints)
                case Gone(peer, why): ...
                case Unreached(address, why): ...

One thread polls and posts; others may call `wake`. Nothing here blocks but `poll`, and names that are looked up.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from time import monotonic_ns
from typing import NamedTuple, TypeAlias

from paceline.errors import ConnectionFailed, FrameError, PeerLost
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import LINGER, Buffer, Connection, leave
from paceline.runtime.links.tcp.credentials import LOOPBACK, Credentials, require_safe
from paceline.runtime.links.tcp.frame import FIRST_KIND, LEAVE, LIMITS, Frame, Limits
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.pending import Candidate, PendingHandshakes
from paceline.runtime.links.tcp.waiting import DELAYS, GRACE, SECOND, TIMING, Pump, Timing, silent

__all__ = ["Arrived", "Event", "Gone", "Hub", "PeerPlace", "Policy", "Received", "Unreached"]


class _ConnectedPeer(NamedTuple):
    """A peer that is connected."""

    peer: Peer
    connection: Connection


def _report(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)


def _name(peer: Peer) -> str:
    return f"peer {peer.role}.{peer.number} (incarnation {peer.incarnation})"


class Policy(NamedTuple):
    """How a hub treats its peers."""

    #: What is accepted from them.
    limits: Limits = LIMITS
    #: Heartbeats and time limits.
    timing: Timing = TIMING
    #: Roles of peers that another object serves: after `Arrived`, `take_over` returns their connection, and the hub
    #: does not read from it.
    handed_over: Collection[int] = ()
    #: Roles of which a second process with the number of a first one that is connected does not take its place: both
    #: are connected, and the owner of the hub decides.
    rivals: Collection[int] = ()
    #: What a peer is called in messages.
    describe: Callable[[Peer], str] = _name


POLICY = Policy()


class Hub:
    """The connections of a process, its listening socket, and its handshakes."""

    def __init__(
        self,
        me: Identity,
        credentials: Credentials = LOOPBACK,
        listener: socket.socket | None = None,
        *,
        policy: Policy = POLICY,
        place: PeerPlace | None = None,
        pump: Pump | None = None,
        report: Callable[[str], None] = _report,
    ) -> None:
        """
        Args:
            me: who this process is.
            credentials: how peers are authenticated.
            listener: a socket that listens, which is the hub's from now on; None if this process only dials.
            policy: how peers are treated.
            place: where to receive bodies. What lies there counts only when `poll` returns it: its sender may die
                in the middle.
            pump: a thread that sends while this one computes; without it heartbeats go out in `poll` alone.
            report: where refused connections are reported.
        """
        self.me, self._credentials, self._listener = me, credentials, listener
        if listener is not None:
            require_safe(self.address, credentials, "listen at")
        self._policy, self._place, self._pump = policy, place, pump
        self._handshakes = PendingHandshakes(me, credentials, policy.timing, report)
        self._members: dict[Peer, _ConnectedPeer] = {}
        #: The incarnation that is connected, by role and number.
        self._seats: dict[tuple[int, int], Peer] = {}
        self._by_descriptor: dict[int, _ConnectedPeer | Candidate] = {}
        #: Connections of peers that are handed over, until they are taken.
        self._ready: dict[Peer, Connection] = {}
        self._events: list[Event] = []
        #: Members of which more can be read without the kernel's saying so.
        self._unread: set[Peer] = set()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._looked = self._next_round = monotonic_ns()
        #: A peer's silence counts from this moment on: before, this process did not listen itself.
        self._listening = self._looked
        self._accepting = False
        if listener is not None:
            listener.setblocking(False)
            self._accept_again()

    # --- what a process asks of it ---

    def fileno(self) -> int:
        """Return a descriptor that can be read when `poll` has something to do."""
        return self._epoll.fileno()

    @property
    def address(self) -> Address:
        """Where this process listens."""
        if self._listener is None:
            raise ValueError("this hub has no listening socket: it only dials")
        return Address(*self._listener.getsockname()[:2])

    @property
    def peers(self) -> frozenset[Peer]:
        """The peers that are connected now; not those that were handed over."""
        return frozenset(self._members)

    @property
    def delay(self) -> float:
        """Return by how many seconds the threads of this process or of a peer have lately run late."""
        delays = [member.connection.delay for member in self._members.values()]
        return max(self._pump.delay if self._pump is not None else 0, *delays, 0) / SECOND

    @property
    def refused(self) -> int:
        """How many connections were refused."""
        return self._handshakes.refusals.count

    def dial(self, address: Address, seconds: float) -> None:
        """Connect to a process, again and again for so long. `Arrived` or `Unreached` says how that ended.

        Of two processes that need each other only one may dial, as two connections would replace each other.
        """
        require_safe(address, self._credentials, "dial")
        self._handshakes.dial(address, seconds)

    def poll(self, timeout: float) -> list[Event]:
        """Return what has happened, after waiting for at most `timeout` seconds until something has."""
        end = monotonic_ns() + int(timeout * SECOND)
        while True:
            woken = self._poll(end)
            self._round()
            if self._events or woken or monotonic_ns() >= end:
                events, self._events = self._events, []
                return events

    def post(
        self, peer: Peer, kind: int, ints: Sequence[int] = (), bodies: Sequence[Buffer] = (), copy: bool = True
    ) -> bool:
        """Send a frame to a peer without waiting.

        The buffers may be changed afterwards; with copy=False only after `copy_queues`. Returns False if the peer is
        not connected. True is no promise either: only an answer is.
        """
        if (member := self._members.get(peer)) is None:
            return False
        try:
            member.connection.post(kind, ints, bodies, copy)
        except PeerLost as error:
            if member.connection.lost is not None:  # else it may have said why, which is read first
                self._gone(member, error.why)
            return False
        if member.connection.wants_write:
            self._watch(member)
        return True

    def copy_queues(self, role: int | None = None) -> None:
        """Let every buffer be changed that was posted, or posted to a role: copy of them what has not been sent."""
        for peer, connection in self._members.values():
            if role is None or peer.role == role:
                connection.copy_queue()

    def take_over(self, peer: Peer) -> Connection:
        """Return the connection to a peer of a role that is handed over; it is the caller's from now on."""
        return self._ready.pop(peer)

    def refuse(self, peer: Peer, why: str) -> None:
        """Leave a peer that has sent what is not allowed, and report it once. There is no event on this side."""
        if (member := self._members.get(peer)) is not None:
            self._handshakes.refusals.add(member.connection.name, f"sent what is not allowed: {why}")
            self.leave(peer)

    def leave(self, peer: Peer, address: Address | None = None) -> None:
        """Leave a peer, and dial its address no longer. There is no event on this side."""
        if address is not None:
            self._handshakes.stop_dialling(address)
        if (member := self._members.get(peer)) is not None:
            leave([self._forget(member)], 0.1)

    def wake(self) -> None:
        """Let `poll` return at once. May be called by any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self, seconds: float = LINGER) -> None:
        """Leave every peer and close all sockets, after waiting at most so long until what was posted has arrived."""
        if self._epoll.closed:
            return
        leave([self._forget(member) for member in list(self._members.values())], seconds)
        for connection in self._ready.values():
            connection.close()
        self._handshakes.close()
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()
        os.close(self._wake)

    # --- one turn of the loop ---

    def _poll(self, end: int) -> bool:
        """Wait for what is due first, and serve every socket that is ready; whether `wake` was called."""
        now, woken = monotonic_ns(), False
        due = min(end, self._next_round)
        if self._handshakes.busy:
            due = min(due, self._handshakes.next_due() or end)
        seconds = 0.0 if self._unread or self._events else max(0.0, (due - now) / SECOND)
        ready = self._epoll.poll(seconds)
        now, before = monotonic_ns(), self._looked
        self._looked = now
        if now - before > self._policy.timing.silence * SECOND / 2:  # what came meanwhile is read below
            self._listening = now - int((1 - GRACE) * self._policy.timing.silence * SECOND)
        for member in [self._members[peer] for peer in self._unread]:
            self._serve(member)
        for descriptor, events in ready:
            if (owner := self._by_descriptor.get(descriptor)) is not None:
                self._handle(owner, events)
            elif descriptor == self._wake:
                os.eventfd_read(self._wake)
                woken = True
            elif self._listener is not None and descriptor == self._listener.fileno():
                self._accept(self._listener)
        return woken

    def _round(self) -> None:
        """What time brings: dials, heartbeats, and silent peers, who were listened to before."""
        now = monotonic_ns()
        if self._handshakes.busy:
            for candidate in self._handshakes.due(now):
                self._watch_candidate(candidate)
            self._events += [Unreached(address, why) for address, why in self._handshakes.given_up(now)]
        if now < self._next_round:
            return
        self._next_round = now + int(self._policy.timing.heartbeat * SECOND / 2)
        if not self._accepting and self._listener is not None:
            self._accept_again()
        for member in [each for each in self._members.values() if each.connection.partial]:
            self._serve(member)  # what has come of a body that is not complete shows that its sender lives
        for member in list(self._members.values()):
            silence = now - max(member.connection.heard, self._listening)
            most = int(self._policy.timing.silence * SECOND) + DELAYS * member.connection.delay
            if silence >= most:
                self._gone(member, silent(most / SECOND), is_silent=True)
                continue
            with contextlib.suppress(PeerLost):  # reading says why
                delay = self._pump.delay if self._pump is not None else 0
                member.connection.beat(now, int(self._policy.timing.heartbeat * SECOND), delay)

    def _handle(self, owner: _ConnectedPeer | Candidate, events: int) -> None:
        if isinstance(owner, Candidate):
            if owner.fileno() >= 0:  # it may have been closed since the kernel reported it
                self._advance(owner)
            return
        if events & select.EPOLLOUT:
            self._flush(owner)
        if events & ~select.EPOLLOUT:
            self._serve(owner)

    # --- candidates ---

    def _accept(self, listener: socket.socket) -> None:
        try:
            for candidate in self._handshakes.accept(listener):
                self._watch_candidate(candidate)
        except OSError as error:
            self._handshakes.refusals.add("anywhere", f"came when this process could accept none ({error.strerror})")
            self._epoll.unregister(listener)
            self._accepting = False

    def _accept_again(self) -> None:
        assert self._listener is not None
        self._epoll.register(self._listener, select.EPOLLIN)
        self._accepting = True

    def _watch_candidate(self, candidate: Candidate) -> None:
        # The descriptor may be that of one which was closed before; epoll has removed that one already.
        self._by_descriptor[candidate.fileno()] = candidate
        self._epoll.register(candidate, candidate.events)

    def _advance(self, candidate: Candidate) -> None:
        descriptor, events = candidate.fileno(), candidate.events
        handshake = self._handshakes.advance(candidate)
        if handshake is not None:
            self._epoll.unregister(descriptor)
            del self._by_descriptor[descriptor]
            self._arrive(candidate, *handshake)
        elif candidate.fileno() < 0:
            self._by_descriptor.pop(descriptor, None)
        elif candidate.events != events:
            self._epoll.modify(descriptor, candidate.events)

    def _arrive(self, candidate: Candidate, peer: Peer, connection: Connection) -> None:
        if peer.role in self._policy.handed_over:
            if (before := self._ready.pop(peer, None)) is not None:
                before.close()
            connection.admit(f"{self._policy.describe(peer)} at {candidate.host}", self._policy.limits, None)
            self._ready[peer] = connection
        else:
            earlier = self._before(peer)
            if earlier is not None and earlier.incarnation > peer.incarnation:
                self._handshakes.refusals.add(
                    candidate.host, f"is {self._policy.describe(peer)}, which was replaced by a later one"
                )
                connection.close()
                return
            if earlier is not None:
                self._gone(self._members[earlier], "has connected again")
            self._join(_ConnectedPeer(peer, connection), candidate.host)
        self._events.append(Arrived(peer, candidate.dialled))

    def _before(self, peer: Peer) -> Peer | None:
        """Return who is connected in the place of a peer that comes."""
        if peer.role in self._policy.rivals:
            return peer if peer in self._members else None
        return self._seats.get(peer[:2])

    def _join(self, member: _ConnectedPeer, host: str) -> None:
        peer, place = member.peer, self._place
        where = None if place is None else lambda kind, ints, size: place(peer, kind, ints, size)
        member.connection.admit(f"{self._policy.describe(peer)} at {host}", self._policy.limits, where)
        self._members[peer] = self._by_descriptor[member.connection.fileno()] = member
        self._seats[peer[:2]] = peer
        self._epoll.register(member.connection, select.EPOLLIN)
        if self._pump is not None:
            self._pump.watch(member.connection, at_once=False)
        self._unread.add(peer)  # what came with the end of the handshake
        if member.connection.wants_write:
            self._watch(member)

    # --- peers ---

    def _serve(self, member: _ConnectedPeer) -> None:
        """Read what a peer has sent, but no more than its share."""
        peer, connection = member
        self._unread.discard(peer)
        try:
            for frame in connection.drain():
                if frame.kind < FIRST_KIND:
                    self._control(member, frame)
                    return
                self._events.append(Received(peer, *frame))
        except PeerLost as error:
            self._gone(member, error.why)
        except ConnectionFailed as error:
            self._handshakes.refusals.add(connection.name, f"sent what is not allowed: {error}")
            self._gone(member, f"sent what is not allowed: {error}")
        else:
            if connection.unread:
                self._unread.add(peer)

    def _control(self, member: _ConnectedPeer, frame: Frame) -> None:
        if frame.kind != LEAVE:
            raise FrameError("kind", f"kind {frame.kind} is none for a peer that is connected")
        self._gone(member, "has left", left=True)

    def _flush(self, member: _ConnectedPeer) -> None:
        with contextlib.suppress(PeerLost):  # reading says why
            member.connection.flush()
        self._watch(member)

    def _watch(self, member: _ConnectedPeer) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if member.connection.wants_write else 0)
        self._epoll.modify(member.connection, events)

    def _gone(self, member: _ConnectedPeer, why: str, left: bool = False, is_silent: bool = False) -> None:
        self._forget(member).close()
        self._events.append(Gone(member.peer, why, left, is_silent))

    def _forget(self, member: _ConnectedPeer) -> Connection:
        """Return the connection of a former peer."""
        peer, connection = member
        if self._pump is not None:
            self._pump.forget(connection)
        self._unread.discard(peer)
        del self._members[peer], self._by_descriptor[connection.fileno()]
        if self._seats.get(peer[:2]) == peer:
            del self._seats[peer[:2]]
        self._epoll.unregister(connection)
        return connection


# What happens to a hub: the events that `Hub.poll` returns.


class Arrived(NamedTuple):
    """A peer that has proved who it is. `dialled` is the address, if this process has dialled it."""

    peer: Peer
    dialled: Address | None = None


class Received(NamedTuple):
    """A frame. The body lies where `place` said, or in memory of its own, which is the receiver's to keep."""

    peer: Peer
    kind: int
    ints: tuple[int, ...]
    body: memoryview


class Gone(NamedTuple):
    """A peer that is connected no longer; `left` if it said so before, `silent` if it said nothing for too long."""

    peer: Peer
    why: str
    left: bool = False
    silent: bool = False


class Unreached(NamedTuple):
    """An address that was dialled in vain until its deadline."""

    address: Address
    why: str


Event: TypeAlias = Arrived | Received | Gone | Unreached
#: Called with peer, kind, integers and size of a body: where to receive it; None for memory of its own.
PeerPlace: TypeAlias = "Callable[[Peer, int, tuple[int, ...], int], memoryview | None]"
