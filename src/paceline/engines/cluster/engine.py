"""A run on a cluster, as each of its nodes sees it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.cluster.group import Dismiss
from paceline.engines.checkpoints import CheckpointRequest
from paceline.engines.cluster import rendezvous
from paceline.engines.cluster.agent import Agent
from paceline.engines.cluster.children import Children
from paceline.engines.cluster.control import (
    Began,
    Clock,
    Exited,
    Message,
    Over,
    Refused,
    Register,
    Result,
    pack,
    unpack,
)
from paceline.engines.cluster.head import Head, observer_of
from paceline.engines.cluster.history import History
from paceline.engines.cluster.rendezvous import Registry
from paceline.engines.cluster.roster import Roster
from paceline.engines.cluster.seat import Ticket
from paceline.engines.cluster.servers.head import ServerHead
from paceline.engines.cluster.terms import Terms
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.worker_pool import snapshot_file
from paceline.engines.outcome import Outcome, Snapshot
from paceline.engines.setup import Setup
from paceline.errors import PacelineError, RunFailed, RunOver, UsageError
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.doors import Address, Door
from paceline.links.tcp.frame import LIMITS, Limits
from paceline.links.tcp.handshake import Peer
from paceline.links.tcp.hub import Gone, Hub, Received
from paceline.links.tcp.waiting import TIMING
from paceline.plans.methods.server import Server
from paceline.runs.events import EventLog
from paceline.runs.live import Heartbeat, Phase
from paceline.runs.progress import ProgressCallback
from paceline.runs.trace import Kind, Trace

POLL = 0.05  # seconds between two looks at the worker, at most
FAREWELL = 30.0  # seconds that nodes may take to receive the result


@contextlib.contextmanager
def train(
    setup: Setup,
    roster: Roster,
    run: Path | None,
    heartbeat: Heartbeat,
    progress: ProgressCallback | None,
    deadline: float,
    request: CheckpointRequest | None = None,
    backups: int = 1,
    nodes: Nodes | None = None,
) -> Iterator[Outcome]:
    """Run this node's part of the plan. Every node returns the trained model; the head has the whole trace.

    `nodes` are those of a living roster, which the head starts.
    """
    size = 2 * setup.layout.bytes
    limits = Limits(LIMITS.ints, max(LIMITS.body, size), max(LIMITS.queue, size))
    hub, pump = rendezvous.open_hub(roster, roster.door, TIMING, limits, deadline)
    node: _HeadNode | _OtherNode
    if roster.leads:
        node = _HeadNode(setup, roster, hub, deadline, backups, nodes)
    else:
        node = _OtherNode(setup, roster, hub, deadline)
    try:
        if nodes is not None:
            nodes.start(hub.address)
        yield node.train(run, heartbeat, progress, request)
    finally:
        hub.close()
        pump.close()
        if node.snapshots is not None:
            node.snapshots.close()


class Nodes(Protocol):
    """The nodes of a living roster, as the head sees them."""

    #: Whether a node that is lost is replaced.
    replaces: bool

    def start(self, head: Address) -> None:
        """Start the nodes, which dial the head there."""

    def look(self) -> None:
        """See whether all is well; called several times a second.

        Raises:
            RunFailed: a node cannot start, or what starts them cannot be reached any longer.
        """

    def started(self) -> None:
        """Take note that every node has come: from now on one that ends is replaced, or does not end the run."""


class _OtherNode:
    """A node that is not the head."""

    def __init__(self, setup: Setup, roster: Roster, hub: Hub, deadline: float) -> None:
        self.setup, self.roster, self.hub, self.deadline = setup, roster, hub, deadline
        self.snapshots: SnapshotFile | None = None

    def train(
        self, run: Path | None, heartbeat: Heartbeat, progress: ProgressCallback | None,
        request: CheckpointRequest | None,
    ) -> Outcome:  # fmt: skip
        setup, hub = self.setup, self.hub
        terms = Terms.of(setup, self.roster.nodes)
        welcome, head = rendezvous.register(hub, self.roster, terms, os.getpid(), self.deadline)
        name, self.snapshots = bytes.fromhex(welcome.run), snapshot_file(setup, None, welcome.snapshots_every)
        host = rendezvous.own_host(self.roster.head)
        ticket = _ticket(setup, self.roster, terms, name, host, self.roster.door, self.deadline)
        agent = Agent(
            setup, ticket, Children(hub.wake), partial(rendezvous.send, hub, head), self.snapshots, leads=False
        )
        start = time.perf_counter_ns()
        try:
            agent.start()
            while True:
                for event in hub.poll(POLL):
                    if isinstance(event, Gone):
                        raise RunFailed(_head_lost(self.roster, event.why))
                    if isinstance(event, Received):
                        message, content = unpack(event.kind, event.ints, event.body)
                        if isinstance(message, Result):
                            seconds = (time.perf_counter_ns() - start) / 1e9
                            return Outcome(Trace.of([]), seconds, _split(setup, content))
                        if isinstance(message, Over):
                            raise RunOver(message.why, message.exit_code)
                        agent.hear(message)
                        if isinstance(message, Dismiss):
                            raise RunFailed(_dismissed(self.roster, agent.ending))
                agent.look()
        finally:
            agent.close()


class _HeadNode:
    """The node of the head: it has an agent like every other one."""

    def __init__(
        self, setup: Setup, roster: Roster, hub: Hub, deadline: float, backups: int, nodes: Nodes | None
    ) -> None:
        self.setup, self.roster, self.hub, self.deadline, self.backups = setup, roster, hub, deadline, backups
        self.nodes = nodes
        self.snapshots: SnapshotFile | None = None
        #: Messages between the head and its own agent, which are handled one after another: (to the head, message).
        self._own: deque[tuple[bool, Message, memoryview]] = deque()
        self._peers: dict[int, Peer] = {}

    def train(
        self, run: Path | None, heartbeat: Heartbeat, progress: ProgressCallback | None,
        request: CheckpointRequest | None,
    ) -> Outcome:  # fmt: skip
        setup, hub = self.setup, self.hub
        terms = Terms.of(setup, self.roster.nodes)
        registry = Registry(hub, self.roster, terms, setup.snapshots_every)
        rendezvous.gather(registry, self.deadline, self.nodes.look if self.nodes else None)
        if self.nodes is not None:
            self.nodes.started()
        nodes = registry.nodes
        self.snapshots = snapshot_file(setup, request, setup.snapshots_every)
        self._peers = {rank: node.peer for rank, node in nodes.items()}
        host = self.roster.head.host
        ticket = _ticket(setup, self.roster, terms, registry.run, host, self.roster.door, self.deadline)
        agent = Agent(setup, ticket, Children(hub.wake), self._to_head, self.snapshots, leads=True)
        history = History(EventLog(run), heartbeat, nodes, os.getpid())
        head: Head | ServerHead
        if isinstance(setup.plan.method, Server):
            living = self.nodes is not None and self.nodes.replaces
            head = ServerHead(
                setup, nodes, self._to_rank, self.deadline, self.snapshots, agent, self.backups, history.note, living
            )
        else:
            head = Head(setup, nodes, self._to_rank, self.deadline, TIMING.silence, self.snapshots, history.note)
        observer = observer_of(setup, head, nodes, os.getpid(), heartbeat, progress)
        head.observe(observer, run / "trace.arrow" if run else None)
        try:
            try:
                if not self.roster.apart:
                    agent.start()
                self._follow(head, agent, registry, history)
            finally:
                agent.close()
                history.log.close()
                trace = observer.close() if observer.writer is not None else Trace.of([])
        except BaseException as error:
            self._tell_all(Over(*_said(error)))
            self._farewell()
            raise
        values = head.values()
        self._tell_all(Result(), [_joined(values)])
        heartbeat.beat(Phase.EVALUATING, setup.agenda.updates)
        self._farewell()
        ends = head.finished.values()
        return Outcome(
            trace, head.seconds, values, self._snapshots(trace), sum(end.core_wait for end in ends) / 1e9,
            [head.finished[r].peak_memory if r in head.finished else 0 for r in range(setup.plan.workers)],
        )  # fmt: skip

    def _follow(self, head: Head | ServerHead, agent: Agent, registry: Registry, history: History) -> None:
        """Pass messages until the result is there."""
        observer = head.observer
        assert observer is not None

        def hear(rank: int, message: Message, content: memoryview) -> None:
            if isinstance(message, Began | Exited):
                history.took(rank, message, observer)
            else:
                head.hear(rank, message, content)

        while not head.done:
            for event in self.hub.poll(POLL):
                if isinstance(event, Gone):
                    history.node_lost(event.peer.number, event.why)
                    head.lost(event.peer.number, f"is gone: its node {event.why}")
                elif isinstance(event, Received):
                    message, content = unpack(event.kind, event.ints, event.body)
                    if isinstance(message, Register | Clock):
                        self._late(head, registry, event.peer, message)
                    else:
                        hear(event.peer.number, message, content)
            agent.look()
            if self.nodes is not None:
                self.nodes.look()
            while self._own:
                to_head, message, content = self._own.popleft()
                hear(self.roster.rank, message, content) if to_head else agent.hear(message)
            head.look()
            if observer.writer is not None:
                observer.look(stopping=False)
            else:
                observer.beat()

    def _late(self, head: Head | ServerHead, registry: Registry, peer: Peer, message: Register | Clock) -> None:
        """Let a node take the place of one that was lost, if it says what that one said."""
        if not isinstance(head, ServerHead) or self.nodes is None:
            rendezvous.send(self.hub, peer, Refused("the run goes on with the nodes that it began with", 1))
            return
        if isinstance(message, Register):
            registry.nodes.pop(peer.number, None)
        try:
            node = registry.hear(peer, message)
        except UsageError as error:
            rendezvous.send(self.hub, peer, Refused(str(error), error.exit_code))
            return
        if node is not None:
            registry.welcome(node)
            self._peers[peer.number] = peer
            head.joined(peer.number, node)

    def _to_head(self, message: Message, content: Sequence[Buffer] = ()) -> None:
        self._own.append((True, message, memoryview(b"".join(bytes(each) for each in content))))

    def _to_rank(self, rank: int, message: Message, content: Sequence[Buffer] = ()) -> None:
        if rank in self._peers:
            self.hub.post(self._peers[rank], *pack(message, content))
        elif rank == self.roster.rank:
            self._own.append((False, message, memoryview(b"")))

    def _tell_all(self, message: Message, content: Sequence[Buffer] = ()) -> None:
        for peer in self.hub.peers:
            rendezvous.send(self.hub, peer, message, content)

    def _farewell(self) -> None:
        """Wait until every node has received what was sent to it, and has left."""
        end = time.monotonic() + FAREWELL
        while self.hub.peers and time.monotonic() < end:
            self.hub.poll(POLL)

    def _snapshots(self, trace: Trace) -> list[Snapshot]:
        if self.snapshots is None:
            return []
        rows = trace.of_kind(Kind.SNAPSHOT)
        return [
            Snapshot(int(r["update"]), float(r["start"]) / 1e9, partial(self.snapshots.read, int(r["update"])))
            for r in rows
        ]


def _ticket(setup: Setup, roster: Roster, terms: Terms, run: bytes, host: str, door: Door, deadline: float) -> Ticket:
    return Ticket(roster.rank, setup.plan.workers, run, terms.sha256, host, door, deadline, TIMING)


def _joined(values: Sequence[Tensor]) -> memoryview:
    """Return values one after another, as bytes."""
    whole: memoryview = torch.cat([value.detach().flatten() for value in values]).numpy().data
    return whole


def _split(setup: Setup, content: memoryview) -> list[Tensor]:
    """Return the values that `_joined` has put together."""
    module = setup.module
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    shapes = [tuple(tensors[name].shape) for name in setup.names]
    flat = torch.frombuffer(bytearray(content), dtype=setup.layout.dtype)
    parts = flat.split([prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _said(error: BaseException) -> tuple[str, int]:
    """Return what the other nodes print when the run has failed, and their exit code."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return f"the run has ended: {first}", error.exit_code if isinstance(error, PacelineError) else 1


def _head_lost(roster: Roster, why: str) -> str:
    return f"rank {roster.rank} has ended, since it lost the head: {roster.head_name} {why}"


def _dismissed(roster: Roster, ending: str) -> str:
    if ending:
        return f"the worker of rank {roster.rank} {ending}; the run goes on without this rank"
    return (
        f"the run has gone on without rank {roster.rank}, which did not answer for too long: its process, its machine "
        "or its network was stopped. The other ranks compute its part of each batch"
    )
