"""One worker of a replica that is one client of a desk: answers the effects by which they share their leases."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as now
from typing import Any

from paceline.algorithms.server.messages import Ask, Finish, Lease, Push, Wait
from paceline.algorithms.server.worker import Assign, AwaitPushes, Count, Place, TakeUp
from paceline.runtime.engines.servers.stage_shards import open_stage_port, whole_values
from paceline.runtime.engines.workers.arena import DESK_LOCK, Arena
from paceline.runtime.engines.workers.snapshot_file import SnapshotFile
from paceline.runtime.engines.workers.worker_context import WorkerContext
from paceline.runtime.links.waiting import NAP_SECONDS, Cancelled
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.shard_version import ShardVersion
from paceline.training.stages.segment import Segment

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
