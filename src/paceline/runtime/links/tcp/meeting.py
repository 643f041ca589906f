"""How processes that wait for each other get connections, and which ranks of a group are connected.

In a group the higher rank dials the lower one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from paceline.errors import WaitedTooLong
from paceline.runtime.links import Change
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.tcp.credentials import Credentials
from paceline.runtime.links.tcp.frame import LIMITS, Limits
from paceline.runtime.links.tcp.handshake import ROLES, Identity, Peer
from paceline.runtime.links.tcp.hub import Arrived, Event, Gone, Hub, Policy, Unreached
from paceline.runtime.links.tcp.waiting import TIMING, Pump, SocketWaiter, Timing
from paceline.runtime.links.waiting import Cancelled

if TYPE_CHECKING:
    from paceline.runtime.links import Membership

LOOK_SECONDS = 0.05  # between two looks whether it was cancelled


def _worker(peer: Peer) -> str:
    return f"worker {peer.number}"


def meet(
    me: Identity,
    listener: socket.socket,
    addresses: Sequence[Address],
    credentials: Credentials,
    waiter: SocketWaiter,
    pump: Pump,
    limits: Limits = LIMITS,
    timing: Timing = TIMING,
    describe: Callable[[Peer], str] = _worker,
) -> dict[int, Connection]:
    """Return a connection to every other rank.

    Args:
        me: who this rank is: its number is the rank, its role and incarnation are those of the group.
        listener: the socket that listens at this rank's address; closed at the end.
        addresses: where every rank listens.
        credentials: how peers are authenticated.
        waiter: how long to wait for the others.
        pump: sends heartbeats to those that are there, which may wait for this rank already.
        limits: what is accepted from them.
        timing: heartbeats and time limits.
        describe: what a rank is called in messages.

    Raises:
        WaitedTooLong: ranks are missing at the deadline; the message names them.
        Cancelled: it was cancelled meanwhile.
    """
    rank, end = me.peer.number, monotonic() + waiter.deadline
    hub = Hub(me, credentials, listener, policy=Policy(limits, timing, (me.peer.role,), describe=describe))
    connections: dict[int, Connection] = {}
    why: dict[Address, str] = {}
    try:
        for address in addresses[:rank]:
            hub.dial(address, waiter.deadline)
        while len(connections) < len(addresses) - 1:
            for event in hub.poll(LOOK_SECONDS):
                match event:
                    case Arrived(peer) if peer.incarnation == me.peer.incarnation and peer.number < len(addresses):
                        _keep(hub.take_over(peer), peer.number, connections, pump)
                    case Arrived(peer):
                        hub.take_over(peer).close()  # of a group that is no more
                    case Unreached(address, reason):
                        why[address] = reason
            missing = {
                describe(me.peer._replace(number=number)): address
                for number, address in enumerate(addresses)
                if number != rank and number not in connections
            }
            _check(waiter, end, missing, why)
    except BaseException:
        for connection in connections.values():
            _drop(connection, pump)
        raise
    finally:
        hub.close()
    return connections


def connect(
    me: Identity,
    address: Address,
    credentials: Credentials,
    waiter: SocketWaiter,
    limits: Limits = LIMITS,
    timing: Timing = TIMING,
) -> tuple[Peer, Connection]:
    """Return who listens at an address, and a connection to it. Arguments and errors are those of `meet`."""
    end, why = monotonic() + waiter.deadline, ""
    hub = Hub(me, credentials, policy=Policy(limits, timing, range(ROLES)))
    try:
        hub.dial(address, waiter.deadline)
        while True:
            for event in hub.poll(LOOK_SECONDS):
                match event:
                    case Arrived(peer):
                        return peer, hub.take_over(peer)
                    case Unreached(_, why):
                        end = 0.0
            if waiter.aborted.done:
                raise Cancelled
            if monotonic() >= end:
                awaited = f"the process at {address} ({why})" if why else f"the process at {address}"
                raise WaitedTooLong(waiter.worker, awaited, waiter.deadline, waiter.where())
    finally:
        hub.close()


def _keep(connection: Connection, rank: int, connections: dict[int, Connection], pump: Pump) -> None:
    if (before := connections.pop(rank, None)) is not None:  # it has connected again
        _drop(before, pump)
    connections[rank] = connection
    pump.watch(connection)


def _drop(connection: Connection, pump: Pump) -> None:
    pump.forget(connection)
    connection.close()


def _check(waiter: SocketWaiter, end: float, missing: dict[str, Address], why: dict[Address, str]) -> None:
    if waiter.aborted.done:
        raise Cancelled
    if missing and monotonic() >= end:
        names = [f"{name} at {at}{f' ({why[at]})' if at in why else ''}" for name, at in missing.items()]
        raise WaitedTooLong(waiter.worker, ", ".join(names), waiter.deadline, waiter.where())


# `Membership` over TCP: the ranks whose processes are connected to a hub.


class ConnectedPeers:
    """The peers of one role, by their number, as the events of a hub tell of them."""

    def __init__(self, rank: int, role: int) -> None:
        """
        Args:
            rank: this process's own, which is alive.
            role: of the peers that are ranks.
        """
        self._role, self._alive = role, {rank}
        self._changes: list[Change] = []

    def note(self, event: Event) -> None:
        """Learn from what `Hub.poll` has returned; every event of the hub has to be passed."""
        if not isinstance(event, Arrived | Gone) or event.peer.role != self._role:
            return
        rank, joined = event.peer.number, isinstance(event, Arrived)
        if joined != (rank in self._alive):
            (self._alive.add if joined else self._alive.discard)(rank)
            self._changes.append(Change(rank, joined))

    def alive(self) -> frozenset[int]:
        """The ranks that are connected, with this one."""
        return frozenset(self._alive)

    def changes(self) -> list[Change]:
        """The ranks that have joined or left since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def close(self) -> None:
        """Stop watching; the hub is its owner's to close."""


if TYPE_CHECKING:
    _: type[Membership] = ConnectedPeers
