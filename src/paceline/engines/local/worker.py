"""A worker of the local engine that has the whole model: it computes what the algorithm asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter_ns as now

from torch import Tensor

from paceline.core.agenda import Chunk
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.engines.local.arena import Arena
from paceline.engines.local.assignment import Assignment
from paceline.engines.local.coordinated import train_coordinated
from paceline.engines.local.plan_runner import Algorithm, GradientRequest, PlanRunner
from paceline.engines.local.process import die_with_parent
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.state_buffers import StateBuffer
from paceline.errors import JobError
from paceline.errors.failure import Place
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum
from paceline.parameters.layout import sha256
from paceline.runs.trace import Kind


class LocalWorker(PlanRunner):
    def __init__(
        self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self.given, self.snapshots = given, snapshots
        self.kept_alive: object = None
        job = given.job
        module = job.make_model()
        if sha256(module) != given.initial_sha256:
            raise JobError(
                "model= makes another model in this process than in the parent's; let all chance in it come from "
                "torch, random or NumPy's global generator, which are seeded, or give the module itself"
            )
        replica = given.placement.replica(given.number, job, module.train(), given.moving)
        optimizer = job.make_optimizer(module, replica.parameters)
        order = Order(given.samples, job.seed, job.shuffle, given.agenda.cuts)
        reader = Reader(source, order, job.loader_workers, die_with_parent)
        learner = Learner(replica, reader)
        life = replace(given.life, state_buffer=state_buffer, wake=wake)
        super().__init__(
            given.number, arena, given.plan, given.agenda, learner, optimizer, given.deadline, life,
            given.placement.library,
        )  # fmt: skip
        self.reader = reader
        self.due = GradientRequest(-1, [], -1)

    def place(self, update: int) -> Place:
        """Where it is, as far as it is known: what it computes, or only the update."""
        if self.due.update < 0 or self.due.update // self.agenda.shares != update:
            return Place(update)
        samples = [n for chunk in self.due.chunks for n in self.reader.order.indices(chunk).tolist()]
        return Place(update, self.due.version, samples)

    def train(self) -> None:
        if self.given.placement.library:
            from paceline.engines.local.process_group import join

            assert self.given.scratch is not None
            place, deadline = self.given.scratch / "group", self.given.deadline
            join(self.given.placement.library, place, self.number, self.plan.workers, deadline)
        if self.plan.native:
            from paceline.engines.local.ddp import (
                train_by_ddp,
            )  # half a second of imports that others need not pay

            train_by_ddp(self)
        elif self.plan.coordinator is not None:
            train_coordinated(self, self.plan.coordinator)
        else:
            self._follow(self.algorithm())

    def _follow(self, algorithm: Algorithm) -> None:
        if self.plan.gate is None:
            self.reader.announce(self._foreseen())
        due = next(algorithm, None)
        while due is not None:
            computed = self.compute(*due)
            try:
                due = algorithm.send(computed)
            except StopIteration:
                break

    def _foreseen(self) -> Iterator[Chunk]:
        """The chunks this worker will compute, where no gate decides as they come."""
        if self.plan.meeting is None:
            return (c for u in self.ahead for c in self.agenda.filled(u))
        return (c for u in self.ahead for c in self.agenda.mine(u, self.number))

    def compute(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> GradientSum:
        self.arena.doing[self.number] = update // self.agenda.shares
        self.due = GradientRequest(update, chunks, version)
        start = now()
        computed = self.sender.sent(self.learner.compute(chunks))
        samples = 0 if again else computed.samples  # of another evaluation of the same chunks
        self.record(Kind.COMPUTE, update, -1, version, -1, start, now(), self.waited, samples, 0, computed.mean)
        self.waited = 0
        return computed

    def snapshot(self, updates: int, values: Callable[[], list[Tensor]]) -> None:
        if self.snapshots is None or not self.agenda.reaches(updates, self.snapshots.every):
            return
        start = now()
        self.snapshots.write(updates, values())
        self.record(Kind.SNAPSHOT, updates, -1, -1, -1, start, now(), 0, 0, 0, 0.0)
