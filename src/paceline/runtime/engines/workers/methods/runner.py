"""PlanRunner: everything that a method needs of a worker with the whole model, batches that are read ahead, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns as now
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from paceline.algorithms.agenda import Agenda, Chunk, Forecast
from paceline.algorithms.rules import Averaging, Rule
from paceline.algorithms.rules.gradients import Plain
from paceline.algorithms.server.messages import Compute, Lease
from paceline.algorithms.server.worker import Program
from paceline.plans.plan import Plan
from paceline.runtime.engines.workers.group import Group
from paceline.runtime.engines.workers.worker_context import Meter, StateWriter, Station, WorkerContext
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Reader
from paceline.training.gradients.encoder import encoder_of
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import Fragments, Layout
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.store import LocalStore, restore_store, state_of_store
from paceline.training.parameters.worker_state import WorkerState


class GradientRequest(NamedTuple):
    """A gradient that a method requests."""

    #: The update, or the task of a lease.
    update: int
    chunks: list[Chunk]
    #: The version of the parameters to compute it from.
    version: int
    #: The update has evaluated these chunks before, so that their samples count no more.
    again: bool = False


Walk = Generator[GradientRequest, GradientSum | None, None]


def served(
    program: Program,
    compute: Callable[[Lease], Generator[GradientRequest, GradientSum | None, Lease | None]],
    answers: Mapping[type, Callable[[Any], object]],
) -> Walk:
    """Run the program of a worker that pushes to servers; requests the gradients, which its driver computes.

    `compute` returns the lease whose gradient the worker has then; None where no more gradients will come.
    """
    answer: Any = None
    while True:
        try:
            command = program.send(answer)
        except StopIteration:
            return
        if not isinstance(command, Compute):
            answer = answers[type(command)](command)
        elif (answer := (yield from compute(command.lease))) is None:
            return


class Stepped(Protocol):
    """A replica that a gradient steps."""

    def step(self, computed: GradientSum) -> None: ...


class PlanRunner(WorkerContext):
    """A worker's context with its replica, optimizer and encoder, and the group that it keeps step with."""

    def __init__(
        self,
        station: Station,
        plan: Plan,
        agenda: Agenda,
        learner: Learner,
        optimizer: Optimizer,
        layout: Layout,
        group: Group,
    ) -> None:
        super().__init__(station, plan, agenda)
        self.layout, self.group = layout, group
        self.learner, self.replica, self.job, self.optimizer = learner, learner.replica, learner.replica.job, optimizer
        self.fragments = Fragments.of(layout, plan.fragments)
        self.encoder = encoder_of(plan.codec, self.fragments.layout, self.replica)
        self.meter = Meter(self, optimizer)
        self.state_writer = StateWriter(self)
        #: The gradient that is being computed, or was computed last.
        self.due = GradientRequest(-1, [], -1)
        #: Nanoseconds that this worker has waited at the gate and not yet written to the trace.
        self.waited = 0
        #: Returns what another worker needs to go on where this one is, between two updates.
        self.state: Callable[[], WorkerState] = lambda: self.state_writer.found or WorkerState()

    def measure(self, gradients: Sequence[Tensor | None]) -> None:
        """Measure this worker from time to time; a worker with parts of layers does not know the gradient's norm."""
        measured = gradients if self.plan.traits.whole_model else []
        self.meter.before_step(measured, self.shared.doing[0])

    def updates_ahead(self, first: int = 0, step: int = 1) -> range:
        """Return the updates that this worker has yet to make: from `first`, every `step`-th."""
        start = self.resume_point.updates
        return range(start + (first - start) % step, self.agenda.updates, step)

    def local_store(self, rule: Rule | Averaging | None = None) -> LocalStore:
        """Return a store of the worker's own parameters, with the user's optimizer."""
        return self.replica.local_store(self.optimizer, rule or Plain())

    def resume(self, store: LocalStore) -> Callable[[], WorkerState]:
        """Restore the state of a resumed run; return a function that gives this worker's state for a checkpoint."""
        if (worker_state := self.state_writer.found) is not None:
            self.replica.restore(worker_state)
            restore_store(store, worker_state)
            if self.encoder is not None:
                self.encoder.restore(worker_state)
        agrees, group = self.plan.traits.agrees, self.group
        self.state = lambda: self.replica.worker_state() | state_of_store(store)
        return lambda: WorkerState() if agrees and not group.leads else self.state()

    def begin_from(self, updates: int, state: WorkerState) -> None:
        """Begin where another worker is, after so many updates; it has no state before the first one."""
        self.resume_point = replace(self.resume_point, updates=updates, resumed=True)
        if state.tensors:
            self.state_writer.found = state

    def snapshot(self, updates: int, values: Callable[[], list[Tensor]]) -> None:
        self.host.snapshot(self, updates, values)

    def applied(self, update: int, base: int, version: int, start: int) -> None:
        """Write the row of a step of this worker's own parameters."""
        self.record(Kind.APPLY, update, 0, base, version, start, now(), 0, 0, 0, 0.0)

    def step(self, replica: Stepped, update: int, version: int, gradient: GradientSum) -> None:
        """Step a replica by a gradient, which makes this version of its parameters."""
        start = now()
        replica.step(gradient)
        self.applied(update, version - 1, version, start)

    def exchanged(self, update: int, start: int, waited: int, sent: int) -> None:
        """Write the row of a collective."""
        self.record(Kind.COLLECTIVE, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)

    def values(self) -> list[Tensor]:
        return self.replica.values()

    def write_result(self, values: list[Tensor]) -> None:
        """Write parameters and moving buffers into the shared result."""
        self.measure_memory()
        if (result := self.shared.result) is not None:
            (shard,) = self.layout.shards
            for view, value in zip((*shard.parameter_views(result), *shard.buffer_views(result)), values, strict=True):
                view.copy_(value)


# Reading ahead: loader processes read the batches that a worker will probably compute next.
#
# Where the plan fixes what each worker computes, its chunks are announced once. Where a desk leases batches to workers
# one after another, they are forecast (`algorithms.forecast`) at each lease. A wrong forecast costs time and never
# changes a result.


class ReadAhead:
    """Announces to a worker's reader which chunks it will need."""

    def __init__(self, reader: Reader, runner: PlanRunner, given_out: int | None = None) -> None:
        """`given_out` is how many batches a desk has leased so far; None where the plan fixes what workers compute."""
        self.reader, self.agenda, self.lease = reader, runner.agenda, -1
        self.forecast: Forecast | None = None
        if not reader.ahead:
            return  # no loader processes: batches are read when they are asked for
        if given_out is None:
            reader.announce(_known(runner))
            return
        self.forecast = Forecast(given_out + runner.number, runner.plan.workers, self.agenda.leases)
        reader.announce(_chunks(self.agenda, self.forecast.coming()))

    def computing(self, task: int) -> None:
        """Make a new forecast if this task, which the worker is about to compute, is the first of a lease."""
        if self.forecast is None or (lease := self.agenda.lease(task)) == self.lease:
            return
        self.lease = lease
        self.forecast.leased(lease)
        self.reader.announce(_chunks(self.agenda, itertools.chain([lease], self.forecast.coming())))


def ddp_chunks(agenda: Agenda, update: int, worker: int) -> list[Chunk]:
    """Return a worker's chunks under DDP: at least one, since every rank communicates in each backward."""
    return agenda.mine(update, worker) or agenda.filled(update)[:1]


def _known(runner: PlanRunner) -> Iterator[Chunk]:
    """Yield the chunks of a worker whose plan fixes what it computes."""
    agenda, number = runner.agenda, runner.number
    if not runner.plan.traits.exchanges:
        return (c for u in runner.updates_ahead(number, runner.plan.workers) for c in agenda.filled(u))
    if not runner.plan.traits.traced:  # PyTorch's own code
        return (c for u in runner.updates_ahead() for c in ddp_chunks(agenda, u, number))
    return (c for u in runner.updates_ahead() for c in runner.group.coming(u) if c.samples)


def _chunks(agenda: Agenda, leases: Iterable[int]) -> Iterator[Chunk]:
    return (c for lease in leases for task in agenda.tasks(lease) for c in agenda.task(task))
