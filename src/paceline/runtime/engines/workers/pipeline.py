"""A worker process that holds stages of the model: answers the effects of its program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter_ns as now
from typing import Any

from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.schedules import FORWARD, Pass, Table, Work, passes
from paceline.algorithms.schedules.worker import Agree, Channel, Compute, Receive, Send, SumUp, Update
from paceline.algorithms.server.messages import Ask, Finish, Lease, Push, Wait
from paceline.algorithms.server.worker import Assign, AwaitPushes, Count, Place, TakeUp
from paceline.errors import NotFinite
from paceline.errors.failure import Position
from paceline.plans.methods.pipeline import LAYERS, Pipeline
from paceline.plans.methods.program import run
from paceline.plans.methods.split_layers import DATA, INSIDE
from paceline.runtime.engines.servers.stage_shards import open_stage_port, whole_values
from paceline.runtime.engines.workers.arena import DESK_LOCK, Arena
from paceline.runtime.engines.workers.group import StageSums
from paceline.runtime.engines.workers.messages import Assignment
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.engines.workers.worker_context import Meter, StateWriter, Station, WorkerContext
from paceline.runtime.links import TURNS, MessageChannel, Span
from paceline.runtime.links.shared_memory import Mailbox
from paceline.runtime.links.waiting import NAP_SECONDS, Cancelled
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Source
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.shard_version import ShardVersion
from paceline.training.splits.exchanging import LinkMover
from paceline.training.splits.slicing import put
from paceline.training.splits.stages import SplitStages
from paceline.training.stages.segment import Message, Segment
from paceline.training.stages.stage import Moves


class PipelineWorker(WorkerContext):
    """A worker process with some stages of the model."""

    def __init__(
        self, assignment: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None, station: Station
    ) -> None:
        super().__init__(station, assignment.plan, assignment.agenda)
        waiter = station.waiter
        self.arena = arena
        self.context: WorkerContext = self
        assert isinstance(assignment.plan.method, Pipeline)  # a typed view: no other plan has such a worker
        self.method = assignment.plan.method
        assert assignment.blueprint is not None
        self.blueprint, self.snapshots = assignment.blueprint, snapshots
        self.job = job = assignment.job
        self.reader = assignment.reader(source)
        spread, self.mesh = self.method.spread, self.method.mesh(assignment.plan.workers)
        number, self.replica = assignment.number, self.mesh.coordinate(assignment.number, DATA)
        #: The worker's place along the axis `layers`, which tables know, and along `inside`.
        self.layer, self.inside = self.mesh.coordinate(number, LAYERS), self.mesh.coordinate(number, INSIDE)
        self.depth, self.client = (
            self.mesh.size(LAYERS),
            Place(*divmod(number, self.method.shards(assignment.plan.workers))),
        )
        self.mover = LinkMover(arena.link(arena.parts, number, waiter), self.mesh.group(number, INSIDE), self.inside)
        module: nn.Module = job.model  # type: ignore[assignment]
        inside = SplitStages(module, assignment.blueprint, self.inside) if spread.inside > 1 else None
        self.segment = Segment(self.layer, job, module, assignment.blueprint, self.reader, inside)
        self.meter = Meter(self, next(iter(self.segment.stages.values())).weights.store.optimizer)
        self.answers: dict[type, Callable[..., Any]] = {
            Receive: self.receive,
            Send: self.send,
            Compute: self.compute,
            SumUp: self.sum_up,
            Agree: self.agree,
            Update: self.update,
        }
        self.lease: ReplicaLease | None = None
        if spread.server is not None:
            self.lease = ReplicaLease(self, self.client, self.segment, arena, snapshots)
            self.answers |= self.lease.answers | {Push: self.push}
        link, peers = arena.link(arena.payloads, number, waiter), self.mesh.group(number, DATA)
        self.sums = StageSums(link, peers, spread.collective, self.segment) if self.method.together > 1 else None
        self.state_writer = StateWriter(self)
        if self.state_writer.found is not None:
            self.segment.restore(self.state_writer.found)
        mine = self.replica * spread.inside + self.inside
        self.mailboxes = {channel: self._mailbox(mine, channel) for line, channel in arena.mail if line == mine}
        self.numbers, self.agreements = arena.link(arena.numbers, assignment.number, waiter), 0
        self.waited = self.sent = 0  # nanoseconds and bytes since the last piece of work
        self.chunk: Chunk | None = None
        self.lines_of: dict[tuple[int, ...], tuple[Work, ...]] = {}  # by the table's numbers of micro-batches
        self.bases: dict[tuple[int, int], int] = {}  # (stage, update): version that its first forward read

    def _mailbox(self, line: int, channel: Channel) -> MessageChannel:
        """Return this worker's end of a channel."""
        column = self.mesh.group(self.number, LAYERS)
        ends = [column[self.blueprint.stage_to_worker[stage]] for stage in channel]
        peer = ends[0] if ends[1] == self.number else ends[1]
        return Mailbox(self.arena.mail[line, channel], peer, self.arena.doorbells[peer], self.waiter)

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with the samples of its micro-batch if they are known."""
        if self.chunk is None or self.chunk.update != update:
            return Position(update)
        return Position(update, samples=tuple(self.reader.order.indices(self.chunk).tolist()))

    def train(self) -> None:
        """Run the worker's program."""
        if self.lease is not None:
            run(self.method.leasing_program(self), self.answers)
            self.measure_memory()
            return
        self.reader.announce(self._chunks_to_read())
        run(self.method.program(self), self.answers)
        self._write_result()

    def lines(self) -> Iterator[Iterable[Work]]:
        """Yield this worker's line of every table that is still to be run."""
        for passing in self._passes():
            yield self._line(passing)
            self.state_writer.in_step(passing.first, passing.stop, self.segment.worker_state)

    def line(self, lease: Lease) -> Iterable[Work]:
        """Return this worker's line of a batch that is leased to its replica."""
        chunks = self.agenda.filled(lease.batch)
        return self._line(Pass(lease.batch, (len(chunks),), self.agenda.filled))

    def _line(self, passing: Pass) -> Iterable[Work]:
        """Begin a table; return this worker's line of it."""
        self.passing = passing
        self.segment.begin(passing)
        if not self.method.schedule.span:  # the table is as long as the training
            return self.method.schedule.line(self.layer, self.depth, passing.counts)
        if passing.counts not in self.lines_of:
            self.lines_of[passing.counts] = self._table(passing).lines[self.layer]
        return self.lines_of[passing.counts]

    def _passes(self) -> Iterator[Pass]:
        """Yield this replica's part of the tables that are still to be run."""
        start, replicas = self.resume_point.updates, self.mesh.size(DATA)
        return passes(self.method.schedule.span, self.agenda, start, replica=self.replica, replicas=replicas)

    def _table(self, passing: Pass) -> Table:
        table = self.method.table(self.plan.workers, passing.counts)
        return table.agreeing() if self.blueprint.agrees else table

    def _chunks_to_read(self) -> Iterator[Chunk]:
        """Yield the chunks that this worker reads, in this order."""
        for passing in self._passes():
            for work in self.method.schedule.line(self.layer, self.depth, passing.counts):
                if work.what == FORWARD and self.segment.reads(self.segment.stages[work.stage]):
                    yield passing.chunk(work.micro)

    def _begin(self, micro: int) -> int:
        """Begin what is about a micro-batch; return the update that it is in."""
        self.chunk = self.passing.chunk(micro)
        self.doing(self.chunk.update)
        return self.chunk.update

    def send(self, channel: Channel, micro: int, message: Message) -> None:
        self._begin(micro)
        mailbox = self.mailboxes[channel]
        before = mailbox.waited
        self.sent += mailbox.put(message)
        self.waited += mailbox.waited - before

    def receive(self, channel: Channel, micro: int) -> Message:
        self._begin(micro)
        mailbox = self.mailboxes[channel]
        before = mailbox.waited
        message = mailbox.take()
        self.waited += mailbox.waited - before
        return message

    def agree(self, stage: int, micro: int) -> None:
        """Agree on the norm of the whole gradient: each worker sums all workers' parts in the same order."""
        self._begin(micro)
        link, span = self.numbers, Span(self.agreements % TURNS, 0, 1)
        self.agreements += 1
        link.vectors[span.turn][0] = self.segment.squares()
        others = [worker for worker in self.mesh.group(self.number, LAYERS) if worker != self.number]
        for other in others:
            link.offer(other, span)
        before = link.waited
        squares = {self.number: link.vectors[span.turn]} | {other: link.take(other, span) for other in others}
        self.waited += link.waited - before
        self.segment.agree(sum(float(squares[worker]) for worker in sorted(squares)))

    def compute(self, work: Work, message: Message | None) -> Message:
        """Compute a piece of work and write its row."""
        start, update = now(), self._begin(work.micro)
        if work.what == FORWARD:
            self.bases.setdefault((work.stage, update), self.passing.first + work.version)
        result = self._driven(self.segment.compute(work, message))
        row = (update, work.stage, work.micro, ord(work.what), start, now(), self.waited, 0, self.sent, math.nan)
        self.record(Kind.STAGE, *row)
        self.waited = self.sent = 0
        return result

    def sum_up(self, number: int, micro: int) -> None:
        """Add a stage's gradient up with those of the other replicas."""
        start, update, stage = now(), self._begin(micro), self.segment.stages[number]
        share = stage.share()
        if self.sums is not None:
            share, waited, sent = self.sums.all_reduce(number, share)
            self.record(Kind.COLLECTIVE, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)
        stage.finalize(share)

    def push(self, replica: int, shard: int, batch: int, again: bool) -> None:
        """Push this replica's gradient of the worker's stage to its shard."""
        assert self.lease is not None
        start, ((number, stage),) = now(), self.segment.stages.items()
        del self.bases[number, batch]
        share = stage.share()
        if self.job.on_nan == "stop" and not math.isfinite(share.loss):
            raise NotFinite(share.loss, batch, self.segment.samples(batch))
        if number == len(self.blueprint.stage_to_worker) - 1 and not self.inside:
            row = (batch, -1, self.lease.port.base, -1, start, start, 0, share.samples, 0, share.mean)
            self.record(Kind.COMPUTE, *row)
        self.lease.push(share, Push(replica, shard, batch, again), self.sent)
        self.sent = 0

    def _driven(self, moves: Moves[Message]) -> Message:
        """Compute together with the workers that share the stage's layers, if there are any."""
        waited, sent = self.mover.link.waited, self.mover.sent
        try:
            answer = self.mover.move(next(moves))
            while True:
                answer = self.mover.move(moves.send(answer))
        except StopIteration as ended:
            self.waited += self.mover.link.waited - waited
            self.sent += self.mover.sent - sent
            result: Message = ended.value
            return result

    def update(self, work: Work) -> None:
        """Make a stage's next version; write its rows, and its part of a snapshot if one is due."""
        start, update = now(), self._begin(work.micro)
        base, version = self.bases.pop((work.stage, update)), self.passing.first + work.version
        sums: GradientSum = self.segment.update(work)
        if work.stage == len(self.blueprint.stage_to_worker) - 1 and not self.inside:
            self.record(Kind.COMPUTE, update, -1, base, -1, start, start, 0, sums.samples, 0, sums.mean)
        self.record(Kind.APPLY, update, work.stage, base, version, start, now(), 0, 0, self.sent, 0.0)
        self.sent = 0
        self.meter.after_step(None, update)  # no worker has the whole gradient
        if self.snapshots is not None and not self.replica and self.agenda.reaches(update + 1, self.snapshots.every):
            before = now()
            with self.snapshots.views(update + 1) as views:
                self._put(work.stage, views)
            if work.stage == 0 and not self.inside:  # the others have written theirs, or will before the run is over
                self.record(Kind.SNAPSHOT, update + 1, -1, -1, -1, before, now(), 0, 0, 0, 0.0)

    def _put(self, stage: int, views: Mapping[str, Tensor]) -> None:
        """Write this worker's parts of a stage into whole parameters and moving buffers."""
        for name, mine in self.segment.named(stage):
            put(views[name], mine, self.blueprint.stored.get(name), self.inside)

    def _write_result(self) -> None:
        """Write what this worker holds into the shared result."""
        self.measure_memory()
        if self.replica:
            return
        for stage in self.segment.stages:
            self._put(stage, self.arena.result_views())


# One worker of a replica that is one client of a desk: answers the effects by which they share their leases.

COUNT, BATCH, AGAIN, END = range(4)


class ReplicaLease:
    """One worker's view of its replica's batches, and its port to the shard of its place."""

    def __init__(
        self, worker: WorkerContext, place: Place, segment: Segment, arena: Arena, snapshots: SnapshotFile | None
    ) -> None:
        self.worker, self.blueprint, self.arena, self.snapshots = worker, segment.blueprint, arena, snapshots
        size, (replica, number) = len(arena.shards), place
        self.group = range(replica * size, (replica + 1) * size)
        self.desk_lock = arena.lock(DESK_LOCK, worker.waiter, "the desk")
        self.shard_locks = [arena.lock(n + 1, worker.waiter, f"shard {n}") for n in range(size)]
        memory, lock = arena.shards[number], self.shard_locks[number]
        self.port = open_stage_port(
            segment, worker.plan, replica, number, memory, lock, worker.ensure_trace_space, self._record
        )
        self.cells = arena.leases[4 * replica : 4 * replica + 4]
        self.sent = 0  # bytes of messages since the last row
        self.answers: dict[type, Callable[..., Any]] = {
            Ask: lambda *fields: self.ask(Ask(*fields)),
            Finish: lambda *fields: self.ask(Finish(*fields)),
            Assign: self.assign,
            TakeUp: self.take_up,
            Count: self.count,
            AwaitPushes: self.await_pushes,
        }

    def ask(self, command: Ask | Finish) -> Lease | None:
        """Wait for the desk to lease a batch; None where all are applied."""
        worker = self.worker
        while isinstance(action := self._perform(command), Wait):
            self.arena.doorbells[worker.number].nap(NAP_SECONDS, worker.host.cancelled)
            if worker.host.cancelled():
                raise Cancelled
            command = Ask(command.worker)
        return action if isinstance(action, Lease) else None

    def assign(self, number: int, lease: Lease | None) -> None:
        if lease is None:
            self.cells[END] = 1
        else:
            self.cells[BATCH], self.cells[AGAIN] = lease.batch, int(lease.again)
            self.cells[COUNT] = number
        for other in self.group:
            self.arena.doorbells[other].ring()

    def take_up(self, number: int) -> Lease | None:
        cells = self.cells
        self.worker.waiter.until(lambda: cells[COUNT] >= number or bool(cells[END]), lambda: "its replica's batch")
        return None if cells[END] else Lease(cells[BATCH], bool(cells[AGAIN]))

    def count(self, pushed: int) -> None:
        self.arena.pushed[self.worker.number] = pushed
        self.arena.doorbells[self.group[0]].ring()

    def await_pushes(self, count: int) -> None:
        pushed = self.arena.pushed
        self.worker.waiter.until(lambda: all(pushed[w] >= count for w in self.group), lambda: "its replica's pushes")

    def push(self, share: GradientSum, command: Push, sent: int) -> None:
        """Push the gradient of this worker's stage; it computes with the newest version from now on.

        The bytes of the messages before it, sent to the stage before, are counted in the row of the push.
        """
        self.sent = sent
        self.port.push(command, self.port.finalize(command.batch, share))

    def _record(self, kind: Kind, *row: float) -> None:
        *first, pushed, value = row
        self.worker.record(kind, *first, pushed + self.sent, value)
        self.sent = 0

    def _perform(self, command: Ask | Finish) -> object:
        desk = self.arena.desk
        assert desk is not None
        action, finished = desk.handle(command, self.desk_lock)
        if isinstance(command, Finish):
            for doorbell in self.arena.doorbells:
                doorbell.ring()
            self._snapshot(finished)
        return action

    def _snapshot(self, finished: int) -> None:
        """Keep the newest version of every shard, if an evaluation is due after so many batches."""
        worker = self.worker
        if self.snapshots is None or not worker.agenda.reaches(finished, self.snapshots.every):
            return
        start, versions = now(), []
        for memory, lock in zip(self.arena.shards, self.shard_locks, strict=True):
            with lock:
                newest = memory.newest
                versions.append(ShardVersion(newest.shape, newest.raw.clone()))
        self.snapshots.write(finished, whole_values(self.blueprint, self.snapshots.names, versions))
        worker.record(Kind.SNAPSHOT, finished, -1, -1, -1, start, now(), 0, 0, 0, 0.0)
