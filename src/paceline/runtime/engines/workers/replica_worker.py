"""A worker with a replica of the whole model: it computes what the walk of its method requests.

It runs in a process of the local engine (`worker`) and in one of a cluster (`engines.cluster.worker`). They differ in
what it shares with others, which is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as now

from paceline.algorithms.agenda import Chunk
from paceline.errors import JobError
from paceline.errors.failure import Position
from paceline.runtime.engines.workers.assignment import Assignment
from paceline.runtime.engines.workers.group import Group
from paceline.runtime.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.runtime.engines.workers.performer import follow
from paceline.runtime.engines.workers.worker_context import Station
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Source
from paceline.training.gradients.learner import Learner, stated_weight
from paceline.training.gradients.partial_sums import PartialSums
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.beginnings import begin_from
from paceline.training.parameters.layout import Layout, sha256


def learner_of(assignment: Assignment, source: Source, repeats: bool = False) -> Learner:
    """Make the replica of a worker, with its data.

    Raises:
        JobError: the model is another one than the parent's, whose parameters this process does not have.
    """
    job = assignment.job
    module = job.make_model()
    if sha256(module) != assignment.initial_sha256:
        if assignment.initial is None:
            raise JobError(
                "model= makes another model in this process than in the parent's; let all its random numbers come "
                "from torch, random or NumPy's global generator, which are seeded, or give the module itself"
            )
        assignment.note = begin_from(module, assignment.initial.open())
    replica = assignment.placement.replica(assignment.number, job, module.train(), assignment.moving)
    return Learner(replica, assignment.reader(source, repeats))


class ReplicaWorker:
    """A replica with its data, its optimizer and its runner."""

    def __init__(
        self, assignment: Assignment, source: Source, layout: Layout, station: Station, group: Group, repeats: bool
    ) -> None:
        learner = learner_of(assignment, source, repeats)
        if assignment.plan.canonical:
            chunks, number = assignment.plan.canonical, assignment.number
            learner.partial_sums = PartialSums(layout, chunks, number, group.paces)
        replica = learner.replica
        optimizer = assignment.job.make_optimizer(replica.module, replica.parameters)
        assert learner.reader is not None
        self.reader = learner.reader
        self.runner = PlanRunner(station, assignment.plan, assignment.agenda, learner, optimizer, layout, group)
        learner.observe = self.runner.measure
        #: Computes the sums over some chunks; a cluster's worker may have helpers.
        self.sums: Callable[[list[Chunk]], GradientSum] = learner.compute

    def position(self, update: int) -> Position:
        """Return the update that the worker is in, with its version and samples if they are known."""
        due = self.runner.due
        if due.update < 0 or due.update // self.runner.agenda.shares != update:
            return Position(update)
        samples = [n for chunk in due.chunks for n in self.reader.order.indices(chunk).tolist()]
        return Position(update, due.version, tuple(samples))

    def follow(self, walk: Walk, computing: Callable[[int], None]) -> None:
        """Compute the gradients that a walk requests, until it ends; `computing` is called with each update."""

        def compute(request: GradientRequest) -> GradientSum:
            computing(request.update)
            return self.compute(*request)

        follow(walk, compute)

    def compute(self, update: int, chunks: list[Chunk], version: int, again: bool = False) -> GradientSum:
        """Compute the gradient of these chunks; `again` where an update evaluates them once more."""
        return self.compute_more(update, chunks, version, sum(c.samples for c in chunks) if again else 0)

    def compute_more(self, update: int, chunks: list[Chunk], version: int, counted: int) -> GradientSum:
        """Compute a gradient of which so many samples are in the trace already."""
        runner = self.runner
        runner.doing(update // runner.agenda.shares)
        runner.due = GradientRequest(update, chunks, version)
        start = now()
        computed = self.sums(chunks)
        samples = max(0, computed.samples - counted)
        weight = stated_weight(runner.job, computed)
        row = (update, -1, version, -1, start, now(), runner.waited, samples, 0, computed.mean)
        runner.record(Kind.COMPUTE, *row, weight=weight)
        runner.waited = 0
        return computed
