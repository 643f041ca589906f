"""Split layers in a virtual world: every chunk is computed and exchanged on one clock.

The workers of a group take equal parts of a chunk's seconds, and meet in every movement.
"""

from __future__ import annotations

import math

from paceline.core.agenda import Agenda
from paceline.core.splits.derivation import Program
from paceline.engines.arithmetic.splits import SplitArithmetic
from paceline.engines.virtual.exchange import exchange
from paceline.engines.virtual.rows import Rows
from paceline.engines.virtual.world import ComputeTimes, World, nanoseconds
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods.split_layers import DATA, INSIDE, SplitLayers
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind, Row

ACTIVATIONS, MOVEMENTS = 1024, 4  # bytes per sample and movement, and movements, where there is no model to measure


def run_split(
    plan: Plan, method: SplitLayers, agenda: Agenda, world: World, size: int, sums: SplitArithmetic | None, rows: Rows
) -> None:
    """Run a plan that splits layers; `size` is that of all gradients."""
    run = _Run(plan, method, agenda, world, size, sums, rows)
    for update in range(agenda.updates):
        run.make(update)


class _Run:
    """One simulated run."""

    def __init__(
        self, plan: Plan, method: SplitLayers, agenda: Agenda, world: World, size: int, sums: SplitArithmetic | None,
        rows: Rows,
    ) -> None:  # fmt: skip
        self.method, self.agenda, self.world, self.size, self.sums = method, agenda, world, size, sums
        self.mesh = method.mesh(plan.workers)
        self.compute_times, self.rows = ComputeTimes(world, plan.workers), rows
        #: When each worker is ready for what comes next, in seconds.
        self.ready = [0.0] * plan.workers

    def make(self, update: int) -> None:
        """Make one update: groups compute their chunks, replicas add up, every worker steps its parts."""
        shares = []
        for replica, group in enumerate(self.mesh.groups(INSIDE)):
            loss = math.nan
            if self.sums is not None:
                shares.append(self.sums.compute(replica, update))
                loss = shares[-1][0].mean
            self._chunks(update, replica, group, loss)
        if self.mesh.size(DATA) > 1:
            for group in self.mesh.groups(DATA):
                self._add_up(update, group)
        if self.sums is not None:
            self.sums.apply(update, shares)
            self.sums.snapshots.keep(update + 1, max(self.ready))
        for worker in range(self.mesh.workers):
            start = self.ready[worker]
            self.ready[worker] += self.world.update
            times = nanoseconds(start), nanoseconds(self.ready[worker])
            self.rows.add(Row(Kind.APPLY, worker, update, 0, update, update + 1, *times))

    def _chunks(self, update: int, replica: int, group: tuple[int, ...], loss: float) -> None:
        """Time the chunks of one replica: all of its workers wait for the slowest in every movement."""
        chunks = self.agenda.mine(update, replica)
        samples = sum(chunk.samples for chunk in chunks)
        starts = {worker: self.ready[worker] for worker in group}
        ends = {w: starts[w] + self.compute_times.draw(w, samples) / len(group) for w in group}
        for worker, end in ends.items():
            if self.world.deaths.get(worker, math.inf) < end:
                advice = "the plan cannot continue without it"
                raise WorkerDied(Failure(worker, "died, as its world says", Position(update), advice=advice))
        sent = [sum(self._bytes(place, len(group), chunk.samples) for chunk in chunks) for place in range(len(group))]
        exchanges = sum(self._exchanges(chunk.samples) for chunk in chunks) if len(group) > 1 else 0
        together = max(ends.values()) + exchanges * self.world.latency + max(sent) / self.world.bandwidth
        for place, worker in enumerate(group):
            times = nanoseconds(starts[worker]), nanoseconds(ends[worker])
            counted = 0 if place else samples
            self.rows.add(Row(Kind.COMPUTE, worker, update, -1, update, -1, *times, samples=counted, value=loss))
            if len(group) > 1:
                waited = nanoseconds(max(ends.values()) - ends[worker])
                times = times[1], nanoseconds(together)
                self.rows.add(Row(Kind.COLLECTIVE, worker, update, -1, update, -1, *times, waited, 0, sent[place], 0.0))
            self.ready[worker] = together

    def _program(self, samples: int) -> Program | None:
        programs = self.sums.blueprint.programs if self.sums is not None else {}
        return next((each for each in programs.values() if _samples(each) == samples), None)

    def _bytes(self, place: int, workers: int, samples: int) -> int:
        program = self._program(samples)
        if program is None:
            return MOVEMENTS * ACTIVATIONS * samples * (workers - 1) // workers
        assert self.sums is not None
        return sum(program.numbers(place).values()) * self.sums.setup.layout.bytes_per_number

    def _exchanges(self, samples: int) -> int:
        program = self._program(samples)
        if program is None:
            return MOVEMENTS
        moves = (step for step in program.steps if step.value)
        return sum(len(step.movement.exchanges(program.shapes[step.value], program.workers)) for step in moves)

    def _add_up(self, update: int, group: tuple[int, ...]) -> None:
        """Time the all-reduce between the replicas, of one place's part of the gradient."""
        arrived = [self.ready[worker] for worker in group]
        size = self.size // self.mesh.size(INSIDE)
        ready, waited, sent = exchange(self.method.collective, arrived, size, self.world)
        for place, worker in enumerate(group):
            self.ready[worker] = ready[place]
            times = nanoseconds(arrived[place]), nanoseconds(ready[place]), nanoseconds(waited[place])
            self.rows.add(Row(Kind.COLLECTIVE, worker, update, -1, update, -1, *times, 0, sent[place], 0.0))


def _samples(program: Program) -> int:
    return next((shape[0] for shape in (program.shapes[name] for name in program.inputs) if shape), 0)
