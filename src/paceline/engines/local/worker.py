"""One worker process of the local engine: performs, one after the other, what the algorithm says."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.compute.autograd import Replica
from paceline.compute.averaging import Wanderer
from paceline.compute.home import ReplicaHome, ShardHome, optimizer_over
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed, Payload
from paceline.core.actions import Action, Apply, Noted, Wait
from paceline.core.agenda import Agenda, Chunk
from paceline.core.events import Ask, Command, Compute, Finish, Push
from paceline.core.meetings import Collective, Part, Step, segment_cuts
from paceline.core.rules import Arrival
from paceline.core.worker import Worker
from paceline.data.order import Order
from paceline.data.source import Reader, Source, TensorSource, open_source
from paceline.engines.local.arena import ABORT, DESK_LOCK, GO, Arena
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.transports.shared_memory import Bell, Memory, RecordLock, Stopped, Waiter
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
    meeting_place: Path | None  # a file through which PyTorch's own processes find each other
    deadline: float


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
        source = TensorSource(tensors.open()) if tensors else open_source(assignment.data, assignment.job.seed)
        worker = LocalWorker(assignment, arena, source, snapshots)
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
    def __init__(self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None) -> None:
        self.given, self.arena, self.number, self.snapshots = given, arena, given.number, snapshots
        self.job, self.plan, self.agenda = given.job, given.plan, given.agenda
        self.bells = [Bell(a, b.descriptor) for a, b in zip(arena.asleep, arena.bells, strict=True)]
        self.waiter = Waiter(
            self.number,
            self.bells[self.number],
            lambda: bool(arena.control[ABORT]),
            given.deadline,
            lambda: f"in update {arena.doing[self.number]}",
        )
        self.trace = arena.traces[self.number]
        self.kept_alive: object = None
        self.gradients: list[Tensor | None] = []
        self.waited = 0  # nanoseconds at the gate, not yet in the trace
        module = self.job.make_model()
        self.replica = Replica(self.job, module, given.moving)
        self.optimizer = self.job.make_optimizer(module, self.replica.parameters)
        order = Order(given.samples, self.job.seed, self.job.shuffle)
        self.learner = Learner(self.replica, Reader(source, order, self.job.loader_workers, die_with_parent))
        if self.plan.gate is not None:
            client = ShardClient if self.plan.locked else UnlockedClient
            self.shards = [client(self, number) for number in range(len(arena.shards))]
            self.desk_lock = RecordLock(arena.locks, DESK_LOCK, self.waiter, "the desk")

    def train(self) -> None:
        if self.plan.native:
            from paceline.engines.local.ddp import (
                train_by_ddp,
            )  # half a second of imports that others need not pay

            assert self.given.meeting_place is not None
            train_by_ddp(self, self.given.meeting_place)
        elif self.plan.gate is not None:
            self._train_by_shards()
        elif self.plan.meeting is not None:
            self._train_by_table()
        else:
            self._train_alone()

    def record(self, kind: Kind, *rest: float) -> None:
        if self.trace.full:
            self.waiter.until(lambda: not self.trace.full, lambda: "the parent to read the trace")
        self.trace.write(kind, self.number, *rest)

    def _compute(self, update: int, chunks: list[Chunk], version: int) -> Computed:
        self.arena.doing[self.number] = update
        start = now()
        computed = self.learner.compute(chunks)
        mean = computed.loss / computed.weight if computed.weight else float("nan")
        self.record(Kind.COMPUTE, update, -1, version, -1, start, now(), self.waited, computed.samples, 0, mean)
        self.waited = 0
        return computed

    # --- alone: no meeting at all ---------------------------------------------------------------------------------

    def _train_alone(self) -> None:
        """`sequential`; and `ceiling`, where every worker does so with batches of its own."""
        home = self.replica_home()
        updates = range(self.number, self.agenda.updates, self.plan.workers)
        self.learner.reader.announce(c for u in updates for c in self.agenda.filled(u))
        for update in updates:
            self._apply(home, update, self._compute(update, self.agenda.filled(update), home.updates))
        self.hand_in(self.values())

    def _apply(self, home: ReplicaHome, update: int, computed: Computed) -> None:
        start, base = now(), home.updates
        self.plan.rule.update(home, Arrival(self.learner.settle(computed)))
        self.record(Kind.APPLY, update, 0, base, home.updates, start, now(), 0, 0, 0, 0.0)
        if self.number == 0:
            self.snapshot(update + 1, self.values)

    def values(self) -> list[Tensor]:
        return [p.detach() for p in self.replica.parameters] + self.replica.moving

    def hand_in(self, values: list[Tensor]) -> None:
        """Leave parameters and moving buffers where the parent finds them."""
        if self.number == 0:
            (shard,), result = self.arena.shape.layout.shards, self.arena.result
            for view, value in zip((*shard.parameter_views(result), *shard.buffer_views(result)), values, strict=True):
                view.copy_(value)

    def replica_home(self) -> ReplicaHome:
        return ReplicaHome(
            self.replica.parameters, self.optimizer, self.job.schedule, self.plan.averaging or self.plan.rule
        )

    # --- by a table: all workers meet in every update ---------------------------------------------------------------

    def _train_by_table(self) -> None:
        meeting, workers = self.plan.meeting, self.plan.workers
        home = self.replica_home()
        table = TableClient(self, meeting, workers)  # type: ignore[arg-type]
        updates = range(self.agenda.updates)
        self.learner.reader.announce(c for u in updates for c in self.agenda.mine(u, self.number))
        if self.plan.averaging is not None:
            self._wander(Wanderer(self.learner, home, self.plan.averaging, workers), table)
            return
        for update in updates:
            computed = self._compute(update, self.agenda.mine(update, self.number), update)
            start = now()
            together, waited, sent = table.meet(update, computed)
            self.record(Kind.MEET, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)
            self._apply(home, update, together)
        self.hand_in(self.values())

    def _wander(self, wanderer: Wanderer, table: TableClient) -> None:
        """Local steps; now and then the replicas meet by the table."""
        meetings = 0
        for update in range(self.agenda.updates):
            computed = self._compute(update, self.agenda.mine(update, self.number), update)
            start = now()
            wanderer.step(computed)
            self.record(Kind.APPLY, update, 0, update, update + 1, start, now(), 0, 0, 0, 0.0)
            if self.plan.meets_after(update, self.agenda.updates):
                start = now()
                total, waited, sent = table.meet(meetings, wanderer.bring())
                wanderer.take(total)
                meetings += 1
                self.record(Kind.MEET, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)
            if self.number == 0:
                self.snapshot(update + 1, wanderer.result)
        self.hand_in(wanderer.result())

    # --- by shards: the server's machines, run by whoever holds the lock --------------------------------------------

    def _train_by_shards(self) -> None:
        worker = Worker(self.number, len(self.shards))
        while (command := worker.command()) is not None:
            worker.answer(self._perform(command))

    def _perform(self, command: Command) -> Action:
        if isinstance(command, Push):
            return self.shards[command.shard].push(command, self.gradients)
        if isinstance(command, Compute):
            computed = self._compute(command.batch, self.agenda.filled(command.batch), self.shards[0].base)
            self.gradients = self.learner.settle(computed)
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
            self.snapshot(finished, self.values)
        return action

    def snapshot(self, updates: int, values: Callable[[], list[Tensor]]) -> None:
        if self.snapshots is None or updates % self.snapshots.every or updates >= self.agenda.updates:
            return
        start = now()
        self.snapshots.write(updates, values())
        self.record(Kind.SNAPSHOT, updates, -1, -1, -1, start, now(), 0, 0, 0, 0.0)


class TableClient:
    """Executes a collective's table through shared memory: to send is to say that a part lies ready in one's payload.

    Payloads are used in turn: nobody writes for meeting n + 2 before everyone has contributed to n + 1, and so is done
    with n.
    """

    def __init__(self, worker: LocalWorker, meeting: Collective, workers: int) -> None:
        self.worker, self.number = worker, worker.number
        self.steps: list[Step] = list(meeting.steps(worker.number, workers))
        arena, layout = worker.arena, worker.arena.shape.layout
        self.offers, self.bells, self.waiter = arena.offers, worker.bells, worker.waiter
        self.payloads = [Payload(layout, flat) for flat in arena.payloads[worker.number]]
        length, size = Payload.length(layout), layout.bytes_per_number
        cuts = segment_cuts(length, meeting.segments(workers), size)
        self.parts = [
            [_both(s.receive, flats[self.number], flats, cuts) for s in self.steps]
            for flats in zip(*arena.payloads, strict=True)
        ]  # [turn][step] -> (mine, theirs)
        self.bytes = sum((cuts[s.send.stop] - cuts[s.send.first]) * size for s in self.steps if s.send)

    def meet(self, number: int, computed: Computed) -> tuple[Computed, int, int]:
        """The meeting of this number: (the sum of all, nanoseconds waited, bytes sent)"""
        turn, waited, offer = number % 2, 0, number * len(self.steps)
        payload = self.payloads[turn]
        payload.write(computed)
        for step, parts in zip(self.steps, self.parts[turn], strict=True):
            offer += 1
            if step.send is not None:
                self.offers[self.number][0] = offer
                self.bells[step.send.other].ring()
            if step.receive is None or parts is None:
                continue
            theirs = self.offers[step.receive.other]
            if theirs[0] < offer:
                waited += self._wait(theirs, offer, step.receive.other)
            mine, received = parts
            if step.reduce:
                mine.add_(received)
            else:
                mine.copy_(received)
        return payload.read(computed.samples), waited, self.bytes

    def _wait(self, theirs: memoryview, offer: int, whom: int) -> int:
        return self.waiter.until(lambda: theirs[0] >= offer, lambda: f"worker {whom}")


def _both(part: Part | None, mine: Tensor, flats: Sequence[Tensor], cuts: list[int]) -> tuple[Tensor, Tensor] | None:
    """A received part in one's own vector and in its sender's."""
    if part is None:
        return None
    span = slice(cuts[part.first], cuts[part.stop])
    return mine[span], flats[part.other][span]


class UnlockedClient:
    """Hogwild: everybody's hands on the same values, without a lock; the optimizer's memory is each worker's own."""

    def __init__(self, worker: LocalWorker, number: int) -> None:
        self.worker, self.number, self.base = worker, number, -1
        self.room = worker.arena.shards[number].newest
        for parameter, view in zip(worker.replica.parameters, self.room.parameters, strict=True):
            parameter.data = view
        self.home = worker.replica_home()

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        start = now()
        self.worker.plan.rule.update(self.home, Arrival(gradients))
        for view, buffer in zip(self.room.buffers, self.worker.replica.moving, strict=True):
            view.copy_(buffer)
        self.worker.record(Kind.APPLY, event.batch, self.number, -1, -1, start, now(), 0, 0, 0, 0.0)
        return Noted()


class ShardClient:
    """One worker's hands on one shard: under the shard's lock it applies its gradient and pulls in one go."""

    def __init__(self, worker: LocalWorker, number: int) -> None:
        self.worker, self.number, self.me = worker, number, worker.number
        self.memory = worker.arena.shards[number]
        layout = worker.arena.shape.layout.shards[number]
        self.lock = RecordLock(worker.arena.locks, number + 1, worker.waiter, f"shard {number}")
        named = dict(worker.replica.module.named_parameters())
        mine = [named[place.name] for place in layout.parameters]
        places = {id(p): n for n, p in enumerate(worker.replica.parameters)}
        self.which = [places[id(p)] for p in mine]
        optimizer = optimizer_over(worker.optimizer, {p: p for p in mine})
        self.home = ShardHome(mine, optimizer, worker.job.schedule, self.memory.rooms)
        self.home.look(self.memory.places.of(self.memory.twin.current, self.me))
        self.moving = worker.replica.moving if number == 0 else []
        self.bytes = 2 * layout.length * worker.arena.shape.layout.bytes_per_number
        self.base = 0  # version 0 was put there by the parent

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        worker, home, memory, rule = self.worker, self.home, self.memory, self.worker.plan.rule
        start = now()
        pulled = home.pulled(rule)
        with self.lock as waited:
            draft = memory.twin.begin()
            action = memory.machine.handle(draft, event)
            if isinstance(action, Apply):
                home.move(*memory.places.move(draft, self.me))
                home.updates = action.version - 1
                rule.update(home, Arrival([gradients[n] for n in self.which], pulled))
                # The server owns the moving buffers and the last push wins; each worker goes on from its own.
                for view, buffer in zip(home.room.buffers, self.moving, strict=True):
                    view.copy_(buffer)
                # Written before the commit: no version without its row. A worker killed between the two leaves a row
                # too many, known by a later one of the same version.
                version = action.version
                worker.record(
                    Kind.APPLY,
                    event.batch,
                    self.number,
                    self.base,
                    version,
                    start,
                    now(),
                    waited,
                    0,
                    self.bytes,
                    0.0,
                )
                memory.twin.commit()
                self.base = version
                return action
        worker.record(Kind.DROP, event.batch, self.number, self.base, -1, start, now(), waited, 0, 0, 0.0)
        return action
