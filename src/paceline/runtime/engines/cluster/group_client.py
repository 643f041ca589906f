"""A worker's side of its group: it hears the head through its agent, and is connected to the other ranks.

    agent            listening thread                     main thread
    -----            ----------------                     -----------
    CallOff -------> wakes a wait at the link ----------> ends the collective
                     reports, if the main thread is
                     not in a collective ---------------> else the main thread does
    Regrouped -----> takes note ------------------------> connects to the ranks, then goes on

A worker that computes for long is cancelled without its noticing; it finds out when it wants to begin a collective.
The thread answers for it, so a rank that does not answer is one whose process is stopped or gone.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from time import monotonic
from time import perf_counter_ns as now

from torch import Tensor

from paceline.algorithms.cluster.group import AbortFlag, Accuse, GroupMember, Regroup, Release, Report
from paceline.algorithms.cluster.shares import Membership
from paceline.algorithms.collectives import Collective
from paceline.errors import PeerLost, RunFailed, WaitedTooLong
from paceline.runtime.engines.cluster.control import (
    RANK,
    Regrouped,
    Reported,
    State,
    pack,
    state_message,
    state_of,
    unpack,
)
from paceline.runtime.links import TURNS, Span
from paceline.runtime.links.tcp import waiting
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Connection
from paceline.runtime.links.tcp.credentials import Credentials, listen
from paceline.runtime.links.tcp.frame import FIRST_KIND
from paceline.runtime.links.tcp.handshake import Identity, Peer
from paceline.runtime.links.tcp.link import TcpLink, raw
from paceline.runtime.links.tcp.meeting import meet
from paceline.runtime.links.tcp.waiting import Pump
from paceline.runtime.links.waiting import Cancelled
from paceline.training.parameters.worker_state import WorkerState


@dataclass(frozen=True)
class RankConfig:
    """What a worker needs to meet the other ranks."""

    rank: int
    #: The workers of the plan.
    parts: int
    #: The name of the run, and the hash of its terms.
    run: bytes
    job: bytes
    #: Where this node can be reached by the others.
    host: str
    credentials: Credentials
    #: Seconds that a rank may wait for another one.
    deadline: float
    timing: waiting.Timing = field(default=waiting.TIMING)
    #: Of a canonical sum, whose chunks are divided among the ranks.
    canonical: Collective | None = None
    #: Whether the node has come while the training goes on.
    late: bool = False


@dataclass(frozen=True)
class Released:
    """The run is done: the worker may end. The agent says it."""


class GroupClient:
    """One worker's side of the group."""

    def __init__(self, config: RankConfig, member: GroupMember, pipe: Pipe, where: Callable[[], str]) -> None:
        self.config, self.member, self._pipe, self._where = config, member, pipe, where
        self.shares = Membership(config.parts, config.canonical)
        #: This rank's vectors, which outlast its links: the last sum lies in one of them.
        self.vectors: Sequence[Tensor] = ()
        #: The epoch that the link belongs to.
        self.epoch = 0
        #: The group of that epoch; None before the first.
        self.group: Regroup | None = None
        self.link: TcpLink | None = None
        self.released = False
        #: Nanoseconds that were waited for groups.
        self.waited = 0
        #: Returns what a newcomer needs to go on from the last sum that this rank has applied.
        self.give: Callable[[], WorkerState] = WorkerState
        #: What this rank has taken as a newcomer: the state before an update, and that update.
        self.begins_with: tuple[int, WorkerState] | None = None
        #: Held while the member's machine is used; notified when a message has arrived.
        self._changed = threading.Condition()
        #: Held while something is sent to the agent, which both threads do.
        self._sending = threading.Lock()
        self._abort = waiting.AbortFlag()
        self._addresses: tuple[Address, ...] = ()
        #: The epoch of the group that shared out updates last.
        self._shared = 0
        self._listener: socket.socket | None = None
        self._pump = Pump(config.timing.heartbeat)
        threading.Thread(target=self._listen, name="paceline-group", daemon=True).start()

    def ready(self) -> None:
        """Tell the head that this worker is ready for its first group."""
        with self._changed:
            self._send_message(self.member.ready())

    # --- what is this rank's ---

    def leads(self, update: int) -> bool:
        """Whether this rank is the first of those that share out an update."""
        with self._changed:
            return self.shares.ranks(update)[0] == self.config.rank

    def parts(self, update: int) -> list[int]:
        """Return the parts of an update that this rank computes."""
        with self._changed:
            return self.shares.parts_of(self.config.rank, update)

    def moved(self, since: int, collective: Collective) -> None:
        """Divide the updates from this one on by other shares."""
        with self._changed:
            self.shares.moved(since, collective)

    def begin(self, update: int) -> list[int]:
        """Return the parts of an update that this rank computes now: they do not change any longer.

        A rank that has told the head which update it can still share out differently waits for what comes of it.
        """
        with self._changed:
            end = monotonic() + self.config.deadline
            while self.member.reported and not self.released:
                if self.member.dismissed:
                    raise RunFailed(_dismissed(self.config.rank))
                if monotonic() >= end:
                    raise WaitedTooLong(self.config.rank, "the next group", self.config.deadline, self._where())
                self._changed.wait(0.5)
            self.member.begun = max(self.member.begun, update + 1)
            return self.shares.parts_of(self.config.rank, update)

    # --- exchanges ---

    def enter(self) -> bool:
        """Whether an exchange over the link may begin."""
        with self._changed:
            return self.link is not None and self.member.enter(self.epoch)

    def leave(self, number: int | None = None) -> None:
        """An exchange has ended; if it was a collective that was finished, its number is given."""
        with self._changed:
            self._send_message(self.member.leave(number))

    def fail(self, error: Cancelled | PeerLost) -> None:
        """An exchange was cancelled, or has failed because another rank cannot be reached."""
        with self._changed:
            if isinstance(error, PeerLost) and not error.left:  # one that has left was cancelled, or accuses itself
                self._send_message(self.member.accuse(_rank_of(error.peer), error.silent))
            self._send_message(self.member.leave())

    def rejoin(self, deadline: float | None = None) -> Regroup | None:
        """Wait for the next group, connect to its ranks and see that all hold the same sum; None if the run is done.

        `deadline` is how many seconds the next group may take.

        Raises:
            RunFailed: the group has gone on without this rank.
            WaitedTooLong: no group was formed before the deadline, or a rank of it did not come.
        """
        start = now()
        while (group := self._next_group(deadline or self.config.deadline)) is not None:
            try:
                self._connect(group)
                self._level(group)
            except (Cancelled, PeerLost) as error:
                self.fail(error)
                continue
            self.group = group
            self.waited += now() - start
            return group
        return None

    def _next_group(self, deadline: float) -> Regroup | None:
        """Wait until a group was formed that is not cancelled, and enter it."""
        if self.link is not None:
            self.link.close()
            self.link = None
        end, member = monotonic() + deadline, self.member
        with self._changed:
            while not self.released and not member.enter(max(member.epoch, self.epoch + 1)):
                if member.dismissed:
                    raise RunFailed(_dismissed(self.config.rank))
                if monotonic() >= end:
                    raise WaitedTooLong(self.config.rank, "the next group", deadline, self._where())
                self._changed.wait(0.5)
            if self.released:
                return None
            self._abort.close()
            self.epoch, self._abort = member.epoch, waiting.AbortFlag()
            return member.group

    def _connect(self, group: Regroup) -> None:
        """Connect to every rank of a group."""
        config, listener = self.config, self._listener
        index = group.ranks.index(config.rank)
        waiter = waiting.SocketWaiter(config.rank, config.deadline, self._where, self._abort, config.timing.silence)
        assert listener is not None, "a report opens it"
        self._listener = None  # `meet` closes it
        me = Identity(Peer(RANK, index, group.epoch), config.run, config.job)
        names = [f"worker {rank}" for rank in group.ranks]
        ends = meet(
            me,
            listener,
            self._addresses,
            config.credentials,
            waiter,
            self._pump,
            timing=config.timing,
            describe=lambda peer: names[peer.number],
        )
        for other, connection in ends.items():
            connection.name = names[other]
        self.link = TcpLink(index, ends, self.vectors, waiter, self._pump)
        if config.rank == group.giver and group.newcomers:
            state, content = state_message(group.number, self.give())
            for newcomer in group.newcomers:
                give_state(ends[group.ranks.index(newcomer)], state, content)
        if config.rank in group.newcomers:
            try:
                self.begins_with = take_state(ends[group.ranks.index(group.giver)], waiter)
            except PeerLost:
                self.link.abort()  # the others wait in vain for this rank
                raise

    def _level(self, group: Regroup) -> None:
        """Give the last sum to the ranks that lack it, or take it."""
        rank, link, before = self.config.rank, self.link, group.number - 1
        assert link is not None
        turn = before % TURNS
        span = Span(turn, 0, len(self.vectors[turn])) if self.vectors else Span(0, 0, 0)
        if rank == group.giver:
            for taker in group.takers:
                link.offer(group.ranks.index(taker), span)
        if rank in group.takers:
            self.vectors[turn].copy_(link.take(group.ranks.index(group.giver), span))
        self.leave(before if rank in group.takers else None)

    # --- the agent ---

    def _listen(self) -> None:
        """Take what the agent says, until it ends. Runs in a thread."""
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(1)  # the agent has ended: no one would hear of this worker's work
            with self._changed:
                self._take(message)
                self._changed.notify_all()

    def _take(self, message: Regrouped | AbortFlag | Release | Released) -> None:
        member = self.member
        if isinstance(message, Released):
            self.released = True
        elif isinstance(message, Regrouped):
            for group in (*message.earlier, message.group):
                if group.epoch > self._shared:
                    self._shared, self._addresses = group.epoch, message.addresses
                    self.shares.regrouped(group.since, group.ranks)
            member.handle(message.group)
        else:
            answer = member.handle(message)
            if member.aborted and self.epoch <= member.epoch:
                self._abort.set()
            self._send_message(answer)

    def _send_message(self, message: Report | Accuse | None) -> None:
        """Send a message to the head, if there is one; with a report, where this rank listens for its next group."""
        if isinstance(message, Report):
            if self._listener is None:
                self._listener = listen(Address(self.config.host, 0), self.config.credentials)
            address = Address(*self._listener.getsockname()[:2])
            self.send(Reported(message, address))
        elif message is not None:
            self.send(message)

    def send(self, message: object) -> None:
        """Send a message to the agent."""
        with self._sending:
            self._pipe.send(message)


# --- The state that a newcomer takes from one of the others, before the first span of their link ----------------------


def give_state(connection: Connection, state: State, content: Tensor) -> None:
    """Send a worker's state, without waiting for the other end."""
    limits = connection.limits
    connection.limit(limits._replace(body=sys.maxsize))
    connection.post(*pack(state, [raw(content)]), copy=False)
    connection.limit(limits)


def take_state(connection: Connection, waiter: waiting.SocketWaiter) -> tuple[int, WorkerState]:
    """Wait for a worker's state; return it with the update that it comes before.

    Raises:
        Cancelled: the group was cancelled, by the head or by the other end.
        PeerLost: the other end is lost.
    """
    limits, wait, poller = connection.limits, waiting.PeerWait(waiter, connection), select.poll()
    connection.limit(limits._replace(body=sys.maxsize))
    for each in (connection, waiter.aborted):
        poller.register(each, select.POLLIN)
    while (frame := connection.next()) is None:
        wait.poll(poller)
    connection.limit(limits)
    if frame.kind < FIRST_KIND:
        raise Cancelled
    message, content = unpack(frame.kind, frame.ints, frame.body)
    assert isinstance(message, State)
    return message.update, state_of(message, content)


def _rank_of(name: str) -> int:
    """Return the rank that a connection was named after."""
    return int(name.removeprefix("worker "))


def _dismissed(rank: int) -> str:
    return (
        f"the group has gone on without rank {rank}, whose process did not answer for too long: it was stopped, or its "
        "machine or network was. Its part of each batch is computed by the others"
    )
