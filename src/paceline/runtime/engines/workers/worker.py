"""A worker with a replica of the whole model, and the process of the local engine that is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter_ns as now

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.errors import JobError
from paceline.errors.failure import Position
from paceline.runtime.engines.workers.arena import ABORT, Arena
from paceline.runtime.engines.workers.group import FixedGroup, Group
from paceline.runtime.engines.workers.messages import Assignment
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner, ReadAhead, Walk
from paceline.runtime.engines.workers.performer import follow, walk_of
from paceline.runtime.engines.workers.state_buffers import SnapshotFile, StateBuffer
from paceline.runtime.engines.workers.worker_context import Station, WorkerContext
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Source
from paceline.training.gradients.learner import Learner, PartialSums, stated_weight
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import Layout, sha256, state_tensors


class ProcessHost:
    """`Host` of a worker in a process that the local engine started."""

    def __init__(self, arena: Arena, snapshots: SnapshotFile | None) -> None:
        self.arena, self.snapshots = arena, snapshots

    @property
    def snapshots_every(self) -> int:
        return self.snapshots.every if self.snapshots else 0

    def cancelled(self) -> bool:
        return bool(self.arena.control[ABORT])

    def ensure_trace_space(self, worker: WorkerContext) -> None:
        worker.waiter.until(lambda: not worker.trace.full, lambda: "the parent to read the trace")

    def snapshot(self, worker: WorkerContext, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """Write a snapshot if one is due after so many updates."""
        if self.snapshots is None or not worker.agenda.reaches(updates, self.snapshots.every):
            return
        start = now()
        self.snapshots.write(updates, values())
        worker.record(Kind.SNAPSHOT, updates, -1, -1, -1, start, now(), 0, 0, 0, 0.0)


def station_of(
    assignment: Assignment,
    arena: Arena,
    snapshots: SnapshotFile | None,
    state_buffer: StateBuffer | None,
    notify: Callable[[], None],
) -> Station:
    """Return what a worker of the local engine stands in."""
    host = ProcessHost(arena, snapshots)
    waiter = arena.waiter(assignment.number, host.cancelled, assignment.deadline, assignment.plan.threads)
    resume = replace(assignment.resume_point, state_buffer=state_buffer, notify=notify)
    return Station(assignment.number, arena.of_worker(assignment.number), waiter, host, resume)


class LocalWorker:
    """A worker process with a replica of the whole model."""

    def __init__(
        self, assignment: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None, station: Station
    ) -> None:
        self.given, self.arena = assignment, arena
        #: An object whose destructor must not run before the process ends.
        self.kept_alive: object = None
        number, placement, waiter, plan = assignment.number, assignment.placement, station.waiter, assignment.plan
        device = placement.stored_on(number) if placement.library else None
        group = FixedGroup(number, arena, assignment.agenda, waiter, plan.membership(), plan.measured, device)
        repeats = assignment.plan.traits.repeats
        self.replica = ReplicaWorker(assignment, source, arena.shape.layout, station, group, repeats)
        self.runner = self.replica.runner
        self.context: WorkerContext = self.runner
        #: The gradients that the method requests; None where it decides itself when to compute.
        self.walk = walk_of(self.runner, arena)

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with its version and samples if they are known."""
        return self.replica.position(update)

    def train(self) -> None:
        """Train by the method of the plan."""
        assignment, reader = self.given, self.replica.reader
        desk = self.arena.desk
        given_out = desk.desk.given_out(desk.integers.current) if desk else None  # not 0 if the run was resumed
        read_ahead = ReadAhead(reader, self.runner, given_out)
        if assignment.placement.library:
            from paceline.runtime.engines.workers.process_group import join

            assert assignment.scratch is not None
            join(
                assignment.placement.library,
                assignment.scratch / "group",
                assignment.number,
                assignment.plan.workers,
                assignment.deadline,
            )
        if self.walk is None:
            from paceline.runtime.engines.workers.methods.ddp import (
                train_by_ddp,  # imports torch.distributed: half a second
            )

            self.kept_alive = train_by_ddp(self.runner, reader, self.arena, assignment.deadline, assignment.some_unused)
        else:
            self.replica.follow(self.walk, read_ahead.computing)


# A worker with a replica of the whole model: it computes what the walk of its method requests.
#
# It runs in a process of the local engine (`worker`) and in one of a cluster (`engines.cluster.worker`). They differ in
# what it shares with others, which is handed in.

# Lets a module that was made in another process begin from the same parameters and buffers.


def begin_from(module: nn.Module, values: Sequence[Tensor]) -> str:
    """Copy parameters and buffers, as `state_tensors` orders them, into a module; return what is to be said of it.

    Raises:
        JobError: the module has other parameters or buffers.
    """
    mine = state_tensors(module)
    if [tensor.shape for tensor in mine.values()] != [value.shape for value in values]:
        raise JobError(
            "model= makes a model with other parameters in this process than in the parent's; make the same model "
            "wherever it is called, or give the module itself"
        )
    other = [name for (name, tensor), value in zip(mine.items(), values, strict=True) if not _close(tensor, value)]
    with torch.no_grad():
        for tensor, value in zip(mine.values(), values, strict=True):
            tensor.copy_(value)
    if not other:
        return (
            "model= rounds otherwise in each process: the workers begin from the parameters that it made in this one. "
            "A replay or a resumed run may begin from other bits; to keep them, give the module itself"
        )
    return (
        f"model= makes another {other[0]} in each process: the workers begin from the parameters that it made in this "
        "one, and neither a replay nor a resumed run can make these again. Let its random numbers come from torch, "
        "random or NumPy's global generator, which are seeded, or give the module itself"
    )


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ by rounding at most."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    bound = math.sqrt(torch.finfo(one.dtype).eps)
    largest = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=bound, atol=bound * largest, equal_nan=True)


def learner_of(assignment: Assignment, source: Source, repeats: bool = False) -> Learner:
    """Make the replica of a worker, with its data.

    Raises:
        JobError: the model is another one than the parent's, whose parameters this process does not have.
    """
    job = assignment.job
    module = job.make_model()
    if sha256(module) != assignment.initial_sha256:
        if assignment.initial is None:
            raise JobError(
                "model= makes another model in this process than in the parent's; let all its random numbers come "
                "from torch, random or NumPy's global generator, which are seeded, or give the module itself"
            )
        assignment.note = begin_from(module, assignment.initial.open())
    replica = assignment.placement.replica(assignment.number, job, module.train(), assignment.moving)
    return Learner(replica, assignment.reader(source, repeats), alone=assignment.plan.method.averaging is not None)


class ReplicaWorker:
    """A replica with its data, its optimizer and its runner."""

    def __init__(
        self, assignment: Assignment, source: Source, layout: Layout, station: Station, group: Group, repeats: bool
    ) -> None:
        learner = learner_of(assignment, source, repeats)
        if assignment.plan.canonical:
            chunks, number = assignment.plan.canonical, assignment.number
            learner.partial_sums = PartialSums(layout, chunks, number, group.paces)
        replica = learner.replica
        optimizer = assignment.job.make_optimizer(replica.module, replica.parameters)
        assert learner.reader is not None
        self.reader = learner.reader
        self.runner = PlanRunner(station, assignment.plan, assignment.agenda, learner, optimizer, layout, group)
        learner.observe = self.runner.measure
        #: Computes the sums over some chunks; a cluster's worker may have helpers.
        self.sums: Callable[[list[Chunk]], GradientSum] = learner.compute

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with its version and samples if they are known."""
        due = self.runner.due
        if due.update < 0 or due.update // self.runner.agenda.shares != update:
            return Position(update)
        samples = [n for chunk in due.chunks for n in self.reader.order.indices(chunk).tolist()]
        return Position(update, due.version, tuple(samples))

    def follow(self, walk: Walk, computing: Callable[[int], None]) -> None:
        """Compute the gradients that a walk requests, until it ends; `computing` is called with each update."""

        def compute(request: GradientRequest) -> GradientSum:
            computing(request.update)
            return self.compute(*request)

        follow(walk, compute)

    def compute(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> GradientSum:
        """Compute the gradient of these chunks; `again` where an update evaluates them once more."""
        return self.compute_more(update, chunks, version, sum(c.samples for c in chunks) if again else 0)

    def compute_more(self, update: int, chunks: list[Chunk], version: int, counted: int) -> GradientSum:
        """Compute a gradient of which so many samples are in the trace already."""
        runner = self.runner
        runner.doing(update // runner.agenda.shares)
        runner.due = GradientRequest(update, chunks, version)
        start = now()
        computed = self.sums(chunks)
        samples = max(0, computed.samples - counted)
        weight = stated_weight(runner.job, computed)
        row = (update, -1, version, -1, start, now(), runner.waited, samples, 0, computed.mean)
        runner.record(Kind.COMPUTE, *row, weight=weight)
        runner.waited = 0
        return computed
