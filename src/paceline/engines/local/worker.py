"""One worker process of the local engine: performs, one after the other, what the algorithm says."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.compute.autograd import Replica
from paceline.compute.averaging import Wanderer
from paceline.compute.belongings import Belongings, of_home, put_back_memories, restore_home
from paceline.compute.home import ReplicaHome
from paceline.compute.layout import sha256
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed
from paceline.compute.sender import Sender
from paceline.core.actions import Action, Apply, Noted, Wait
from paceline.core.agenda import Agenda, Chunk
from paceline.core.events import Ask, Command, Compute, Finish, Pull, Push
from paceline.core.meetings.neighbours import Neighbours
from paceline.core.rules import Arrival, Averaging
from paceline.core.worker import Worker
from paceline.data.order import Order
from paceline.data.source import Reader, Source, TensorSource, open_source
from paceline.engines.local.arena import ABORT, DESK_LOCK, GO, Arena
from paceline.engines.local.lockers import Keeper, Locker
from paceline.engines.local.programme import train_by_programme
from paceline.engines.local.shards import CentreClient, GatheringClient, shard_client
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.tables import NeighbourClient, TableClient
from paceline.engines.transports.shared_memory import Bell, Memory, RecordLock, Stopped, Waiter
from paceline.errors import JobError
from paceline.job import Job
from paceline.plan import Plan
from paceline.trace import Kind

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@dataclass
class Assignment:
    """What a worker is told. Pickled with cloudpickle, so functions of a notebook travel too."""

    number: int
    job: Job  # without its data
    plan: Plan
    agenda: Agenda
    moving: tuple[str, ...]
    data: object  # a Dataset or a function that makes one; None when the data are shared tensors
    samples: int
    initial_sha256: str
    scratch: Path | None  # a folder that the parent takes away at the end
    deadline: float
    start: int  # updates that were made in earlier lives
    resumed: bool
    every: int  # updates between two checkpoints


class SharedTensors:
    """Tensors in shared memory, found there by any process the descriptors were sent to."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.shapes = [(tuple(t.shape), t.dtype) for t in tensors]
        self.memory = Memory(sum(-(-t.nbytes // 64) * 64 for t in tensors))
        for mine, given in zip(self.open(), tensors, strict=True):
            mine.copy_(given)

    def open(self) -> tuple[Tensor, ...]:
        self.memory._taken = 0
        return tuple(self.memory.tensor(torch.Size(shape).numel(), dtype).view(shape) for shape, dtype in self.shapes)


def die_with_parent(_: int = 0) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(
    pickled: bytes,
    arena: Arena,
    tensors: SharedTensors | None,
    snapshots: SnapshotFile | None,
    locker: Locker | None,
    pipe: Connection,
) -> None:
    """The process's whole life: ready, go, train, finished; or failed, with the traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    # The forkserver ends with the parent, unless a worker too holds the pipe that tells; and a worker ends with the
    # forkserver.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    die_with_parent()
    # Without this every gradient of more than 128 KiB is a fresh mapping, page-faulted in on each step: 15% of a
    # large one.
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, 1)  # nanosecond: or every short sleep lasts 50 microseconds longer
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    number = -1
    try:
        assignment: Assignment = pickle.loads(pickled)
        number = assignment.number
        torch.set_num_threads(assignment.plan.threads)
        if assignment.scratch is not None:
            multiprocessing.current_process()._config["tempdir"] = str(assignment.scratch)  # type: ignore[attr-defined]
        source = TensorSource(tensors.open()) if tensors else open_source(assignment.data, assignment.job.seed)
        worker = LocalWorker(assignment, arena, source, snapshots, locker, lambda: pipe.send(("kept",)))
        pipe.send(("ready",))
        worker.waiter.until(lambda: bool(arena.control[GO]), lambda: "the others to start")
        worker.train()
        arena.ended[number] = now()
        pipe.send(("finished",))
    except Stopped:
        pass
    except BaseException as error:
        where = (
            f"in update {arena.doing[number]}"
            if number >= 0 and arena.doing[number] >= 0
            else "before its first update"
        )
        pipe.send(("failed", where, "".join(traceback.format_exception(error)), type(error).__name__))
    finally:
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # shared memory has exported views; the kernel takes it all back


class LocalWorker:
    def __init__(
        self,
        given: Assignment,
        arena: Arena,
        source: Source,
        snapshots: SnapshotFile | None,
        locker: Locker | None,
        wake: Callable[[], None],
    ) -> None:
        self.given, self.arena, self.number, self.snapshots = given, arena, given.number, snapshots
        self.job, self.plan, self.agenda = given.job, given.plan, given.agenda
        self.bells = [Bell(a, b.descriptor) for a, b in zip(arena.asleep, arena.bells, strict=True)]
        self.waiter = Waiter(
            self.number,
            self.bells[self.number],
            lambda: bool(arena.control[ABORT]),
            given.deadline,
            lambda: f"in update {arena.doing[self.number]}",
            crowded=self.plan.workers * self.plan.threads > len(os.sched_getaffinity(0)),
        )
        self.trace = arena.traces[self.number]
        self.kept_alive: object = None
        self.gradients: list[Tensor | None] = []
        self.waited = 0  # nanoseconds at the gate, not yet in the trace
        module = self.job.make_model()
        if sha256(module) != given.initial_sha256:
            raise JobError(
                "model= makes another model in this process than in the parent's; let all chance in it come from "
                "torch, random or NumPy's global generator, which are seeded, or give the module itself"
            )
        self.replica = Replica(self.job, module, given.moving)
        self.optimizer = self.job.make_optimizer(module, self.replica.parameters)
        order = Order(given.samples, self.job.seed, self.job.shuffle, self.agenda.cuts)
        self.learner = Learner(self.replica, Reader(source, order, self.job.loader_workers, die_with_parent))
        self.sender = Sender(self.plan.wire, self.replica.parameters)
        self.keeper = Keeper(self, locker, given.every, wake)
        if self.plan.gate is not None:
            self.shards = [shard_client(self, number) for number in range(len(arena.shards))]
            for shard in self.shards:
                shard.go_on()
            self.desk_lock = RecordLock(arena.locks, DESK_LOCK, self.waiter, "the desk")

    def train(self) -> None:
        if self.plan.native:
            from paceline.engines.local.ddp import (
                train_by_ddp,
            )  # half a second of imports that others need not pay

            assert self.given.scratch is not None
            train_by_ddp(self, self.given.scratch / "ddp")
        elif self.plan.gate is not None:
            self._train_by_shards()
        elif self.plan.averaging is not None:
            self._wander(self.plan.averaging)
        elif self.plan.programme is not None:
            train_by_programme(self, self.plan.programme)
        elif self.plan.meeting is not None:
            self._train_by_table()
        else:
            self._train_alone()

    def record(self, kind: Kind, *rest: float) -> None:
        if self.trace.full:
            self.waiter.until(lambda: not self.trace.full, lambda: "the parent to read the trace")
        self.trace.write(kind, self.number, *rest)

    def compute(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> Computed:
        self.arena.doing[self.number] = update // self.agenda.shares
        start = now()
        computed = self.sender.sent(self.learner.compute(chunks))
        samples = 0 if again else computed.samples  # of another evaluation of the same chunks
        self.record(Kind.COMPUTE, update, -1, version, -1, start, now(), self.waited, samples, 0, computed.mean)
        self.waited = 0
        return computed

    # --- alone: no meeting at all ---------------------------------------------------------------------------------

    def _train_alone(self) -> None:
        """`sequential`; and `ceiling`, where every worker does so with batches of its own."""
        home, workers = self.replica_home(), self.plan.workers
        own = self.go_on(home)
        first = self.number + -(-max(0, self.given.start - self.number) // workers) * workers
        updates = range(first, self.agenda.updates, workers)
        self.learner.reader.announce(c for u in updates for c in self.agenda.filled(u))
        for update in updates:
            self._apply(home, update, self.compute(update, self.agenda.filled(update), home.updates))
            self.keeper.in_step(update, update + workers, own)
        self.hand_in(self.values())

    def _apply(self, home: ReplicaHome, update: int, computed: Computed) -> None:
        start, base = now(), home.updates
        self.plan.rule.update(home, Arrival(self.learner.settle(computed)))
        self.record(Kind.APPLY, update, 0, base, home.updates, start, now(), 0, 0, 0, 0.0)
        if self.number == 0:
            self.snapshot(update + 1, self.values)

    def go_on(self, home: ReplicaHome) -> Callable[[], Belongings]:
        """Begin where an earlier life of the run ended, if there was one. What this worker has of its own, later."""
        if (found := self.keeper.found) is not None:
            self.replica.restore(found)
            restore_home(home, found)
            put_back_memories(self.sender.carried, found, "owed")
        if self.number and self.plan.agrees:
            return Belongings
        return lambda: self.replica.belongings() | of_home(home)

    def values(self) -> list[Tensor]:
        return self.replica.values()

    def hand_in(self, values: list[Tensor]) -> None:
        """Leave parameters and moving buffers where the parent finds them."""
        if self.number < len(self.arena.results):
            (shard,), result = self.arena.shape.layout.shards, self.arena.results[self.number]
            for view, value in zip((*shard.parameter_views(result), *shard.buffer_views(result)), values, strict=True):
                view.copy_(value)

    def replica_home(self) -> ReplicaHome:
        return ReplicaHome(
            self.replica.parameters, self.optimizer, self.job.schedule, self.plan.averaging or self.plan.rule
        )

    # --- by a table: all workers meet in every update ---------------------------------------------------------------

    def _train_by_table(self) -> None:
        home = self.replica_home()
        own = self.go_on(home)
        table = TableClient(self, self.plan.meeting, self.plan.workers)  # type: ignore[arg-type]
        updates = range(self.given.start, self.agenda.updates)
        self.learner.reader.announce(c for u in updates for c in self.agenda.mine(u, self.number))
        for update in updates:
            computed = self.compute(update, self.agenda.mine(update, self.number), update)
            start = now()
            together, waited, sent = table.meet(update, computed)
            self.record(Kind.MEET, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)
            self._apply(home, update, together)
            self.keeper.in_step(update, update + 1, own)
        self.hand_in(self.values())

    # --- apart: local steps; now and then the replicas meet ---------------------------------------------------------

    def _wander(self, rule: Averaging) -> None:
        meeting, workers, first = self.plan.meeting, self.plan.workers, rule.mixes_first
        home, meetings = self.replica_home(), 0
        wanderer, own = Wanderer(self.learner, home, rule), self.go_on(home)
        client = NeighbourClient if isinstance(meeting, Neighbours) else TableClient
        table = client(self, meeting, workers)  # type: ignore[arg-type]
        updates = range(self.given.start, self.agenda.updates)
        self.learner.reader.announce(c for u in updates for c in self.agenda.mine(u, self.number))
        for update in updates:
            computed = self.compute(update, self.agenda.mine(update, self.number), update)
            due = self.plan.meets_after(update, self.agenda.updates)
            if due and first:
                self._meet(update, meetings, wanderer, table)
            start = now()
            wanderer.step(computed)
            self.record(Kind.APPLY, update, 0, update, update + 1, start, now(), 0, 0, 0, 0.0)
            if due and not first:
                self._meet(update, meetings, wanderer, table)
            meetings += due
            if self.number == 0:
                self.snapshot(update + 1, wanderer.result)
            self.keeper.in_step(update, update + 1, own)
        self.hand_in(wanderer.result())

    def _meet(self, update: int, number: int, wanderer: Wanderer, table: TableClient | NeighbourClient) -> None:
        start = now()
        mean, waited, sent = table.mean(number, wanderer.bring())
        wanderer.take(mean)
        self.record(Kind.MEET, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)

    # --- by shards: the server's machines, run by whoever holds the lock --------------------------------------------

    def _train_by_shards(self) -> None:
        worker = Worker(self.number, len(self.shards), self.plan.gathers > 0)
        while (command := worker.command()) is not None:
            worker.answer(self._perform(command))

    def _perform(self, command: Command) -> Action:
        if isinstance(command, Push):
            action = self.shards[command.shard].push(command, self.gradients)
            if self.plan.gathers and isinstance(action, Apply):
                self.snapshot(action.version, self.values)
            return action
        if isinstance(command, Pull):
            client = self.shards[command.shard]
            assert isinstance(client, GatheringClient)
            return client.pull(command)
        if isinstance(command, Compute):
            for task in self.agenda.tasks(command.batch):
                if self.agenda.begins(task):
                    self._centre.commuter.begin()
                computed = self.compute(task, self.agenda.task(task), self.shards[0].base)
                self.gradients = self.shards[0].settle(task, computed)
            return Noted()
        self.gradients = []  # before the next ones are made: what a step touches should stay in the cache
        action = self._tell_desk(command)
        if isinstance(action, Wait):
            start = now()
            self.bells[self.number].sleep(lambda: bool(self.arena.control[ABORT]))
            self.waited += now() - start
            if self.arena.control[ABORT]:
                raise Stopped
        return action

    @property
    def _centre(self) -> CentreClient:
        (client,) = self.shards
        assert isinstance(client, CentreClient)
        return client

    def _tell_desk(self, command: Ask | Finish) -> Action:
        desk, twin = self.arena.shape.desk, self.arena.desk
        assert desk is not None
        assert twin is not None
        with self.desk_lock:
            draft = twin.begin()
            action = desk.handle(draft, command)
            twin.commit()
            finished = desk.finished(draft)
        if isinstance(command, Finish):
            for bell in self.bells:
                bell.ring()  # whoever waits at the gate may ask again
            self.keeper.finished(self.agenda.done_by(finished - 1), self.agenda.done_by(finished))
            if not self.plan.gathers:
                self.snapshot(self.agenda.made_by(finished), self.shards[0].values)
        return action

    def snapshot(self, updates: int, values: Callable[[], list[Tensor]]) -> None:
        if self.snapshots is None or not self.agenda.reaches(updates, self.snapshots.every):
            return
        start = now()
        self.snapshots.write(updates, values())
        self.record(Kind.SNAPSHOT, updates, -1, -1, -1, start, now(), 0, 0, 0, 0.0)
