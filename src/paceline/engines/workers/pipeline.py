"""A worker process that holds stages of the model and runs its program, one piece of work after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter_ns as now

from torch import Tensor, nn

from paceline.core.agenda import Chunk
from paceline.core.schedules import ALL_REDUCE, FORWARD, UPDATE, Table, Work, program_of
from paceline.core.schedules.clock import Channel, channel_of, sends, takes
from paceline.core.schedules.passes import Pass, passes
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.engines.workers.arena import Arena
from paceline.engines.workers.assignment import Assignment
from paceline.engines.workers.mesh_group import StageSums
from paceline.engines.workers.meter import Meter
from paceline.engines.workers.process import die_with_parent
from paceline.engines.workers.replica_lease import ReplicaLease
from paceline.engines.workers.snapshot_file import SnapshotFile
from paceline.engines.workers.state_buffers import StateBuffer
from paceline.engines.workers.state_writer import StateWriter
from paceline.engines.workers.worker import ProcessHost
from paceline.engines.workers.worker_context import WorkerContext
from paceline.errors import NotFinite
from paceline.errors.failure import Position
from paceline.gradients.payload import GradientSum
from paceline.links import TURNS, MessageChannel, Span
from paceline.links.mailbox import Mailbox
from paceline.plans.methods.pipeline import LAYERS, Pipeline
from paceline.plans.methods.split_layers import DATA, INSIDE
from paceline.runs.trace import Kind
from paceline.splits.exchanging import LinkMover
from paceline.splits.slicing import put
from paceline.splits.stages import SplitStages
from paceline.stages.segment import Segment
from paceline.stages.stage import Moves


class PipelineWorker(WorkerContext):
    """A worker process with some stages of the model."""

    def __init__(
        self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None, notify: Callable[[], None],
    ) -> None:  # fmt: skip
        resume_point = replace(given.resume_point, state_buffer=state_buffer, notify=notify)
        host = ProcessHost(arena, snapshots)
        waiter = arena.waiter(given.number, host.cancelled, given.deadline, given.plan.threads)
        shared = arena.of_worker(given.number)
        super().__init__(given.number, shared, waiter, given.plan, given.agenda, resume_point, host)
        self.arena = arena
        self.context: WorkerContext = self
        assert isinstance(given.plan.method, Pipeline)
        self.method = given.plan.method
        assert given.blueprint is not None
        self.blueprint, self.snapshots = given.blueprint, snapshots
        self.job = job = given.job
        self.reader = Reader(
            source, Order(given.samples, job.seed, job.shuffle, given.agenda.cuts), job.num_workers, die_with_parent
        )
        spread, self.mesh = self.method.spread, self.method.mesh(given.plan.workers)
        number, self.replica = given.number, self.mesh.coordinate(given.number, DATA)
        #: The worker's place along the axis `layers`, which tables know, and along `inside`.
        self.depth, self.place = self.mesh.coordinate(number, LAYERS), self.mesh.coordinate(number, INSIDE)
        self.line = self.replica * spread.inside + self.place
        self.mover = LinkMover(arena.link(arena.parts, number, waiter), self.mesh.group(number, INSIDE), self.place)
        module: nn.Module = job.model  # type: ignore[assignment]
        inside = SplitStages(module, given.blueprint, self.place) if spread.inside > 1 else None
        self.segment = Segment(self.depth, job, module, given.blueprint, self.reader, inside)
        self.meter = Meter(self, next(iter(self.segment.stages.values())).weights.store.optimizer)
        self.lease: ReplicaLease | None = None
        if spread.server is not None:
            self.lease = ReplicaLease(self, self.method, self.segment, arena, snapshots)
        elif spread.data > 1:
            link = arena.link(arena.payloads, number, waiter)
            self.sums = StageSums(link, self.mesh.group(number, DATA), spread.collective, self.segment)
            self.segment.add_up = self._add_up
        self.state_writer = StateWriter(self)
        if self.state_writer.found is not None:
            self.segment.restore(self.state_writer.found)
        self.mailboxes = {channel: self._mailbox(channel) for line, channel in arena.mail if line == self.line}
        self.numbers, self.agreements = arena.link(arena.numbers, given.number, waiter), 0
        self.waited = self.sent = 0  # nanoseconds and bytes since the last piece of work
        self.chunk: Chunk | None = None

    def _mailbox(self, channel: Channel) -> MessageChannel:
        """Return this worker's end of a channel."""
        column = self.mesh.group(self.number, LAYERS)
        ends = [column[self.blueprint.stage_to_worker[stage]] for stage in channel]
        peer = ends[0] if ends[1] == self.number else ends[1]
        return Mailbox(self.arena.mail[self.line, channel], peer, self.arena.doorbells[peer], self.waiter)

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with the samples of its micro-batch if they are known."""
        if self.chunk is None or self.chunk.update != update:
            return Position(update)
        return Position(update, samples=tuple(self.reader.order.indices(self.chunk).tolist()))

    def train(self) -> None:
        """Run the worker's program, table after table."""
        if self.lease is not None:
            self._serve(self.lease)
            return
        schedule, workers = self.method.schedule, self.mesh.size(LAYERS)
        self.reader.announce(self._chunks_to_read())
        programs: dict[tuple[int, ...], list[Work]] = {}  # by their numbers of micro-batches
        for passing in self._passes():
            self.segment.begin(passing)
            if not schedule.span:  # the table is as long as the training
                self._follow(program_of(schedule, self.depth, workers, passing.counts), passing)
            else:
                if passing.counts not in programs:
                    programs[passing.counts] = self._table(passing).programs[self.depth]
                self._follow(programs[passing.counts], passing)
            self.state_writer.in_step(passing.first, passing.stop, self.segment.worker_state)
        self._write_result()

    def _serve(self, lease: ReplicaLease) -> None:
        """Compute one batch after another, as the desk leases them to this replica."""
        programs: dict[tuple[int, ...], list[Work]] = {}
        while lease.take():
            chunks = self.agenda.filled(lease.batch)
            passing = Pass(lease.batch, (len(chunks),), self.agenda.filled)
            self.segment.begin(passing)
            if passing.counts not in programs:
                programs[passing.counts] = self._table(passing).programs[self.depth]
            self._follow(programs[passing.counts], passing)
            lease.pushed()
        self.measure_memory()

    def _passes(self) -> Iterator[Pass]:
        """Yield this replica's part of the tables that are still to be run."""
        start, replicas = self.resume_point.updates, self.mesh.size(DATA)
        return passes(self.method.schedule.span, self.agenda, start, replica=self.replica, replicas=replicas)

    def _table(self, passing: Pass) -> Table:
        table = self.method.table(self.plan.workers, passing.counts)
        return table.agreeing() if self.blueprint.agrees else table

    def _chunks_to_read(self) -> Iterator[Chunk]:
        """Yield the chunks that this worker reads, in this order."""
        schedule, workers = self.method.schedule, self.mesh.size(LAYERS)
        for passing in self._passes():
            for work in schedule.line(self.depth, workers, passing.counts):
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
        others = [worker for worker in self.mesh.group(self.number, LAYERS) if worker != self.number]
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
        if work.what == UPDATE and self.lease is not None:
            self._push(self.lease, work.stage, start)
            return
        sums = self._driven(self.segment.do(work))
        if work.what != UPDATE:
            row = (update, work.stage, work.micro, ord(work.what), start, now(), self.waited, 0, self.sent, math.nan)
            self.record(Kind.STAGE, *row)
            self.waited = self.sent = 0
            return
        assert sums is not None
        self._applied(work, update, bases.pop((work.stage, update)), passing.first + work.version, start, sums)

    def _push(self, lease: ReplicaLease, number: int, start: int) -> None:
        """Push this replica's gradient of a stage to its shard, and compute with the outcome from now on."""
        share = self.segment.stages[number].share()
        if self.job.on_nan == "stop" and not math.isfinite(share.loss):
            raise NotFinite(share.loss, lease.batch, self.segment.samples(lease.batch))
        if number == len(self.blueprint.stage_to_worker) - 1 and not self.place:
            row = (lease.batch, -1, lease.port.base, -1, start, start, 0, share.samples, 0, share.mean)
            self.record(Kind.COMPUTE, *row)
        lease.push(share, self.sent)
        self.sent = 0

    def _driven(self, moves: Moves[GradientSum | None]) -> GradientSum | None:
        """Compute together with the workers that share the stage's layers, if there are any."""
        waited, sent = self.mover.link.waited, self.mover.sent
        try:
            answer = self.mover.move(next(moves))
            while True:
                answer = self.mover.move(moves.send(answer))
        except StopIteration as ended:
            self.waited += self.mover.link.waited - waited
            self.sent += self.mover.sent - sent
            found: GradientSum | None = ended.value
            return found

    def _add_up(self, stage: int, share: GradientSum) -> GradientSum:
        """Add a stage's gradient up with those of the other replicas."""
        start = now()
        summed, waited, sent = self.sums.all_reduce(stage, share)
        assert self.chunk is not None
        update = self.chunk.update
        self.record(Kind.COLLECTIVE, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)
        return summed

    def _applied(self, work: Work, update: int, base: int, version: int, start: int, sums: GradientSum) -> None:
        """Write the rows of an update of a stage, and its part of a snapshot if one is due."""
        if work.stage == len(self.blueprint.stage_to_worker) - 1 and not self.place:
            self.record(Kind.COMPUTE, update, -1, base, -1, start, start, 0, sums.samples, 0, sums.mean)
        self.record(Kind.APPLY, update, work.stage, base, version, start, now(), 0, 0, self.sent, 0.0)
        self.sent = 0
        self.meter.after_step(None, update)  # no worker has the whole gradient
        if self.snapshots is not None and not self.replica and self.agenda.reaches(update + 1, self.snapshots.every):
            before = now()
            with self.snapshots.views(update + 1) as views:
                self._put(work.stage, views)
            if work.stage == 0 and not self.place:  # the others have written theirs, or will before the run is over
                self.record(Kind.SNAPSHOT, update + 1, -1, -1, -1, before, now(), 0, 0, 0, 0.0)

    def _put(self, stage: int, views: Mapping[str, Tensor]) -> None:
        """Write this worker's parts of a stage into whole parameters and moving buffers."""
        for name, mine in self.segment.named(stage):
            put(views[name], mine, self.blueprint.stored.get(name), self.place)

    def _write_result(self) -> None:
        """Write what this worker holds into the shared result."""
        self.measure_memory()
        if self.replica:
            return
        for stage in self.segment.stages:
            self._put(stage, self.arena.result_views())
