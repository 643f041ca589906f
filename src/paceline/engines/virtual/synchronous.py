"""A method without a server in a virtual world: every update is computed, exchanged and applied on one clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.core.agenda import Agenda, Chunk
from paceline.core.collectives import Collective
from paceline.engines.arithmetic.synchronous import CoordinatedWorkers, SynchronousArithmetic
from paceline.engines.virtual.exchange import exchange
from paceline.engines.virtual.world import ComputeTimes, World, nanoseconds
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods import Synchronous
from paceline.plans.methods.local_steps import averages_after
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind, Row


def run_synchronous(
    plan: Plan, method: Synchronous, agenda: Agenda, world: World, size: int, sums: SynchronousArithmetic | None
) -> list[Row]:
    """Run a method without a server and return the rows of its trace."""
    run = _Run(plan, method, agenda, world, size, sums)
    for update in range(agenda.updates):
        run.make(update)
    return run.rows


class _Run:
    """One simulated run."""

    def __init__(
        self,
        plan: Plan,
        method: Synchronous,
        agenda: Agenda,
        world: World,
        size: int,
        sums: SynchronousArithmetic | None,
    ) -> None:
        self.plan, self.agenda, self.world, self.sums = plan, agenda, world, sums
        self.collective, self.averaging = method.collective, method.averaging
        self.size = round(plan.wire.size(size))
        self.compute_times, self.rows = ComputeTimes(world, plan.workers), list[Row]()
        #: When each worker is ready for what comes next, in seconds.
        self.ready = [0.0] * plan.workers
        if isinstance(sums, CoordinatedWorkers):
            sums.on_exchange = self._evaluate_again

    def make(self, update: int) -> None:
        """Make one update: every worker computes, exchanges where an exchange is due, and steps."""
        plan, shares = self.plan, []
        parts = self._parts(update)
        for worker, chunks in parts:
            samples, loss = sum(c.samples for c in chunks), math.nan
            times = self._compute(worker, samples, update)
            if self.sums is not None and (worker == 0 or self.collective is not None):
                shares.append(self.sums.compute(worker, chunks))
                loss = shares[-1].mean
            self.rows.append(Row(Kind.COMPUTE, worker, update, -1, update, -1, *times, samples=samples, value=loss))
        if self.collective is not None and self._due(update):
            self._exchange(self.collective, self.size, update)
        if plan.traits.repeats and self.sums is None:
            # Without numbers to decide by, the first trial of the line search is taken.
            self._evaluate_again(update, self.size, [])
            self._evaluate_again(update, self.size, [math.nan] * plan.workers)
        if shares and self.sums is not None:
            self.sums.apply(update, shares)
            self.sums.snapshots.keep(update + 1, max(self.ready))
        for worker, _ in parts:
            start = self.ready[worker]
            self.ready[worker] += self.world.update
            times = nanoseconds(start), nanoseconds(self.ready[worker])
            self.rows.append(Row(Kind.APPLY, worker, update, 0, update, update + 1, *times))

    def _parts(self, update: int) -> Sequence[tuple[int, list[Chunk]]]:
        """(worker, its chunks) of an update; workers that exchange nothing take whole updates one after another."""
        if self.collective is None:
            return [(update % self.plan.workers, self.agenda.filled(update))]
        return [(worker, self.agenda.mine(update, worker)) for worker in range(self.plan.workers)]

    def _due(self, update: int) -> bool:
        return self.averaging is None or averages_after(self.averaging, update, self.agenda.updates)

    def _evaluate_again(self, update: int, size: int, losses: list[float]) -> None:
        """Time the exchanges and evaluations that follow an update's first evaluation under a coordinator."""
        for worker, loss in enumerate(losses):
            samples = sum(c.samples for c in self.agenda.mine(update, worker))
            times = self._compute(worker, samples, update)
            self.rows.append(Row(Kind.COMPUTE, worker, update, -1, update, -1, *times, value=loss))
        assert self.collective is not None
        self._exchange(self.collective, size, update)

    def _compute(self, worker: int, samples: int, update: int) -> tuple[int, int]:
        """Move a worker's clock over a computation: when it began and ended, in nanoseconds."""
        start = self.ready[worker]
        self.ready[worker] += self.compute_times.draw(worker, samples)
        if self.world.deaths.get(worker, math.inf) < self.ready[worker]:
            advice = "the plan cannot continue without it"
            raise WorkerDied(Failure(worker, "died, as its world says", Position(update), advice=advice))
        return nanoseconds(start), nanoseconds(self.ready[worker])

    def _exchange(self, collective: Collective, size: int, update: int) -> None:
        """Move every worker's clock to the end of the collective; one row each."""
        arrived = list(self.ready)
        self.ready[:], waited, sent = exchange(collective, arrived, size, self.world)
        for worker, begin in enumerate(arrived):
            times = nanoseconds(begin), nanoseconds(self.ready[worker]), nanoseconds(waited[worker])
            self.rows.append(Row(Kind.COLLECTIVE, worker, update, -1, update, -1, *times, 0, sent[worker], 0.0))
