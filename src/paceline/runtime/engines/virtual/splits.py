"""Split layers in a virtual world: every chunk is computed and exchanged on one clock.

The workers of a group take equal parts of a chunk's seconds, and meet in every movement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.splits.derivation import Program
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods.program import Gradient, OptimizerStep, Sum, all_of, run
from paceline.plans.methods.split_layers import DATA, INSIDE, SplitLayers
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.splits import SplitArithmetic
from paceline.runtime.engines.virtual.rows import Rows
from paceline.runtime.engines.virtual.world import ComputeTimes, World, exchange, nanoseconds
from paceline.runtime.runs.trace import Kind, Row
from paceline.training.gradients.learner import stated_weight
from paceline.training.gradients.payload import GradientSum

ACTIVATIONS, MOVEMENTS = 1024, 4  # bytes per sample and movement, and movements, where there is no model to measure


def run_split(
    plan: Plan, method: SplitLayers, agenda: Agenda, world: World, size: int, sums: SplitArithmetic | None, rows: Rows
) -> None:
    """Run a plan that splits layers; `size` is that of all gradients."""
    team = SplitTeam(plan, method, agenda, world, size, sums, rows)
    run(method.program(team), team.answers)


class SplitTeam:
    """The `Worker` of a program that stands for all of them, with the answers to its effects."""

    rank = first = 0

    def __init__(
        self,
        plan: Plan,
        method: SplitLayers,
        agenda: Agenda,
        world: World,
        size: int,
        sums: SplitArithmetic | None,
        rows: Rows,
    ) -> None:
        self.method, self.agenda, self.world, self.size, self.sums = method, agenda, world, size, sums
        self.mesh = method.mesh(plan.workers)
        self.compute_times, self.rows = ComputeTimes(world, range(plan.workers)), rows
        #: When each worker is ready for what comes next, in seconds.
        self.ready = [0.0] * plan.workers
        self.workers, self.last = plan.workers, agenda.updates
        self.answers: dict[type, Callable[..., Any]] = {
            Gradient: self.gradient,
            Sum: self.sum,
            OptimizerStep: self.step,
        }

    def updates(self, *, dealt: bool = False, until: Callable[[range], range] = all_of) -> Iterator[int]:
        yield from range(self.last)

    def gradient(self, update: int, version: int, whole: bool, again: bool) -> list[GradientSum]:
        """Let each replica compute its chunks."""
        shares = self.sums.gradient(update, version) if self.sums is not None else []
        for replica, group in enumerate(self.mesh.groups(INSIDE)):
            loss, weight = math.nan, -1.0
            if self.sums is not None:
                first = shares[replica * len(group)]
                loss, weight = first.mean, stated_weight(self.sums.setup.job, first)
            self._chunks(update, group, loss, weight)
        return shares

    def sum(self, update: int, shares: list[GradientSum]) -> list[GradientSum]:
        """Add up between the replicas."""
        for group in self.mesh.groups(DATA):
            self._add_up(update, group)
        return self.sums.sum(update, shares) if self.sums is not None else shares

    def step(self, update: int, version: int, shares: list[GradientSum]) -> None:
        """Let every worker step its parts."""
        if self.sums is not None:
            self.sums.step(update, version, shares)
            self.sums.snapshots.keep(version, max(self.ready))
        for worker in range(self.mesh.workers):
            start = self.ready[worker]
            self.ready[worker] += self.world.update
            times = nanoseconds(start), nanoseconds(self.ready[worker])
            self.rows.add(Row(Kind.APPLY, worker, update, 0, version - 1, version, *times))

    def _chunks(self, update: int, group: tuple[int, ...], loss: float, weight: float) -> None:
        """Time the chunks of one replica: all of its workers wait for the slowest in every movement."""
        separate, shared = self.method.stage > 0, len(group) > 1
        chunks = [self.method.chunks(self.mesh, self.agenda, update, worker) for worker in group]
        samples = [sum(chunk.samples for chunk in mine) for mine in chunks]
        starts = [self.ready[worker] for worker in group]
        ends = []
        for worker, start, count in zip(group, starts, samples, strict=True):
            ends.append(start + self.compute_times.draw(worker, count) / (1 if separate else len(group)))
            if self.world.deaths.get(worker, math.inf) < ends[-1]:
                advice = "the plan cannot continue without it"
                raise WorkerDied(Failure(worker, "died, as its world says", Position(update), advice=advice))
        sent = [self._sent(place, mine) if shared else 0 for place, mine in enumerate(chunks)]
        exchanges = sum(self._exchanges(chunk.samples) for chunk in chunks[0]) if shared else 0
        together = max(ends) + exchanges * self.world.latency + max(sent) / self.world.bandwidth
        for place, worker in enumerate(group):
            times = nanoseconds(starts[place]), nanoseconds(ends[place])
            counted = samples[place] if separate or not place else 0
            row = (worker, update, -1, update, -1, *times)
            self.rows.add(Row(Kind.COMPUTE, *row, samples=counted, value=loss, weight=weight))
            if shared:
                waited = nanoseconds(max(ends) - ends[place])
                times = times[1], nanoseconds(together)
                self.rows.add(Row(Kind.COLLECTIVE, worker, update, -1, update, -1, *times, waited, 0, sent[place], 0.0))
            self.ready[worker] = together

    def _sent(self, place: int, chunks: Sequence[Chunk]) -> int:
        return sum(self._bytes(place, self.mesh.size(INSIDE), chunk.samples) for chunk in chunks)

    def _program(self, samples: int) -> Program | None:
        programs = self.sums.blueprint.programs if self.sums is not None else {}
        same = (each for each in programs.values() if self.method.stage or _samples(each) == samples)
        return next(same, None)

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
