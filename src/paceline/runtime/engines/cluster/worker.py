"""A worker of a cluster: a replica whose walk is that of the local engine, in a group over TCP."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from multiprocessing.connection import Connection
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.cluster.group import GroupMember
from paceline.errors.failure import Position
from paceline.plans.plan import program_of
from paceline.runtime.engines.cluster.group_client import GroupClient, RankConfig
from paceline.runtime.engines.cluster.surviving import SurvivingGroup
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.messages import Assignment, StateLeft, worker_process
from paceline.runtime.engines.workers.methods.runner import ReadAhead
from paceline.runtime.engines.workers.performer import perform
from paceline.runtime.engines.workers.process import trim_heap
from paceline.runtime.engines.workers.state_buffers import SnapshotFile, StateBuffer
from paceline.runtime.engines.workers.worker import ProcessHost, ReplicaWorker
from paceline.runtime.engines.workers.worker_context import Station, WorkerContext
from paceline.runtime.links.memory import SharedTensors
from paceline.runtime.links.waiting import Waiter
from paceline.training.data.source import Source
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.worker_state import WorkerState


class ClusterWorker:
    """A worker process that keeps step with those of other nodes."""

    def __init__(
        self,
        assignment: Assignment,
        config: RankConfig,
        arena: Arena,
        source: Source,
        snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None,
        pipe: Connection,
    ) -> None:
        host, shared, layout = ProcessHost(arena, snapshots), arena.of_worker(0), arena.shape.layout
        self._doing, self._arena = shared.doing, arena
        waiter = Waiter(assignment.number, arena.doorbells[0], host.cancelled, assignment.deadline, self._where)
        method = program_of(assignment.plan)  # servers' workers are `engines.cluster.servers.client`'s
        sums, start = method.averaging is None, assignment.resume_point.updates
        progress = start - 1
        if method.streaming is not None:
            progress = method.streaming.before(start, assignment.agenda.updates) - 1
        member = GroupMember(progress, repeats=sums, begun=start, new=config.late)
        self.client = GroupClient(config, member, pipe, self._where)
        self.group = SurvivingGroup(self.client, assignment.agenda, layout, assignment.plan)
        self.client.vectors = self.group.vectors
        resume = replace(
            assignment.resume_point, state_buffer=state_buffer, notify=lambda: self.client.send(StateLeft())
        )
        station = Station(assignment.number, shared, waiter, host, resume)
        self.replica = ReplicaWorker(assignment, source, layout, station, self.group, repeats=sums)
        if sums:
            self.group.again, self.client.give = self._again, self._state
        self.context: WorkerContext = self.replica.runner
        self._method = method
        #: The moving buffers as they were before the gradient of this update.
        self._buffers: list[Tensor] = []

    def _where(self) -> str:
        return f"in update {self._doing[0]}"

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with its version and samples if they are known."""
        return self.replica.position(update)

    def train(self) -> None:
        """Follow the walk of the plan's method, from where the others are if this rank has come late."""
        runner, client = self.replica.runner, self.client
        ahead = None if client.config.late else ReadAhead(self.replica.reader, runner)
        client.ready()
        if client.rejoin() is None:
            return
        if client.begins_with is not None:
            runner.begin_from(*client.begins_with)
            client.begins_with = None
        reading = ahead or ReadAhead(self.replica.reader, runner)
        walk = perform(runner, self._method, self._arena)  # which exchanges over the group's link
        self.replica.follow(walk, lambda update: self._computing(update, reading))

    def stay(self) -> None:
        """Keep the last sum for ranks that lack it, and the state for newcomers, until the run is done."""
        self._buffers = []
        while self.client.rejoin(math.inf) is not None:
            pass

    def _computing(self, update: int, ahead: ReadAhead) -> None:
        ahead.computing(update)
        self._buffers = [buffer.clone() for buffer in self.replica.runner.replica.moving]

    def _state(self) -> WorkerState:
        """Return what this worker had before the update that it is in."""
        runner = self.replica.runner
        first = len(runner.replica.parameters)
        return runner.state() | WorkerState({f"values.{first + n}": each for n, each in enumerate(self._buffers)})

    def _again(self, update: int, computed: GradientSum) -> GradientSum:
        """Compute the gradient of an update again, if other chunks of it are this rank's now."""
        worker, chunks = self.replica, self.group.chunks(update)
        before: list[Chunk] = worker.runner.due.chunks
        if chunks == before:
            return computed
        worker.runner.learner.set_buffers(self._buffers)
        return worker.compute_more(update, chunks, update, sum(chunk.samples for chunk in before))


# --- A worker process of a cluster, from its start to its end ---------------------------------------------------------


def main(
    box: list[bytes],  # holds the pickled assignment; popped here, since multiprocessing keeps the arguments alive
    config: RankConfig,
    arena: Arena,
    tensors: SharedTensors | None,
    snapshots: SnapshotFile | None,
    state_buffer: StateBuffer | None,
    pipe: Connection,
) -> None:
    """Run one worker: prepare, train with the others, and stay until the run is done. Never returns."""
    with worker_process(pipe, len(box[0])) as report:
        report.position = lambda: Position(arena.doing[0])
        assignment: Assignment = pickle.loads(box.pop())
        torch.set_num_threads(assignment.plan.threads)
        worker = ClusterWorker(assignment, config, arena, assignment.open_data(tensors), snapshots, state_buffer, pipe)
        report.send, report.position = worker.client.send, lambda: worker.position(arena.doing[0])
        trim_heap()  # from here on the peak of memory is that of the training
        report.begin()
        worker.train()
        arena.ended[0] = now()
        report.finished(worker.context.peak)
        worker.stay()
