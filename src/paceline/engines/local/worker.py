"""A worker of the local engine that has the whole model: it computes what its plan's method asks for."""

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
from paceline.engines.local.methods import walk_of
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
from paceline.plans.methods.server import GatheringServer
from paceline.runs.trace import Kind


class WorkerProcess:
    """`Host` of a worker in a process that the local engine started."""

    def __init__(self, arena: Arena, snapshots: SnapshotFile | None) -> None:
        self.arena, self.snapshots = arena, snapshots

    def cancelled(self) -> bool:
        return bool(self.arena.control[ABORT])

    def make_room(self, worker: WorkerContext) -> None:
        worker.waiter.until(lambda: not worker.trace.full, lambda: "the parent to read the trace")

    def snapshot(self, worker: WorkerContext, updates: int, values: Callable[[], list[Tensor]]) -> None:
        if self.snapshots is None or not worker.agenda.reaches(updates, self.snapshots.every):
            return
        start = now()
        self.snapshots.write(updates, values())
        worker.record(Kind.SNAPSHOT, updates, -1, -1, -1, start, now(), 0, 0, 0, 0.0)


class LocalWorker:
    def __init__(
        self, given: Assignment, arena: Arena, source: Source, snapshots: SnapshotFile | None,
        state_buffer: StateBuffer | None, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self.given = given
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
        repeats = isinstance(given.plan.method, Coordinated | GatheringServer)
        self.reader = Reader(source, order, job.loader_workers, die_with_parent, repeats)
        self.runner = PlanRunner(
            given.number, arena, given.plan, given.agenda, Learner(replica, self.reader), optimizer, given.deadline,
            replace(given.life, state_buffer=state_buffer, wake=wake), WorkerProcess(arena, snapshots),
            given.placement.library,
        )  # fmt: skip
        self.context: WorkerContext = self.runner
        whole = isinstance(given.plan.method, NativeDdp | Coordinated)
        #: What the method asks for; None where it trains this process as a whole.
        self.walk = None if whole else walk_of(self.runner)
        #: What is computed now, or was last.
        self.due = GradientRequest(-1, [], -1)

    def position(self, update: int) -> Position:
        """Where the worker is, as far as it is known: what it computes, or only the update."""
        if self.due.update < 0 or self.due.update // self.runner.agenda.shares != update:
            return Position(update)
        samples = [n for chunk in self.due.chunks for n in self.reader.order.indices(chunk).tolist()]
        return Position(update, self.due.version, samples)

    def train(self) -> None:
        given, method = self.given, self.given.plan.method
        self.read_ahead = ReadAhead(self.reader, self.runner)
        if given.placement.library:
            from paceline.engines.local.process_group import join

            assert given.scratch is not None
            join(given.placement.library, given.scratch / "group", given.number, given.plan.workers, given.deadline)
        if isinstance(method, NativeDdp):
            from paceline.engines.local.methods.ddp import train_by_ddp  # half a second that others need not pay

            train_by_ddp(self, method)
        elif isinstance(method, Coordinated):
            train_coordinated(self, method)
        else:
            assert self.walk is not None
            self._follow(self.walk)

    def _follow(self, walk: Walk) -> None:
        """Compute what the method asks for, until it has ended."""
        request = next(walk, None)
        while request is not None:
            self.read_ahead.asked(request.update)
            computed = self.compute(*request)
            try:
                request = walk.send(computed)
            except StopIteration:
                break

    def compute(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> GradientSum:
        """The encoded gradient of these chunks; `again` where an update evaluates them once more."""
        runner = self.runner
        runner.arena.doing[runner.number] = update // runner.agenda.shares
        self.due = GradientRequest(update, chunks, version)
        start = now()
        computed = runner.encoder.sent(runner.learner.compute(chunks))
        samples = 0 if again else computed.samples
        runner.record(Kind.COMPUTE, update, -1, version, -1, start, now(), runner.waited, samples, 0, computed.mean)
        runner.waited = 0
        return computed
