"""An agent: the process of a node that a launcher started. It starts the node's worker, passes on what the worker and
the head say to each other, and ends the worker.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns as now
from typing import Protocol

import numpy as np
from torch import Tensor

from paceline.algorithms.cluster.group import AbortFlag, Accuse, Regroup, Release
from paceline.algorithms.cluster.messages import NONE
from paceline.runtime.engines.cluster.children import Child, Children, ProcessName
from paceline.runtime.engines.cluster.control import (
    Began,
    Deliver,
    DeskMoved,
    Ended,
    Exited,
    Finished,
    Message,
    Regrouped,
    Reported,
    Resend,
    Resent,
    Result,
    Rows,
    Serve,
    ServerFailed,
    Snapshot,
    Spare,
    Wanted,
    state_message,
)
from paceline.runtime.engines.cluster.group_client import RankConfig
from paceline.runtime.engines.cluster.servers.helpers import HelperSupervisor
from paceline.runtime.engines.cluster.servers.node_servers import ATTEMPTS, LIFE, NodeServers, ServerLauncher, parted
from paceline.runtime.engines.cluster.servers.processes import ServerConfig, run_worker
from paceline.runtime.engines.cluster.servers.team import TeamMemory, TeamShape
from paceline.runtime.engines.cluster.worker import main
from paceline.runtime.engines.observer import Ending
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.workers import messages
from paceline.runtime.engines.workers.arena import Arena, ArenaShape
from paceline.runtime.engines.workers.messages import Assignment
from paceline.runtime.engines.workers.process import oom_kills, short_folder
from paceline.runtime.engines.workers.state_buffers import ResumePoint, SnapshotFile
from paceline.runtime.engines.workers.worker_context import REQUESTED, TAKEN
from paceline.runtime.links.memory import SharedTensors
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.link import raw
from paceline.runtime.runs.live import ProcessKind, ProcessRecord
from paceline.runtime.runs.trace import DTYPE, Columns, Kind
from paceline.training.data.source import TensorSource

NOTHING = memoryview(b"")


class ToHead(Protocol):
    """Sends a message to the head."""

    def __call__(self, message: Message, content: Sequence[Buffer] = ()) -> None: ...


class Supervisor(Protocol):
    """Keeps processes of one kind running."""

    def ended(self, child: Child) -> None:
        """Start another process in the place of this one, if it was one of its own."""


@dataclass
class Agent:
    """The agent of one node."""

    setup: Setup
    config: RankConfig
    children: Children
    to_head: ToHead
    snapshots: SnapshotFile | None
    #: Whether the head reads the snapshots from this node's own file.
    leads: bool
    #: The update from which the worker trains, with its state then, if the run keeps checkpoints.
    resume: ResumePoint

    def __post_init__(self) -> None:
        setup = self.setup
        #: What the worker shares with this process. Nothing that ranks exchange is in it.
        self.arena = Arena.create(ArenaShape(1, setup.layout, 1))
        source = setup.source
        self.tensors = SharedTensors(source.tensors) if isinstance(source, TensorSource) else None
        self.scratch = (
            tempfile.TemporaryDirectory(prefix="paceline-", dir=short_folder()) if setup.job.num_workers else None
        )
        self.oom_kills = oom_kills()  # before the run
        self.supervisors: list[Supervisor] = []
        #: None once the worker has ended.
        self.worker: Child | None = None
        #: How the worker has ended, if it has.
        self.ending = ""
        self._doing = -1
        self.arena.checkpoints[TAKEN] = self.resume.updates
        #: What starts processes that reach the servers; None under other plans.
        self._launcher: ServerLauncher | None = None
        self._node_servers: NodeServers | None = None
        #: What the worker shares with its helpers; None where it computes alone.
        self._team: TeamMemory | None = None
        #: Workers that were started, and whether one has made its last batch.
        self._workers, self._finished = 0, False
        #: How many nodes have had this rank before.
        self._life = 0
        #: What a head that takes over is sent again: all rows, the groups, and what was said last of the worker.
        self._rows, self._count = list[bytes](), 0
        self._groups: list[Regroup] = []
        self._last: Finished | Ended | messages.Failed | None = None

    def start(self) -> None:
        """Start the worker, unless the head first says where its servers are."""
        if self.setup.plan.method.server is None:
            box, buffer = [self.assignment()], self.resume.state_buffer
            self.worker = self.children.start(
                ProcessName(ProcessKind.WORKER, self.config.rank),
                main,
                (box, self.config, self.arena, self.tensors, self.snapshots, buffer),
            )

    def serve(self, message: Serve, content: memoryview) -> None:
        """Start this node's servers, and a worker that pushes to servers."""
        config, layout = self.config, self.setup.layout
        self._launcher = ServerLauncher(self.children, ServerConfig.of(config, message.desk), self.assignment)
        self._node_servers = servers = NodeServers(self._launcher, config.rank, config.parts, layout, message.life)
        self.supervisors.append(servers)
        servers.start(message.shards, message.spares, parted(message.starts, content))
        self._life = message.life
        if (shape := TeamShape.of(self.setup, len(os.sched_getaffinity(0)))) is not None:
            self._team = TeamMemory(shape)
            helpers = HelperSupervisor(self.children, self._team, self._number, self.assignment, self.tensors)
            self.supervisors.append(helpers)
            helpers.start()
        self._start_worker()

    def _start_worker(self) -> None:
        """Start a worker that pushes to servers. One that takes the place of a dead one has a number of its own, owes
        nothing, and joins a centre as it is.
        """
        assert self._launcher is not None
        if (self._workers or self._life) and self.resume.state_buffer is not None:
            self.resume.state_buffer.clear()
        number = self._number(self._workers)
        self._workers += 1
        shared = (self.arena, self.setup.layout, self.tensors, self.resume.state_buffer, self._team)
        self.worker = self._launcher.start(ProcessName(ProcessKind.WORKER, number), run_worker, number, *shared)

    def _number(self, started: int) -> int:
        """Return the number of the process of its kind that this node starts after so many: no other has it."""
        return (self._life * LIFE + started) * self.config.parts + self.config.rank

    def handle_message(self, message: Message, content: memoryview = NOTHING) -> None:
        """Take a message of the head, and the bytes that follow it."""
        if isinstance(message, Regrouped | AbortFlag | Release):
            if isinstance(message, Regrouped):
                self._groups.append(message.group)
            if self.worker is not None:
                self.worker.send(message)
        elif isinstance(message, Serve):
            self.serve(message, content)
        elif isinstance(message, Spare):
            if self._node_servers is not None:
                self._node_servers.start([NONE])
        elif isinstance(message, Wanted):
            self.arena.checkpoints[REQUESTED] = message.update
        elif isinstance(message, Deliver):
            self.to_head(Result(), [raw(self.arena.results[0])])
        elif isinstance(message, DeskMoved):
            self._move_desk(message.desk)
        elif isinstance(message, Resend):
            self.resend(message)

    def resend(self, request: Resend) -> None:
        """Say to the head that leads from now on what was said to the one before."""
        self.to_head(Rows(self._doing, request.rows), [b"".join(self._rows)[request.rows * DTYPE.itemsize :]])
        rows = np.frombuffer(b"".join(self._rows), DTYPE)
        self._send_snapshots(rows[~np.isin(rows["update"], request.snapshots)])
        self.children.news = list(self.children.running)
        self._report_starts()
        for group in self._groups:
            self.to_head(Regrouped(group, ()))
        if self._last is not None:
            self.to_head(self._last)
        self.to_head(Resent())

    def _move_desk(self, desk: Address) -> None:
        """Let every process of this node dial the desk there."""
        if self._launcher is not None:
            self._launcher.config = replace(self._launcher.config, desk=desk)
            for child in self.children.running:
                if child.name.kind in (ProcessKind.WORKER, ProcessKind.SERVER):
                    child.send(desk)

    def poll(self) -> None:
        """Pass on what the worker has said and written since the last call."""
        inbox = self.children.messages()
        self._pass_rows()
        for child, message in inbox:
            if isinstance(message, messages.Died):
                self._report_starts()
                self.to_head(Exited(child.name.kind, child.name.number, child.process.pid or 0, now()))
            if child is self.worker:
                self._pass(message)
            elif isinstance(message, messages.Died):
                for supervisor in self.supervisors:
                    supervisor.ended(child)
            elif isinstance(message, messages.Failed):
                self.to_head(ServerFailed(child.name.number, message.report))
        self._report_starts()

    def close(self) -> None:
        """End the worker and release what it shared."""
        self.children.end()
        self.arena.close()
        for shared in (self.tensors, self._team):
            if shared is not None:
                shared.memory.close()
        if self.scratch is not None:
            self.scratch.cleanup()
        if self.resume.state_buffer is not None:
            self.resume.state_buffer.close()

    def _pass(self, message: Reported | Accuse | messages.Message) -> None:
        if isinstance(message, Reported | Accuse):
            self.to_head(message)
        elif isinstance(message, messages.Finished):
            self._finished = True
            self._send(Finished(message.core_wait, message.peak_memory, self.arena.ended[0]))
        elif isinstance(message, messages.StateLeft):
            self._send_states()
        elif isinstance(message, messages.Failed):
            self._send(message)
        elif isinstance(message, messages.Died):
            assert self.worker is not None
            ending = Ending.of(self.worker.process, self.oom_kills)
            self.worker, self.ending = None, f"died ({ending.how}) in update {self.arena.doing[0]}"
            again = self._launcher is not None and not self._finished and self._workers < ATTEMPTS
            self._send(Ended(ending.how, ending.out_of_memory, self.arena.doing[0], again))
            if again:
                self._last = None
                self._start_worker()

    def _send(self, message: Finished | Ended | messages.Failed) -> None:
        """Say how the worker has ended."""
        if not (isinstance(message, Ended) and self._finished):
            self._last = message
        self.to_head(message)

    def _report_starts(self) -> None:
        for child in self.children.news:
            kind, number, shard = child.name
            self.to_head(Began(kind, number, shard, ProcessRecord.of(child.process.pid or 0), child.started))
        self.children.news.clear()

    def _send_states(self) -> None:
        """Send the states that the worker has left since the last call."""
        assert self.resume.state_buffer is not None
        for slot in sorted(self.resume.state_buffer.slots, key=lambda slot: slot.tag):
            if slot.tag > self.arena.checkpoints[TAKEN]:
                state, content = state_message(slot.tag, slot.read())
                self.to_head(state, [raw(content)])
                self.arena.checkpoints[TAKEN] = slot.tag  # the worker may overwrite it

    def _pass_rows(self) -> None:
        """Send new rows of the trace, and the snapshots that they tell of."""
        (rows,) = self.arena.drain()
        doing = self.arena.doing[0]
        if len(rows) or doing != self._doing:
            self._doing = doing
            self.to_head(Rows(doing, self._count), [content := rows.tobytes()])
            self._rows.append(content)
            self._count += len(rows)
        self._send_snapshots(rows)

    def _send_snapshots(self, rows: Columns) -> None:
        """Send the snapshots that rows tell of; the head reads those of its own node itself."""
        if self.snapshots is None:
            return
        for updates in rows["update"][rows["kind"] == Kind.SNAPSHOT].tolist():
            tensors = [] if self.leads else self.snapshots.read(updates)
            self.to_head(Snapshot(updates), [raw(tensor) for tensor in _whole(tensors)])

    def assignment(self) -> bytes:
        """Pickle what a process of this node has to know of the job."""
        setup, config, resume_point = self.setup, self.config, replace(self.resume, state_buffer=None)
        scratch = Path(self.scratch.name) if self.scratch else None
        return Assignment.of(setup, config.rank, setup.job, scratch, config.deadline, resume_point).pack()


def _whole(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous().flatten() for tensor in tensors]
