"""The node of the head: it has an agent like every other node, and leads the run."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from paceline.engines.checkpoints import CheckpointRequest
from paceline.engines.cluster import rendezvous
from paceline.engines.cluster.agent import Agent
from paceline.engines.cluster.checkpointing import FarCheckpoints, state_for
from paceline.engines.cluster.children import Children
from paceline.engines.cluster.control import Message, Over, Result, Started, Welcome, pack, state_message, unpack
from paceline.engines.cluster.head import Head, observer_of
from paceline.engines.cluster.node import POLL, NodePart, joined, resume_point
from paceline.engines.cluster.rendezvous import Node
from paceline.engines.cluster.servers.head import ServerHead
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.worker_pool import snapshot_file
from paceline.engines.outcome import Outcome, Snapshot
from paceline.errors import PacelineError
from paceline.links.tcp.connection import Buffer
from paceline.links.tcp.events import Gone, Received
from paceline.links.tcp.handshake import RUN_BYTES
from paceline.links.tcp.link import raw
from paceline.plans.methods.server import Server
from paceline.runs.live import Heartbeat, Phase
from paceline.runs.progress import ProgressCallback, Watcher
from paceline.runs.trace import Kind, Trace

FAREWELL = 30.0  # seconds that nodes may take to receive the result


class HeadNode:
    """The process of rank 0 in one run."""

    def __init__(
        self, part: NodePart, folder: Path | None, heartbeat: Heartbeat, progress: ProgressCallback | None,
        request: CheckpointRequest | None, backups: int,
    ) -> None:  # fmt: skip
        self.part, self.request = part, request
        self.hub, self.heartbeat = part.hub, heartbeat
        run = secrets.token_bytes(RUN_BYTES)
        #: Messages between the head and its own agent, which are handled one after another: (to the head, message).
        self._own: deque[tuple[bool, Message, memoryview]] = deque()
        self.nodes = rendezvous.gather(part.hub, part.roster, part.terms, part.deadline)
        for rank, node in self.nodes.items():
            self._welcome(rank, node, run)
        setup, start = part.setup, request.start if request else None
        servers = isinstance(setup.plan.method, Server)
        self.snapshots = snapshot_file(setup, request, setup.snapshots_every)
        self.checkpoints = FarCheckpoints(setup, request) if request and not servers else None
        self.agent = self._agent(run)
        self.head: Head | ServerHead
        if servers:
            self.head = ServerHead(setup, self.nodes, self._to_rank, part.deadline, self.snapshots, self.agent, backups)
        else:
            self.head = Head(
                setup, self.nodes, self._to_rank, part.deadline, part.timing.silence, self.snapshots, self.checkpoints
            )
        self.observer = observer_of(setup, self.head, self.nodes, os.getpid(), heartbeat, progress, start)
        self.head.observe(self.observer, folder / "trace.arrow" if folder else None)
        if isinstance(progress, Watcher):
            stop = self.checkpoints.signals.take if self.checkpoints else None
            progress.connect(
                self.snapshots.read if self.snapshots else None, partial(stop, signal.SIGTERM) if stop else None
            )

    def _agent(self, run: bytes) -> Agent:
        """Make the agent of this node, whose worker goes on from its state if the run is resumed."""
        part, request = self.part, self.request
        start = request.start if request else None
        state = state_for(start, 0, part.setup.plan.traits.agrees) if start else None
        every, updates = request.interval.updates if request else 0, start.updates if start else 0
        return Agent(
            part.setup,
            part.ticket(run, part.roster.head.host),
            Children(part.hub.wake),
            self._to_head,
            self.snapshots,
            leads=True,
            resume=resume_point(updates, every, self.checkpoints is not None, state),
        )

    def train(self) -> Outcome:
        """Train, and return what the run has come to."""
        head, setup = self.head, self.part.setup
        trace = Trace.of([])
        try:
            try:
                with self.checkpoints.signals.listening() if self.checkpoints else contextlib.nullcontext():
                    self.agent.start()
                    self._lead()
            finally:
                self.agent.close()
                if self.observer.writer is not None:
                    trace = self.observer.close()
        except BaseException as error:
            self._tell_all(Over(*_said(error)))
            self._farewell()
            raise
        values = head.values()
        self._tell_all(Result(), [joined(values)])
        self.heartbeat.beat(Phase.EVALUATING, setup.agenda.updates)
        self._farewell()
        waited = sum(end.core_wait for end in head.finished.values()) / 1e9
        ends = [head.finished.get(rank) for rank in range(setup.plan.workers)]
        memory = [end.peak_memory if end else 0 for end in ends]
        kept, deaths = _snapshots(self.snapshots, trace), head.deaths if isinstance(head, Head) else []
        return Outcome(trace, head.seconds, values, kept, waited, memory, deaths=deaths)

    def close(self) -> None:
        """Release the files of the run."""
        if self.checkpoints is not None:
            self.checkpoints.close()
        if self.snapshots is not None:
            self.snapshots.close()

    def _lead(self) -> None:
        """Pass messages until the result is there."""
        head, agent, observer = self.head, self.agent, self.observer
        while not head.done:
            for event in self.hub.poll(POLL):
                if isinstance(event, Gone):
                    head.lost(event.peer.number, f"is gone: its node {event.why}")
                elif isinstance(event, Received):
                    self._hear(event.peer.number, *unpack(event.kind, event.ints, event.body))
            agent.look()
            while self._own:
                to_head, message, content = self._own.popleft()
                self._hear(0, message, content) if to_head else agent.hear(message)
            head.look()
            if observer.writer is not None:
                observer.look(stopping=bool(self.checkpoints and self.checkpoints.signals.ending))
            else:
                observer.beat()

    def _hear(self, rank: int, message: Message, content: memoryview) -> None:
        if isinstance(message, Started):
            self.observer.process_started(rank, message.process)
        else:
            self.head.hear(rank, message, content)

    def _welcome(self, rank: int, node: Node, run: bytes) -> None:
        """Let a node begin, with the state of its worker if the run is resumed."""
        setup, request = self.part.setup, self.request
        welcome = Welcome(run.hex(), setup.snapshots_every)
        content: Sequence[Buffer] = ()
        if request is not None:
            welcome = Welcome(run.hex(), setup.snapshots_every, str(request.run), request.interval.updates)
        if request is not None and (start := request.start) is not None:
            state, tensors = state_message(start.updates, state_for(start, rank, setup.plan.traits.agrees))
            welcome, content = (
                Welcome(
                    run.hex(), setup.snapshots_every, str(request.run), request.interval.updates, start.updates, state
                ),
                [raw(tensors)],
            )
        rendezvous.send(self.hub, node.peer, welcome, content)

    def _to_head(self, message: Message, content: Sequence[Buffer] = ()) -> None:
        self._own.append((True, message, memoryview(b"".join(bytes(each) for each in content))))

    def _to_rank(self, rank: int, message: Message, content: Sequence[Buffer] = ()) -> None:
        if rank in self.nodes:
            self.hub.post(self.nodes[rank].peer, *pack(message, content))
        elif rank == 0:
            self._own.append((False, message, memoryview(b"")))

    def _tell_all(self, message: Message, content: Sequence[Buffer] = ()) -> None:
        for peer in self.hub.peers:
            rendezvous.send(self.hub, peer, message, content)

    def _farewell(self) -> None:
        """Wait until every node has received what was sent to it, and has left."""
        end = time.monotonic() + FAREWELL
        while self.hub.peers and time.monotonic() < end:
            self.hub.poll(POLL)


def _snapshots(file: SnapshotFile | None, trace: Trace) -> list[Snapshot]:
    if file is None:
        return []
    return [
        Snapshot(int(row["update"]), float(row["start"]) / 1e9, partial(file.read, int(row["update"])))
        for row in trace.of_kind(Kind.SNAPSHOT)
    ]


def _said(error: BaseException) -> tuple[str, int]:
    """Return what the other nodes print when the run has failed or was stopped, and their exit code."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    code = error.exit_code if isinstance(error, PacelineError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    return f"the run has ended: {first or 'rank 0 was interrupted'}", code
