"""A worker process that holds stages of the model and runs its program, one piece of work after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import perf_counter_ns as now

from paceline.core.agenda import Chunk
from paceline.core.schedules import ALL_REDUCE, FORWARD, UPDATE, Table, Work, program_of
from paceline.core.schedules.clock import Channel, channel_of, sends, takes
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
from paceline.errors.failure import Position
from paceline.links import TURNS, MessageChannel, Span
from paceline.links.mailbox import Mailbox
from paceline.plans.methods.pipeline import Pipeline
from paceline.runs.trace import Kind
from paceline.stages.segment import Segment
from paceline.stages.stage import Sums


class PipelineWorker(WorkerContext):
    """A worker process with some stages of the model."""

    def __init__(
        self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None, notify: Callable[[], None],
    ) -> None:  # fmt: skip
        resume_point = replace(given.resume_point, state_buffer=state_buffer, notify=notify)
        host = WorkerProcess(arena, snapshots)
        waiter = arena.waiter(given.number, host.cancelled, given.deadline, given.plan.threads)
        shared = arena.of_worker(given.number)
        super().__init__(given.number, shared, waiter, given.plan, given.agenda, resume_point, host)
        self.arena = arena
        self.context: WorkerContext = self
        assert isinstance(given.plan.method, Pipeline)
        self.method = given.plan.method
        assert given.blueprint is not None
        self.blueprint, self.snapshots = given.blueprint, snapshots
        job = given.job
        self.reader = Reader(
            source, Order(given.samples, job.seed, job.shuffle, given.agenda.cuts), job.num_workers, die_with_parent
        )
        self.segment = Segment(given.number, job, job.model, given.blueprint, self.reader)  # type: ignore[arg-type]
        self.state_writer = StateWriter(self)
        if self.state_writer.found is not None:
            self.segment.restore(self.state_writer.found)
        self.mailboxes = {channel: self._mailbox(channel) for channel in arena.mail}
        self.numbers, self.agreements = arena.link(arena.numbers, given.number, waiter), 0
        self.waited = self.sent = 0  # nanoseconds and bytes since the last piece of work
        self.chunk: Chunk | None = None

    def _mailbox(self, channel: Channel) -> MessageChannel:
        """Return this worker's end of a channel."""
        ends = [self.blueprint.stage_to_worker[stage] for stage in channel]
        peer = ends[0] if ends[1] == self.number else ends[1]
        return Mailbox(self.arena.mail[channel], peer, self.arena.doorbells[peer], self.waiter)

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with the samples of its micro-batch if they are known."""
        if self.chunk is None or self.chunk.update != update:
            return Position(update)
        return Position(update, samples=self.reader.order.indices(self.chunk).tolist())

    def train(self) -> None:
        """Run the worker's program, table after table."""
        schedule = self.method.schedule
        self.reader.announce(self._chunks_to_read())
        programs: dict[tuple[int, ...], list[Work]] = {}  # by their numbers of micro-batches
        for passing in passes(schedule.span, self.agenda, self.resume_point.updates):
            self.segment.begin(passing)
            if not schedule.span:  # the table is as long as the training
                self._follow(program_of(schedule, self.number, self.plan.workers, passing.counts), passing)
            else:
                if passing.counts not in programs:
                    programs[passing.counts] = self._table(passing).programs[self.number]
                self._follow(programs[passing.counts], passing)
            self.state_writer.in_step(passing.first, passing.stop, self.segment.worker_state)
        self._write_result()

    def _table(self, passing: Pass) -> Table:
        table = self.method.table(self.plan.workers, passing.counts)
        return table.agreeing() if self.blueprint.agrees else table

    def _chunks_to_read(self) -> Iterator[Chunk]:
        """Yield the chunks that this worker reads, in this order."""
        schedule = self.method.schedule
        for passing in passes(schedule.span, self.agenda, self.resume_point.updates):
            for work in schedule.line(self.number, self.plan.workers, passing.counts):
                if work.what == FORWARD and self.segment.reads(self.segment.stages[work.stage]):
                    yield passing.chunk(work.micro)

    def _follow(self, program: Iterable[Work], passing: Pass) -> None:
        """Run the program of one table."""
        bases: dict[tuple[int, int], int] = {}  # (stage, update): version that its first forward read
        for work in program:
            self.chunk = passing.chunk(work.micro)
            self.doing(self.chunk.update)
            if sends(work):
                self._send(work)
            elif takes(work):
                self._take(work)
            elif work.what == ALL_REDUCE:
                self._agree()
            else:
                self._work(work, passing, bases)

    def _send(self, work: Work) -> None:
        mailbox = self.mailboxes[channel_of(work)]
        message, before = self.segment.fetch(work), mailbox.waited
        self.sent += mailbox.put(message)
        self.waited += mailbox.waited - before

    def _take(self, work: Work) -> None:
        mailbox = self.mailboxes[channel_of(work)]
        before = mailbox.waited
        self.segment.hand(work, mailbox.take())
        self.waited += mailbox.waited - before

    def _agree(self) -> None:
        """Agree on the norm of the whole gradient: each worker sums all workers' parts in the same order."""
        link, whole = self.numbers, Span(self.agreements % TURNS, 0, 1)
        self.agreements += 1
        link.vectors[whole.turn][0] = self.segment.squares()
        others = [worker for worker in range(self.plan.workers) if worker != self.number]
        for other in others:
            link.offer(other, whole)
        before = link.waited
        found = {self.number: link.vectors[whole.turn]} | {other: link.take(other, whole) for other in others}
        self.waited += link.waited - before
        self.segment.agree(sum(float(found[worker]) for worker in sorted(found)))

    def _work(self, work: Work, passing: Pass, bases: dict[tuple[int, int], int]) -> None:
        """Run a piece of work and write its row."""
        assert self.chunk is not None
        start, update = now(), self.chunk.update
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
        """Write the rows of an update of a stage, and its part of a snapshot if one is due."""
        if work.stage == len(self.blueprint.stage_to_worker) - 1:
            mean = sums.loss / sums.weight if sums.weight else math.nan
            self.record(Kind.COMPUTE, update, -1, base, -1, start, start, 0, sums.samples, 0, mean)
        self.record(Kind.APPLY, update, work.stage, base, version, start, now(), 0, 0, self.sent, 0.0)
        self.sent = 0
        if self.snapshots is not None and self.agenda.reaches(update + 1, self.snapshots.every):
            before = now()
            self.snapshots.write_some(update + 1, dict(self.segment.named(work.stage)))
            if work.stage == 0:  # the others have written theirs, or will before the run is over
                self.record(Kind.SNAPSHOT, update + 1, -1, -1, -1, before, now(), 0, 0, 0, 0.0)

    def _write_result(self) -> None:
        """Write what this worker holds into the shared result."""
        self.measure_memory()
        (shard,), (result,) = self.arena.shape.layout.shards, self.arena.results
        views = {p.name: v for p, v in zip(shard.parameters, shard.parameter_views(result), strict=True)}
        views |= {p.name: v for p, v in zip(shard.buffers, shard.buffer_views(result), strict=True)}
        for stage in self.segment.stages:
            for name, value in self.segment.named(stage):
                views[name].copy_(value)
