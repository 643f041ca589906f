"""A worker of the local engine that holds the whole model: it computes what the method of its plan requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns as now

from torch import Tensor

from paceline.core.agenda import Chunk
from paceline.data.order import Order
from paceline.data.source import Reader, Source
from paceline.engines.local.arena import ABORT, Arena
from paceline.engines.local.assignment import Assignment
from paceline.engines.local.methods import WALKS, walk_of
from paceline.engines.local.methods.coordinated import train_coordinated
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.engines.local.process import die_with_parent
from paceline.engines.local.read_ahead import ReadAhead
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.state_buffers import StateBuffer
from paceline.engines.local.worker_context import WorkerContext
from paceline.errors import JobError
from paceline.errors.failure import Position
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum
from paceline.parameters.layout import sha256
from paceline.plans.methods.coordinated import Coordinated
from paceline.plans.methods.native import NativeDdp
from paceline.runs.trace import Kind


class WorkerProcess:
    """`Host` of a worker in a process that the local engine started."""

    def __init__(self, arena: Arena, snapshots: SnapshotFile | None) -> None:
        self.arena, self.snapshots = arena, snapshots

    def cancelled(self) -> bool:
        return bool(self.arena.control[ABORT])

    def ensure_trace_space(self, worker: WorkerContext) -> None:
        worker.waiter.until(lambda: not worker.trace.full, lambda: "the parent to read the trace")

    def snapshot(self, worker: WorkerContext, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """Write a snapshot if one is due after so many updates."""
        if self.snapshots is None or not worker.agenda.reaches(updates, self.snapshots.every):
            return
        start = now()
        self.snapshots.write(updates, values())
        worker.record(Kind.SNAPSHOT, updates, -1, -1, -1, start, now(), 0, 0, 0, 0.0)


class LocalWorker:
    """A worker process with a replica of the whole model."""

    def __init__(
        self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None, notify: Callable[[], None],
    ) -> None:  # fmt: skip
        self.given = given
        #: An object whose destructor must not run before the process ends.
        self.kept_alive: object = None
        job = given.job
        module = job.make_model()
        if sha256(module) != given.initial_sha256:
            raise JobError(
                "model= makes another model in this process than in the parent's; let all its random numbers come "
                "from torch, random or NumPy's global generator, which are seeded, or give the module itself"
            )
        replica = given.placement.replica(given.number, job, module.train(), given.moving)
        optimizer = job.make_optimizer(module, replica.parameters)
        order = Order(given.samples, job.seed, job.shuffle, given.agenda.cuts)
        self.reader = Reader(source, order, job.loader_workers, die_with_parent, given.plan.traits.repeats)
        self.runner = PlanRunner(
            given.number, arena, given.plan, given.agenda, Learner(replica, self.reader), optimizer, given.deadline,
            replace(given.resume_point, state_buffer=state_buffer, notify=notify), WorkerProcess(arena, snapshots),
            given.placement.library,
        )  # fmt: skip
        self.context: WorkerContext = self.runner
        #: The gradients that the method requests; None where it decides itself when to compute.
        self.walk = walk_of(self.runner) if type(given.plan.method) in WALKS else None
        #: The gradient that is being computed, or was computed last.
        self.due = GradientRequest(-1, [], -1)

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with its version and samples if they are known."""
        if self.due.update < 0 or self.due.update // self.runner.agenda.shares != update:
            return Position(update)
        samples = [n for chunk in self.due.chunks for n in self.reader.order.indices(chunk).tolist()]
        return Position(update, self.due.version, samples)

    def train(self) -> None:
        """Train by the method of the plan."""
        given, method = self.given, self.given.plan.method
        self.read_ahead = ReadAhead(self.reader, self.runner)
        if given.placement.library:
            from paceline.engines.local.process_group import join

            assert given.scratch is not None
            join(given.placement.library, given.scratch / "group", given.number, given.plan.workers, given.deadline)
        if isinstance(method, NativeDdp):
            from paceline.engines.local.methods.ddp import train_by_ddp  # imports torch.distributed: half a second

            self.kept_alive = train_by_ddp(self.runner, self.reader, given.deadline)
        elif isinstance(method, Coordinated):
            train_coordinated(self.runner, method, self.compute)
        else:
            assert self.walk is not None
            self._follow(self.walk)

    def _follow(self, walk: Walk) -> None:
        """Compute the gradients that the method requests, until it ends."""
        request = next(walk, None)
        while request is not None:
            self.read_ahead.computing(request.update)
            computed = self.compute(*request)
            try:
                request = walk.send(computed)
            except StopIteration:
                break

    def compute(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> GradientSum:
        """Compute the encoded gradient of these chunks; `again` where an update evaluates them once more."""
        runner = self.runner
        runner.arena.doing[runner.number] = update // runner.agenda.shares
        self.due = GradientRequest(update, chunks, version)
        start = now()
        computed = runner.encoder.sent(runner.learner.compute(chunks))
        samples = 0 if again else computed.samples
        runner.record(Kind.COMPUTE, update, -1, version, -1, start, now(), runner.waited, samples, 0, computed.mean)
        runner.waited = 0
        return computed
