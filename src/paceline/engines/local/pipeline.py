"""A worker process that holds stages of the model: it follows its program, piece of work after piece of work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import perf_counter_ns as now

from paceline.core.agenda import Chunk
from paceline.core.schedules import FORWARD, MEET, UPDATE, Table, Work, program_of
from paceline.core.schedules.clock import channel_of, sends, takes
from paceline.core.schedules.passes import Pass, passes
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.engines.local.arena import Arena
from paceline.engines.local.assignment import Assignment
from paceline.engines.local.process import die_with_parent
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.state_buffers import StateBuffer
from paceline.engines.local.state_writer import StateWriter
from paceline.engines.local.worker import WorkerProcess
from paceline.engines.local.worker_context import WorkerContext
from paceline.errors.failure import Place
from paceline.plans.methods.pipeline import Pipeline
from paceline.runs.trace import Kind
from paceline.stages.segment import Segment
from paceline.stages.stage import Sums


class PipelineWorker(WorkerContext):
    def __init__(
        self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        life = replace(given.life, state_buffer=state_buffer, wake=wake)
        host = WorkerProcess(arena, snapshots)
        super().__init__(given.number, arena, given.plan, given.agenda, given.deadline, life, host)
        self.context: WorkerContext = self
        assert isinstance(given.plan.method, Pipeline)
        self.method = given.plan.method
        assert given.blueprint is not None
        self.blueprint, self.snapshots = given.blueprint, snapshots
        job = given.job
        self.reader = Reader(
            source, Order(given.samples, job.seed, job.shuffle, given.agenda.cuts), job.loader_workers, die_with_parent
        )
        self.segment = Segment(given.number, job, job.model, given.blueprint, self.reader)  # type: ignore[arg-type]
        self.state_writer = StateWriter(self)
        if self.state_writer.found is not None:
            self.segment.restore(self.state_writer.found)
        self.meetings = 0
        self.waited = self.sent = 0  # nanoseconds and bytes since the last piece of work
        self.doing: Chunk | None = None

    def place(self, update: int) -> Place:
        """Where it is: the micro-batch that it works on."""
        if self.doing is None or self.doing.update != update:
            return Place(update)
        return Place(update, samples=self.reader.order.indices(self.doing).tolist())

    def train(self) -> None:
        schedule = self.method.schedule
        self.reader.announce(self._foreseen())
        programs: dict[tuple[int, ...], list[Work]] = {}  # of tables that come again and again
        for passing in passes(schedule.span, self.agenda, self.life.start):
            self.segment.begin(passing)
            if not schedule.span:  # the table is as long as the training
                self._follow(program_of(schedule, self.number, self.plan.workers, passing.counts), passing)
            else:
                if passing.counts not in programs:
                    programs[passing.counts] = self._table(passing).programs[self.number]
                self._follow(programs[passing.counts], passing)
            self.state_writer.in_step(passing.first, passing.stop, self.segment.worker_state)
        self._hand_in()

    def _table(self, passing: Pass) -> Table:
        table = self.method.table(self.plan.workers, passing.counts)
        return table.agreeing() if self.blueprint.agrees else table

    def _foreseen(self) -> Iterator[Chunk]:
        """The chunks that are read here, in this order."""
        schedule = self.method.schedule
        for passing in passes(schedule.span, self.agenda, self.life.start):
            for work in schedule.line(self.number, self.plan.workers, passing.counts):
                if work.what == FORWARD and self.segment.reads(self.segment.stages[work.stage]):
                    yield passing.chunk(work.micro)

    def _follow(self, program: Iterable[Work], passing: Pass) -> None:
        bases: dict[tuple[int, int], int] = {}  # (stage, update): version that its first forward read
        for work in program:
            self.doing = passing.chunk(work.micro)
            self.arena.doing[self.number] = self.doing.update
            if sends(work):
                self._send(work)
            elif takes(work):
                self._take(work)
            elif work.what == MEET:
                self._meet()
            else:
                self._work(work, passing, bases)

    def _send(self, work: Work) -> None:
        channel = channel_of(work)
        box, other = self.arena.mail[channel], self.blueprint.homes[channel[1]]
        if box.full:
            self.waited += self.waiter.until(lambda: not box.full, lambda: f"worker {other}")
        self.sent += box.put(self.segment.fetch(work))
        self.doorbells[other].ring()

    def _take(self, work: Work) -> None:
        channel = channel_of(work)
        box, other = self.arena.mail[channel], self.blueprint.homes[channel[0]]
        if box.empty:
            self.waited += self.waiter.until(lambda: not box.empty, lambda: f"worker {other}")
        self.segment.hand(work, box.take())
        self.doorbells[other].ring()

    def _meet(self) -> None:
        """Everybody adds up everybody's number, in the same order."""
        arena, turn = self.arena, self.meetings % 2
        self.meetings += 1
        arena.numbers[self.number][turn][0] = self.segment.squares()
        arena.offers[self.number][0] = self.meetings
        for doorbell in self.doorbells:
            doorbell.ring()
        for other, offer in enumerate(arena.offers):
            if offer[0] < self.meetings:
                self.waited += self._until_offered(other)
        self.segment.agree(sum(float(numbers[turn]) for numbers in arena.numbers))

    def _until_offered(self, other: int) -> int:
        offer = self.arena.offers[other]
        return self.waiter.until(lambda: offer[0] >= self.meetings, lambda: f"worker {other}")

    def _work(self, work: Work, passing: Pass, bases: dict[tuple[int, int], int]) -> None:
        assert self.doing is not None
        start, update = now(), self.doing.update
        if work.what == FORWARD:
            bases.setdefault((work.stage, update), passing.first + work.version)
        sums = self.segment.do(work)
        if work.what != UPDATE:
            row = (update, work.stage, work.micro, ord(work.what), start, now(), self.waited, 0, self.sent, math.nan)
            self.record(Kind.STAGE, *row)
            self.waited = self.sent = 0
            return
        assert sums is not None
        self._applied(work, update, bases.pop((work.stage, update)), passing.first + work.version, start, sums)

    def _applied(self, work: Work, update: int, base: int, version: int, start: int, sums: Sums) -> None:
        """A stage has made a version."""
        if work.stage == len(self.blueprint.homes) - 1:
            mean = sums.loss / sums.weight if sums.weight else math.nan
            self.record(Kind.COMPUTE, update, -1, base, -1, start, start, 0, sums.samples, 0, mean)
        self.record(Kind.APPLY, update, work.stage, base, version, start, now(), 0, 0, 0, 0.0)
        if self.snapshots is not None and self.agenda.reaches(update + 1, self.snapshots.every):
            before = now()
            self.snapshots.write_some(update + 1, dict(self.segment.named(work.stage)))
            if work.stage == 0:  # the others have written theirs, or will before the run is over
                self.record(Kind.SNAPSHOT, update + 1, -1, -1, -1, before, now(), 0, 0, 0, 0.0)

    def _hand_in(self) -> None:
        """Leave what this worker holds where all find it."""
        self.measure_memory()
        (shard,), (result,) = self.arena.shape.layout.shards, self.arena.results
        views = {p.name: v for p, v in zip(shard.parameters, shard.parameter_views(result), strict=True)}
        views |= {p.name: v for p, v in zip(shard.buffers, shard.buffer_views(result), strict=True)}
        for stage in self.segment.stages:
            for name, value in self.segment.named(stage):
                views[name].copy_(value)
