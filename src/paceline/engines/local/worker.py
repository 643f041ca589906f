"""One worker process of the local engine: computes what the algorithm asks for."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.compute.layout import sha256
from paceline.compute.learner import Learner
from paceline.compute.payload import Computed
from paceline.compute.segment import Blueprint
from paceline.core.agenda import Agenda, Chunk
from paceline.data.order import Order
from paceline.data.source import Reader, Source, TensorSource, open_source
from paceline.engines.devices import Placement
from paceline.engines.local.arena import GO, Arena
from paceline.engines.local.lockers import Life, Locker
from paceline.engines.local.pipeline import PipelineWorker
from paceline.engines.local.process import core_wait, die_with_parent, give_back, memory, quicken, tighten
from paceline.engines.local.programme import train_by_programme
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.station import Algorithm, Due, Station
from paceline.engines.transports.shared_memory import SharedTensors, Stopped
from paceline.errors import JobError, NotFinite, PacelineError, WaitedTooLong
from paceline.failure import Place, users_traceback
from paceline.job import Job
from paceline.plan import Plan
from paceline.trace import Kind


@dataclass
class Assignment:
    """What a worker is told. Pickled with cloudpickle, so functions of a notebook travel too."""

    number: int
    job: Job  # without its data
    plan: Plan
    agenda: Agenda
    moving: tuple[str, ...]
    placement: Placement
    data: object  # a Dataset or a function that makes one; None when the data are shared tensors
    samples: int
    initial_sha256: str
    scratch: Path | None  # a folder that the parent takes away at the end
    deadline: float
    life: Life
    blueprint: Blueprint | None = None  # of a pipeline; `job.model` is then a skeleton with what this worker holds


def main(
    box: list[bytes],  # the assignment, pickled: taken out, since whoever called keeps what it called with
    scarce: bool,  # memory is
    arena: Arena,
    tensors: SharedTensors | None,
    snapshots: SnapshotFile | None,
    locker: Locker | None,
    pipe: Connection,
) -> None:
    """The process's whole life: ready, go, train, finished; or failed, with the traceback."""
    for each in (signal.SIGINT, signal.SIGTERM):  # also where they are sent to all: the parent decides
        signal.signal(each, signal.SIG_IGN)
    # The forkserver ends with the parent, unless a worker too holds the pipe that tells; and a worker ends with the
    # forkserver.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    die_with_parent()
    tighten() if scarce else quicken()
    give_back()
    before = memory("RssAnon") - len(box[0])
    number, worker = -1, None  # type: int, LocalWorker | PipelineWorker | None
    try:
        assignment: Assignment = pickle.loads(box.pop())
        number = assignment.number
        torch.set_num_threads(assignment.plan.threads)
        if assignment.scratch is not None:
            multiprocessing.current_process()._config["tempdir"] = str(assignment.scratch)  # type: ignore[attr-defined]
        source = TensorSource(tensors.open()) if tensors else open_source(assignment.data, assignment.job.seed)
        kind = LocalWorker if assignment.blueprint is None else PipelineWorker
        worker = kind(assignment, arena, source, snapshots, locker, lambda: pipe.send(("kept",)))
        give_back()  # so that the most memory there will have been is what the training took
        pipe.send(("ready",))
        worker.waiter.until(lambda: bool(arena.control[GO]), lambda: "the others to start")
        waited = core_wait()
        worker.train()
        arena.ended[number] = now()
        waited = core_wait() - waited
        if not worker.peak:
            worker.look_back()
        pipe.send(("finished", waited, worker.peak - before))
    except Stopped:
        pass
    except BaseException as error:
        update = arena.doing[number] if number >= 0 else -1
        pipe.send(("failed", Account.of(error, worker.place(update) if worker else Place(update))))
    finally:
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # shared memory has exported views; the kernel takes it all back


@dataclass
class Account:
    """Of what a worker failed with."""

    what: str
    place: Place
    traceback: str
    advice: str
    waited_for: str
    alone: bool  # it says all there is to say
    when: int

    @staticmethod
    def of(error: BaseException, place: Place) -> Account:
        what, advice = f"{type(error).__name__}: {error}".rstrip(": "), ""
        if not isinstance(error, PacelineError):
            what = what.splitlines()[0]  # the traceback has it all
        if isinstance(error, NotFinite):
            what, advice = f"the loss is {error.loss}", error.REMEDY
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            advice = "memory has run out: a smaller batch_size, or fewer workers"
        return Account(
            what=what,
            place=place,
            traceback="" if isinstance(error, PacelineError) else users_traceback(error),
            advice=advice,
            waited_for=error.for_whom if isinstance(error, WaitedTooLong) else "",
            alone=isinstance(error, WaitedTooLong),
            when=now(),
        )


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
