"""A worker process that holds parts of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.algorithms.splits import PARTIAL, WHOLE
from paceline.algorithms.splits.derivation import ProgramStep
from paceline.errors.failure import Position
from paceline.plans.methods.split_layers import INSIDE, SplitLayers
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.group import MeshGroup
from paceline.runtime.engines.workers.messages import Assignment
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner, ReadAhead
from paceline.runtime.engines.workers.performer import follow, perform
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.engines.workers.worker_context import Station, WorkerContext
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Source
from paceline.training.gradients.learner import Learner, stated_weight
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import lay_out, trainable
from paceline.training.splits.exchanging import LinkMover, Request
from paceline.training.splits.gradients import SplitReplica
from paceline.training.splits.slicing import put


class SplitWorker(PlanRunner):
    """A worker process with its parts of the model's layers."""

    def __init__(
        self, assignment: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None, station: Station
    ) -> None:
        method = assignment.plan.method
        assert isinstance(method, SplitLayers)  # a typed view: no other plan has such a worker
        assert assignment.split is not None
        self.method, self.blueprint, job, number = method, assignment.split, assignment.job, assignment.number
        self.snapshots, self.arena = snapshots, arena
        waiter, mesh = station.waiter, method.mesh(assignment.plan.workers)
        self.place = mesh.coordinate(number, INSIDE)
        self.part = SplitReplica(job, job.model, self.blueprint, self.place)  # type: ignore[arg-type]
        self.link = arena.link(arena.parts, number, waiter)
        self.mover = LinkMover(self.link, mesh.group(number, INSIDE), self.place)
        self.part.move = self.mover.move
        workers = len(self.mover.group)
        #: A sum of nothing, after which all workers of the group have come so far.
        self.meeting = Request(ProgramStep((), "", PARTIAL, WHOLE), (workers,), torch.zeros(workers), (workers,))
        replica, self.reader = self.part.replica, assignment.reader(source)
        layout = lay_out(replica.module, 1, assignment.moving)
        group = MeshGroup(number, method, mesh, assignment.agenda, arena.link(arena.payloads, number, waiter), layout)
        learner, optimizer = Learner(replica, self.reader), job.make_optimizer(replica.module, replica.parameters)
        super().__init__(station, assignment.plan, assignment.agenda, learner, optimizer, arena.shape.layout, group)
        learner.observe = self.measure
        self.context: WorkerContext = self

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with its samples if they are known."""
        if self.due.update != update:
            return Position(update)
        samples = [n for chunk in self.due.chunks for n in self.reader.order.indices(chunk).tolist()]
        return Position(update, self.due.version, tuple(samples))

    def train(self) -> None:
        """Run the method's program, and compute the gradients that it requests."""
        ReadAhead(self.reader, self)
        follow(perform(self, self.method, self.arena), self._compute)

    def _compute(self, request: GradientRequest) -> GradientSum:
        """Compute this worker's parts of the gradient; the samples are counted where the first parts lie."""
        start, self.due = now(), request
        update, chunks, version, _ = request
        self.doing(update)
        waited, sent = self.link.waited, self.mover.sent
        for _ in range(sum(not chunk.samples for chunk in chunks)):
            self.part.drive(self.part.idle())  # others have samples in theirs
        computed = self.learner.compute([chunk for chunk in chunks if chunk.samples])
        mean, weight = computed.mean, stated_weight(self.job, computed)
        computed = self.part.drive(self.part.finish(computed))
        waited, sent = self.link.waited - waited, self.mover.sent - sent
        ends, samples = now(), computed.samples if self.method.stage or not self.place else 0
        row = (update, -1, version, -1, start, ends - waited, self.waited, samples, 0, mean)
        self.record(Kind.COMPUTE, *row, weight=weight)
        self.record(Kind.COLLECTIVE, update, -1, update, -1, ends - waited, ends, waited, 0, sent, 0.0)
        return computed

    def snapshot(self, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """Write this worker's parts of a snapshot, if one is due after so many updates."""
        if self.snapshots is None or not self.agenda.reaches(updates, self.snapshots.every):
            return
        start = now()
        with self.snapshots.views(updates) as views:
            self._put(views, values())
        self.mover.move(self.meeting)  # callbacks may read a snapshot as soon as there is a row of it
        if not self.place:
            self.record(Kind.SNAPSHOT, updates, -1, -1, -1, start, now(), 0, 0, 0, 0.0)

    def write_result(self, values: list[Tensor]) -> None:
        self.measure_memory()
        if self.group.leads:
            self._put(self.arena.result_views(), values)

    def _put(self, views: Mapping[str, Tensor], values: list[Tensor]) -> None:
        """Write this worker's parts into whole parameters and moving buffers."""
        names = [*trainable(self.replica.module), *self.blueprint.moving]
        for name, mine in zip(names, values, strict=True):
            put(views[name], mine, self.blueprint.stored.get(name), self.place)
