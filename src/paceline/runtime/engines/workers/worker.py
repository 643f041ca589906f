"""A worker process of the local engine that holds the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns as now

from torch import Tensor

from paceline.errors.failure import Position
from paceline.runtime.engines.workers.arena import ABORT, Arena
from paceline.runtime.engines.workers.assignment import Assignment
from paceline.runtime.engines.workers.group import FixedGroup
from paceline.runtime.engines.workers.performer import walk_of
from paceline.runtime.engines.workers.read_ahead import ReadAhead
from paceline.runtime.engines.workers.replica_worker import ReplicaWorker
from paceline.runtime.engines.workers.snapshot_file import SnapshotFile
from paceline.runtime.engines.workers.state_buffers import StateBuffer
from paceline.runtime.engines.workers.worker_context import Station, WorkerContext
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Source


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
        stored_on, shares = placement.stored_on(number), plan.membership()
        group = FixedGroup(
            number, arena, assignment.agenda, waiter, shares, plan.measured, placement.library, stored_on
        )
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
