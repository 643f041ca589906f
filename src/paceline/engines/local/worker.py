"""A worker of the local engine that has the whole model: it computes what the algorithm asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter_ns as now

from torch import Tensor

from paceline.compute.layout import sha256
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed
from paceline.core.agenda import Chunk
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.engines.local.arena import Arena
from paceline.engines.local.assignment import Assignment
from paceline.engines.local.lockers import Locker
from paceline.engines.local.process import die_with_parent
from paceline.engines.local.programme import train_by_programme
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.station import Algorithm, Due, Station
from paceline.errors import JobError
from paceline.failure import Place
from paceline.trace import Kind


class LocalWorker(Station):
    def __init__(
        self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None, locker: Locker | None,
        wake: Callable[[], None],
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
        life = replace(given.life, locker=locker, wake=wake)
        super().__init__(
            given.number, arena, given.plan, given.agenda, learner, optimizer, given.deadline, life,
            given.placement.library,
        )  # fmt: skip
        self.reader = reader
        self.due = Due(-1, [], -1)

    def place(self, update: int) -> Place:
        """Where it is, as far as it is known: what it computes, or only the update."""
        if self.due.update < 0 or self.due.update // self.agenda.shares != update:
            return Place(update)
        samples = [n for chunk in self.due.chunks for n in self.reader.order.indices(chunk).tolist()]
        return Place(update, self.due.version, samples)

    def train(self) -> None:
        if self.given.placement.library:
            from paceline.engines.local.group import join

            assert self.given.scratch is not None
            place, deadline = self.given.scratch / "group", self.given.deadline
            join(self.given.placement.library, place, self.number, self.plan.workers, deadline)
        if self.plan.native:
            from paceline.engines.local.ddp import (
                train_by_ddp,
            )  # half a second of imports that others need not pay

            train_by_ddp(self)
        elif self.plan.programme is not None:
            train_by_programme(self, self.plan.programme)
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

    def compute(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> Computed:
        self.arena.doing[self.number] = update // self.agenda.shares
        self.due = Due(update, chunks, version)
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
