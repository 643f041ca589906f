"""The node of the head: it has an agent like every other node, and leads the run."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import RunFailed, UsageError
from paceline.runtime.engines.checkpoint_manager import CheckpointManager
from paceline.runtime.engines.checkpoints import resume_line
from paceline.runtime.engines.cluster import rendezvous
from paceline.runtime.engines.cluster.agent import Agent
from paceline.runtime.engines.cluster.checkpointing import state_for
from paceline.runtime.engines.cluster.children import Children
from paceline.runtime.engines.cluster.control import (
    Began,
    Clock,
    Exited,
    Message,
    Over,
    Refused,
    Register,
    Result,
    Welcome,
    pack,
    state_message,
    unpack,
)
from paceline.runtime.engines.cluster.group_head import GroupHead
from paceline.runtime.engines.cluster.node import POLL, ManagedNodes, NodePart, joined, resume_point
from paceline.runtime.engines.cluster.process_log import ProcessLog
from paceline.runtime.engines.cluster.remote_workers import RemoteWorkers
from paceline.runtime.engines.cluster.rendezvous import Node, Registry
from paceline.runtime.engines.cluster.servers.server_head import ServerHead
from paceline.runtime.engines.life import Life
from paceline.runtime.engines.outcome import Outcome
from paceline.runtime.engines.signals import INTERRUPTED, termination
from paceline.runtime.engines.snapshots import list_snapshots, open_snapshots
from paceline.runtime.engines.workers.snapshot_file import SnapshotFile
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.events import Gone, Received
from paceline.runtime.links.tcp.handshake import RUN_BYTES, Peer
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.runs.events import EventLog
from paceline.runtime.runs.live import Phase
from paceline.runtime.runs.trace import Trace

FAREWELL = 30.0  # seconds that nodes may take to receive the result


class HeadNode:
    """The process of the head in one run."""

    def __init__(self, part: NodePart, life: Life, backups: int, managed: ManagedNodes | None) -> None:
        """`managed` are the nodes that the head has started; None if a launcher has started all."""
        self.part, self.life, self.request, self.managed = part, life, life.request, managed
        self.hub, self.heartbeat = part.hub, life.heartbeat
        #: The name of the run in handshakes.
        self.run = secrets.token_bytes(RUN_BYTES)
        #: Messages between the head and its own agent, which are handled one after another: (to the head, message).
        self._own: deque[tuple[bool, Message, memoryview]] = deque()
        #: The other nodes that were welcomed, by their ranks.
        self._peers: dict[int, Peer] = {}
        self.registry = self._gather()
        with contextlib.ExitStack() as undo:
            self._prepare(backups, undo)
            undo.pop_all()

    def _prepare(self, backups: int, undo: contextlib.ExitStack) -> None:
        """Make what leads the run; `undo` releases what was made, if something after it fails."""
        setup, request, nodes = self.part.setup, self.request, self.registry.nodes
        self.snapshots: SnapshotFile | None = None
        self.manager: CheckpointManager | None = None
        undo.callback(self.close)
        self.snapshots = open_snapshots(setup, request, setup.snapshots_every)
        self.manager = CheckpointManager(setup, request) if request else None
        self.agent = self._agent()
        undo.callback(self.agent.close)
        self.processes = ProcessLog(EventLog(self.life.place.path), nodes, os.getpid())
        self.heartbeat.processes = self.processes.processes.values()
        undo.callback(self.processes.events.close)
        self.workers = RemoteWorkers(self.life, nodes, self.manager)
        self.head = self._head(backups)
        self.workers.processes_started(os.getpid())
        if (follower := self.life.follower) is not None:
            read = self.snapshots.read if self.snapshots else None
            follower.connect(read, self.manager.signals.stop if self.manager else None)

    def _gather(self) -> Registry:
        """Wait for every node, and welcome them all."""
        part, managed = self.part, self.managed
        registry = Registry(part.hub, part.roster, part.terms, part.setup.module)
        rendezvous.gather(registry, part.deadline, managed.poll if managed else None)
        for rank, node in registry.nodes.items():
            self._welcome(rank, node)
        if managed is not None:
            managed.started()
        return registry

    def _agent(self) -> Agent:
        """Return this node's own agent; it starts nothing if the head has no worker."""
        part, request = self.part, self.request
        start, rank, agrees = request.start if request else None, part.roster.rank, part.setup.plan.traits.agrees
        state = state_for(start, rank, agrees) if start else None
        every, updates = request.interval.updates if request else 0, start.updates if start else 0
        return Agent(
            part.setup,
            part.rank_config(self.run, part.roster.head.host),
            Children(part.hub.wake),
            self._to_head,
            self.snapshots,
            leads=True,
            resume=resume_point(updates, every, self.manager is not None, state),
        )

    def _head(self, backups: int) -> GroupHead | ServerHead:
        """Return what leads the run under its plan."""
        workers, note = self.workers, self.processes.note
        if self.part.setup.plan.method.server is not None:
            replaces = self.managed is not None and self.managed.replaces
            served = ServerHead(workers, self._to_rank, self.snapshots, self.agent, backups, note, replaces)
            self.agent.supervisors.append(served.desk_supervisor)
            return served
        silence, delay = self.part.timing.silence, lambda: self.hub.delay
        head = GroupHead(workers, self._to_rank, silence, self.snapshots, note, delay)
        workers.dead |= set(range(workers.count)) - head.machine.alive
        return head

    def train(self) -> Outcome:
        """Train, and return what the run has come to."""
        workers, setup = self.workers, self.part.setup
        trace = Trace.of([])
        try:
            try:
                with self.manager.listening(workers.observer) if self.manager else contextlib.nullcontext():
                    if not self.part.roster.apart:
                        self.agent.start()
                    self._lead()
            finally:
                self.agent.close()
                self.processes.events.close()
                if workers.observer.writer is not None:
                    trace = workers.observer.close()
        except BaseException as error:
            self._broadcast(Over(*_exit_notice(error)))
            self._farewell()
            if type(error) is RunFailed and self.request is not None:  # no worker of the job's is to blame
                where = ["on Ray or on one machine"] if self.part.roster.apart else []
                raise RunFailed(f"{error}{resume_line(self.request.run, *where)}") from error
            raise
        values = self.head.values()
        self._broadcast(Result(), [joined(values)])
        self.heartbeat.beat(Phase.EVALUATING, setup.agenda.updates)
        self._farewell()
        waited = sum(end.core_wait for end in workers.finished.values()) / 1e9
        ends = [workers.finished.get(rank) for rank in range(setup.plan.workers)]
        memory = [end.peak_memory if end else 0 for end in ends]
        snapshots = list_snapshots(trace, self.snapshots)
        absent = self.head.absent
        return Outcome(trace, workers.seconds, values, snapshots, waited, memory, absent=absent, deaths=workers.deaths)

    def close(self) -> None:
        """Release the files of the run."""
        if self.manager is not None:
            self.manager.close()
        if self.snapshots is not None:
            self.snapshots.close()

    def _lead(self) -> None:
        """Pass messages until the result is there."""
        head, agent, observer = self.head, self.agent, self.workers.observer
        while not head.done:
            for event in self.hub.poll(POLL):
                if isinstance(event, Gone):
                    if self._peers.get(event.peer.number) != event.peer:
                        continue  # it was refused
                    self.processes.node_lost(event.peer.number, event.why)
                    head.lost(event.peer.number, f"is gone: its node {event.why}")
                    if self.managed is not None:
                        self.managed.lost(event.peer.number)
                elif isinstance(event, Received):
                    self._received(event)
            agent.poll()
            if self.managed is not None:
                self.managed.poll()
            while self._own:
                to_head, message, content = self._own.popleft()
                self._handle_message(self.part.roster.rank, message, content) if to_head else agent.handle_message(
                    message, content
                )
            head.poll()
            if self.manager:
                self.manager.signals.check()
            if not self.workers.training:
                observer.beat()
                if self.manager and self.manager.signals.ending:
                    raise self.manager.stopped(observer)
            elif self.manager:
                self.manager.follow(observer)
            else:
                observer.poll(stopping=False)

    def _received(self, event: Received) -> None:
        message, content = unpack(event.kind, event.ints, event.body)
        if isinstance(message, Register | Clock):
            self._late(event.peer, message)
        else:
            self._handle_message(event.peer.number, message, content)

    def _handle_message(self, rank: int, message: Message, content: memoryview) -> None:
        """Take a message of the agent of a rank."""
        if isinstance(message, Began | Exited):
            self.processes.add(rank, message, self.workers.observer)
        else:
            self.head.handle_message(rank, message, content)

    def _late(self, peer: Peer, message: Register | Clock) -> None:
        """Let a node take the place of one that was lost, if it says what that one said. Any launcher may start it."""
        if not isinstance(self.head, ServerHead):
            rendezvous.send(self.hub, peer, Refused("the run continues with the nodes that it began with", 1))
            return
        if isinstance(message, Register):
            first = self._peers.get(peer.number)
            if first != peer and first in self.hub.peers:
                rendezvous.send(self.hub, peer, Refused(rendezvous.second(peer.number), UsageError.exit_code))
                return
            self.registry.nodes.pop(peer.number, None)
        try:
            node = self.registry.handle_message(peer, message)
        except UsageError as error:
            rendezvous.send(self.hub, peer, Refused(str(error), error.exit_code))
            return
        if node is not None:
            self._welcome(peer.number, node)
            self.processes.node_joined(peer.number, node)
            self.head.joined(peer.number, node)
            if self.managed is not None:
                self.managed.joined(peer.number)

    def _welcome(self, rank: int, node: Node) -> None:
        """Let a node begin, with the state of its worker if the run is resumed."""
        self._peers[rank] = node.peer
        setup, request = self.part.setup, self.request
        welcome = Welcome(self.run.hex(), setup.snapshots_every)
        content: Sequence[Buffer] = ()
        if request is not None:
            welcome = replace(welcome, folder=str(request.run), checkpoint_every=request.interval.updates)
        if request is not None and (start := request.start) is not None:
            state, tensors = state_message(start.updates, state_for(start, rank, setup.plan.traits.agrees))
            welcome, content = replace(welcome, updates=start.updates, state=state), [raw(tensors)]
        rendezvous.send(self.hub, node.peer, welcome, content)

    def _to_head(self, message: Message, content: Sequence[Buffer] = ()) -> None:
        self._own.append((True, message, memoryview(b"".join(bytes(each) for each in content))))

    def _to_rank(self, rank: int, message: Message, content: Sequence[Buffer] = ()) -> None:
        if rank in self._peers:
            self.hub.post(self._peers[rank], *pack(message, content))
        elif rank == self.part.roster.rank:
            self._own.append((False, message, memoryview(b"".join(bytes(each) for each in content))))

    def _broadcast(self, message: Message, content: Sequence[Buffer] = ()) -> None:
        for peer in self.hub.peers:
            rendezvous.send(self.hub, peer, message, content)

    def _farewell(self) -> None:
        """Wait until every node has received what was sent to it, and has left."""
        end = time.monotonic() + FAREWELL
        while self.hub.peers and time.monotonic() < end:
            self.hub.poll(POLL)


def _exit_notice(error: BaseException) -> tuple[str, int]:
    """Return what the other nodes print when the run has failed or was stopped, and their exit code."""
    reason = "rank 0 was interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
    stopped = isinstance(error, KeyboardInterrupt)
    code = termination.exit_code or INTERRUPTED if stopped else getattr(error, "exit_code", 1)
    return f"the run has ended: {reason.splitlines()[0]}", code
