"""A replica of several workers that is one client of a desk: its first worker asks, and the others follow.

first worker of the replica                      the others                        desk and shards
───────────────────────────                      ──────────                        ───────────────
1 asks for a batch ───────────────────────────────────────────────────────────────▶ leases one
2 writes it down for its replica ───────────────▶ read it
3 all compute it together, and push, each to the shard of its own place ───────────▶ make their next versions
4 waits until all have pushed ◀────────────────── count it
5 finishes the batch ──────────────────────────────────────────────────────────────▶ leases the next one
"""

from __future__ import annotations

from time import perf_counter_ns as now

from paceline.core.server.actions import Done, Lease, Wait
from paceline.core.server.events import Ask, Finish, Push
from paceline.engines.servers.stage_shards import open_stage_port, whole_values
from paceline.engines.workers.arena import DESK_LOCK, Arena
from paceline.engines.workers.snapshot_file import SnapshotFile
from paceline.engines.workers.worker_context import WorkerContext
from paceline.gradients.payload import GradientSum
from paceline.links.waiting import NAP_SECONDS, Cancelled
from paceline.parameters.shard_version import ShardVersion
from paceline.plans.methods.pipeline import Pipeline
from paceline.runs.trace import Kind
from paceline.stages.segment import Segment

COUNT, BATCH, AGAIN, END = range(4)


class ReplicaLease:
    """One worker's view of its replica's batches, and its port to the shard of its place."""

    def __init__(
        self, worker: WorkerContext, method: Pipeline, segment: Segment, arena: Arena, snapshots: SnapshotFile | None
    ) -> None:
        self.worker, self.blueprint, self.arena, self.snapshots = worker, segment.blueprint, arena, snapshots
        size = method.shards(worker.plan.workers)
        self.replica, self.place = divmod(worker.number, size)
        self.group = range(self.replica * size, (self.replica + 1) * size)
        self.desk_lock = arena.lock(DESK_LOCK, worker.waiter, "the desk")
        self.shard_locks = [arena.lock(n + 1, worker.waiter, f"shard {n}") for n in range(size)]
        memory, lock = arena.shards[self.place], self.shard_locks[self.place]
        self.port = open_stage_port(
            segment, worker.plan, self.replica, self.place, memory, lock, worker.ensure_trace_space, self._record
        )
        self.lease = arena.leases[4 * self.replica : 4 * self.replica + 4]
        self.count, self.batch, self.again = 0, -1, False
        self.sent = 0  # bytes of messages since the last row

    def take(self) -> bool:
        """Wait for the replica's next batch; return whether there is one."""
        if not self.place:
            self._ask()
        waiter = self.worker.waiter
        waiter.until(lambda: self.lease[COUNT] > self.count or bool(self.lease[END]), lambda: "its replica's batch")
        if self.lease[END]:
            return False
        self.count, self.batch, self.again = self.count + 1, self.lease[BATCH], bool(self.lease[AGAIN])
        return True

    def push(self, share: GradientSum, sent: int) -> None:
        """Push the gradient of this worker's stage; it computes with the newest version from now on.

        The bytes of the messages before it, sent to the stage before, are counted in the row of the push.
        """
        self.sent = sent
        gradients = self.port.settle(self.batch, share)
        self.port.push(Push(self.replica, self.place, self.batch, self.again), gradients)

    def _record(self, kind: Kind, *row: float) -> None:
        *first, pushed, value = row
        self.worker.record(kind, *first, pushed + self.sent, value)
        self.sent = 0

    def pushed(self) -> None:
        """Count this worker's push, which the replica's first worker waits for."""
        self.arena.pushed[self.worker.number] = self.count
        self.arena.doorbells[self.group[0]].ring()

    def _ask(self) -> None:
        """Finish the last batch when all have pushed it, ask for the next one, and write it down."""
        worker, desk = self.worker, self.arena.desk
        assert desk is not None
        pushed = self.arena.pushed
        worker.waiter.until(lambda: all(pushed[w] >= self.count for w in self.group), lambda: "its replica's pushes")
        command: Ask | Finish = Finish(self.replica, self.batch) if self.count else Ask(self.replica)
        while isinstance(action := self._perform(command), Wait):
            self.arena.doorbells[worker.number].nap(NAP_SECONDS, worker.host.cancelled)
            if worker.host.cancelled():
                raise Cancelled
            command = Ask(self.replica)
        if isinstance(action, Done):
            self.lease[END] = 1
        else:
            assert isinstance(action, Lease), action
            self.lease[BATCH], self.lease[AGAIN] = action.batch, int(action.again)
            self.lease[COUNT] = self.count + 1
        for other in self.group:
            self.arena.doorbells[other].ring()

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
