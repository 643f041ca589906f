"""The node of the head: it has an agent like every other node, and leads the run."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from paceline.algorithms.cluster.succession import Accepted, Later
from paceline.algorithms.cluster.vacancies import NO_VACANCY, Vacancy
from paceline.errors import RunFailed, UsageError
from paceline.runtime.engines.checkpoint_manager import CheckpointManager
from paceline.runtime.engines.checkpoints import resume_line
from paceline.runtime.engines.cluster import rendezvous
from paceline.runtime.engines.cluster.agent import Agent
from paceline.runtime.engines.cluster.children import Children
from paceline.runtime.engines.cluster.control import (
    Ballot,
    Began,
    Clock,
    Exited,
    Message,
    Over,
    Refused,
    Register,
    Resent,
    Result,
    Standing,
    Welcome,
    pack,
    state_message,
    unpack,
)
from paceline.runtime.engines.cluster.group_head import GroupHead, refuses_newcomers, state_for
from paceline.runtime.engines.cluster.leadership import Leadership, first_seat
from paceline.runtime.engines.cluster.node import POLL, ManagedNodes, NodePart, joined, resume_point
from paceline.runtime.engines.cluster.remote_workers import ProcessLog, RemoteWorkers
from paceline.runtime.engines.cluster.rendezvous import Dismissed, Node, Registry
from paceline.runtime.engines.cluster.second_home import Office, RunCopy, SecondHome, Succeeds
from paceline.runtime.engines.cluster.servers.server_head import ServerHead
from paceline.runtime.engines.cluster.successor import Successor, announce, continue_records, nodes_of
from paceline.runtime.engines.outcome import Life, Outcome, list_snapshots, open_snapshots
from paceline.runtime.engines.signals import INTERRUPTED, termination
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.handshake import RUN_BYTES, Peer
from paceline.runtime.links.tcp.hub import Arrived, Gone, Received, Unreached
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.runs.live import EventLog, Phase, ProcessKind
from paceline.runtime.runs.trace import Trace

FAREWELL = 30.0  # seconds that nodes may take to receive the result


class HeadNode:
    """The process of the head in one run."""

    def __init__(
        self,
        part: NodePart,
        life: Life,
        backups: int,
        managed: ManagedNodes | None,
        successor: Successor | None = None,
    ) -> None:
        """`managed` are the nodes that the head has started; None if a launcher has started all.

        `successor` is what this node has if it leads in the place of another one.
        """
        self.part, self.life, self.request, self.managed = part, life, life.request, managed
        self.hub, self.heartbeat = part.hub, life.heartbeat
        #: The name of the run in handshakes.
        self.run = bytes.fromhex(successor.welcome.run) if successor else secrets.token_bytes(RUN_BYTES)
        #: Messages between the head and its own agent, which are handled one after another: (to the head, message).
        self._own: deque[tuple[bool, Message, memoryview]] = deque()
        #: The other nodes that were welcomed, by their ranks.
        self._peers: dict[int, Peer] = successor.seat.peers if successor else {}
        #: Who leads; None under Ray, whose driver is not replaced.
        self.leadership: Leadership | None = None
        self._successor = successor
        if successor is None:
            self.registry = self._gather()
        else:
            self.registry = Registry(part.hub, part.roster, part.terms, part.setup.module, nodes_of(successor))
        with contextlib.ExitStack() as undo:
            self._prepare(backups, undo)
            undo.pop_all()

    def _prepare(self, backups: int, undo: contextlib.ExitStack) -> None:
        """Make what leads the run; `undo` releases what was made, if something after it fails."""
        setup, request, nodes, successor = self.part.setup, self.request, self.registry.nodes, self._successor
        self.snapshots: SnapshotFile | None = None
        self.manager: CheckpointManager | None = None
        undo.callback(self.close)
        self.snapshots = open_snapshots(setup, request, setup.snapshots_every)
        self.manager = CheckpointManager(setup, request) if request else None
        self.agent = successor.agent if successor else self._agent()
        undo.callback(self.agent.close)
        rank, copy = self.part.roster.rank, successor.copy if successor else RunCopy()
        self.processes = ProcessLog(EventLog(self.life.place.path), nodes, rank, os.getpid())
        self.heartbeat.processes = self.processes.processes.values()
        undo.callback(self.processes.events.close)
        self.workers = RemoteWorkers(self.life, nodes, self.manager, copy.numbered)
        if rank < self.workers.count:
            self.workers.agents[rank] = self.hub.me.peer.incarnation
        snapshots = copy.snapshots if successor else ()
        self.second_home = SecondHome(self._to_rank, self.workers, self.processes.events, self.snapshots, snapshots)
        self._take_lead(backups)
        self.workers.processes_started(os.getpid())
        if (follower := self.life.follower) is not None:
            read = self.snapshots.read if self.snapshots else None
            follower.connect(read, self.manager.signals.stop if self.manager else None)

    def _take_lead(self, backups: int) -> None:
        """Make what leads the run under its plan: from its beginning, or in the place of another head."""
        successor, part, succeeds = self._successor, self.part, None
        if successor is not None:
            continue_records(successor, self.workers, self.processes, self.snapshots)
            announce(successor, self.life.place.path)
            servers = partial(self.processes.numbers, ProcessKind.SERVER)
            succeeds = Succeeds(successor.seat.machine.roll.term, successor.seat.ranks, servers)
        seat = successor.seat if successor else None
        if seat is None and part.roster.moves:
            seat = first_seat(part, self._peers, self.registry.nodes, resumed=self.life.begin is not None)
        self.processes.events.copy = self.second_home.event
        self.workers.observer.copy = self.second_home.rows
        self.head = self._head(backups, succeeds)
        if seat is not None:
            self.leadership = Leadership(
                part, seat, self.workers, self.second_home, self.head, self._to_rank, successor is not None
            )
        if successor is not None and self.leadership is not None:
            self.agent.to_head = self._to_head
            self.agent.resend(self.leadership.resend(part.roster.rank))
            self.head.reached(part.roster.rank)
            if self.manager is not None and any(self.manager.request.interval):
                self.manager.signals.requested = True  # those before are at the head that is lost

    def _gather(self) -> Registry:
        """Wait for every node, and welcome them all."""
        part, managed = self.part, self.managed
        registry = Registry(part.hub, part.roster, part.terms, part.setup.module)
        rendezvous.gather(registry, part.deadline, managed.poll if managed else None)
        for rank, node in registry.nodes.items():
            self._welcome(rank, node)
            if managed is not None:
                managed.joined(rank)
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

    def _head(self, backups: int, succeeds: Succeeds | None) -> GroupHead | ServerHead:
        """Return what leads the run under its plan."""
        workers = self.workers
        office = Office(workers, self._to_rank, self.snapshots, self.processes.note, self.second_home, succeeds)
        if self.part.setup.plan.method.server is not None:
            replaces = self.managed is not None and self.managed.replaces
            served = ServerHead(office, self.agent, backups, replaces)
            self.agent.supervisors.append(served.desk_supervisor)
            return served
        head = GroupHead(office, self.part.timing.silence, lambda: self.hub.delay)
        workers.dead |= set(range(workers.count)) - head.machine.alive
        return head

    def train(self) -> Outcome:
        """Train, and return what the run has come to."""
        workers, setup = self.workers, self.part.setup
        trace = Trace.of([])
        try:
            try:
                with self.manager.listening(workers.observer) if self.manager else contextlib.nullcontext():
                    if not (self.part.roster.apart or self._successor):
                        self.agent.start()
                    self._lead()
            finally:
                self.agent.close()
                self.processes.events.close()
                if workers.observer.writer is not None:
                    trace = workers.observer.close()
        except Dismissed:
            raise  # the others have a head, or none of them hears this one
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
        if self._successor is not None:  # some may have been lost with the head before
            snapshots = [each for each in snapshots if each.updates in self.second_home.known]
        absent = frozenset(self.part.roster.followers) - workers.nodes.keys()
        return Outcome(trace, workers.seconds, values, snapshots, waited, memory, absent=absent, deaths=workers.deaths)

    def close(self) -> None:
        """Release the files of the run."""
        if self.manager is not None:
            self.manager.close()
        for file in (self.snapshots, self._successor.agent.snapshots if self._successor else None):
            if file is not None:
                file.close()

    def _lead(self) -> None:
        """Pass messages until the result is there."""
        head, agent, observer = self.head, self.agent, self.workers.observer
        leadership, events = self.leadership, self._successor.events if self._successor else []
        while not (head.done and (leadership is None or leadership.confirmed)):
            for event in events or self.hub.poll(POLL):
                if isinstance(event, Arrived | Unreached) and leadership is not None:
                    leadership.happened(event)
                elif isinstance(event, Gone):
                    if self._peers.get(event.peer.number) != event.peer:
                        continue  # it was refused
                    self.processes.node_lost(event.peer.number, event.why)
                    head.lost(event.peer.number, f"is gone: its node {event.why}")
                    if self.managed is not None:
                        self.managed.lost(event.peer.number)
                    if leadership is not None:
                        leadership.happened(event)
                elif isinstance(event, Received):
                    self._received(event)
            events = []
            agent.poll()
            if self.managed is not None:
                self.managed.poll()
            while self._own:
                to_head, message, content = self._own.popleft()
                self._handle_message(self.part.roster.rank, message, content) if to_head else agent.handle_message(
                    message, content
                )
            head.poll()
            if leadership is not None:
                leadership.poll()
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
            if leadership is not None:
                leadership.assign_deputy()

    def _received(self, event: Received) -> None:
        message, content = unpack(event.kind, event.ints, event.body)
        if isinstance(message, Register | Clock):
            self._late(event.peer, message)
        elif isinstance(message, Standing | Ballot | Accepted | Later):
            if self.leadership is not None:
                self.leadership.take(event.peer, message)
        else:
            self._handle_message(event.peer.number, message, content)

    def _handle_message(self, rank: int, message: Message, content: memoryview) -> None:
        """Take a message of the agent of a rank."""
        if isinstance(message, Began | Exited):
            self.processes.add(rank, message, self.workers.observer)
        elif isinstance(message, Resent):
            if self.leadership is not None:
                self.leadership.answered(rank)
        else:
            self.head.handle_message(rank, message, content)

    def _late(self, peer: Peer, message: Register | Clock) -> None:
        """Let a node take a rank that no other has, if it says what the others said. Any launcher may start it."""
        plan = self.part.setup.plan
        if why := refuses_newcomers(plan):
            what = f"the training has begun, and under plan {plan.name} no node can join it then: {why}"
            rendezvous.send(self.hub, peer, Refused(what, 1))
            return
        if isinstance(message, Register):
            first, vacancy = self._peers.get(peer.number), Vacancy(peer.number, message.offer)
            admitted = self.managed is None or self.managed.admits(vacancy)
            if first != peer and (first in self.hub.peers or not admitted):
                instead = self.managed.offer() if self.managed is not None else NO_VACANCY
                second = rendezvous.second(peer.number)
                rendezvous.send(self.hub, peer, Refused(second, UsageError.exit_code, *instead))
                return
            self.registry.nodes.pop(peer.number, None)
        try:
            node = self.registry.handle_message(peer, message)
        except UsageError as error:
            rendezvous.send(self.hub, peer, Refused(str(error), error.exit_code))
            return
        if node is not None:
            self.head.lost(peer.number, "has left with its node")  # if the end of the one before it is not known yet
            self._welcome(peer.number, node, self.workers.training)
            self.processes.node_joined(peer.number, node)
            self.workers.agents[peer.number] = peer.incarnation
            self.head.joined(peer.number, node)
            if self.leadership is not None:
                self.leadership.joined(node)
            if self.managed is not None:
                self.managed.joined(peer.number)

    def _welcome(self, rank: int, node: Node, late: bool = False) -> None:
        """Let a node begin, with the state of its worker if the run is resumed; `late` if the training has begun."""
        self._peers[rank] = node.peer
        setup, request = self.part.setup, self.request
        welcome = Welcome(self.run.hex(), setup.snapshots_every, late=late)
        content: Sequence[Buffer] = ()
        if request is not None:
            every = request.interval.updates
            welcome = replace(welcome, folder=str(request.run), checkpoint_every=every, lives=request.lives)
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
