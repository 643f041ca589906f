"""A plan whose workers hold stages, in a virtual world: its table on the clock, with or without real arithmetic.

The seconds of a gradient are divided evenly among stages; in each stage a third goes to the forward pass, a third to
the gradients of inputs and a third to the gradients of weights.
"""

from __future__ import annotations

import math

from paceline.core.agenda import Agenda
from paceline.core.schedules import ALL_REDUCE, BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, Table, Work
from paceline.core.schedules.clock import clocked, sends, takes
from paceline.core.schedules.passes import Pass, passes
from paceline.engines.arithmetic.pipeline import StagedPipeline, StageUpdate
from paceline.engines.virtual.rows import Rows
from paceline.engines.virtual.world import ComputeTimes, World, nanoseconds
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind, Row

PART = {FORWARD: 1 / 3, BACKWARD: 2 / 3, INPUTS: 1 / 3, WEIGHTS: 1 / 3}
ACTIVATIONS = 1024  # bytes per sample, where there is no model to measure


def run_pipeline(
    plan: Plan, pipeline: Pipeline, agenda: Agenda, world: World, size: int, sums: StagedPipeline | None, rows: Rows
) -> None:
    """Run a pipeline; it sends activations, so it does not use `size`."""
    run = _Run(plan, pipeline, agenda, world, sums, rows)
    for passing in passes(pipeline.schedule.span, agenda) if sums is None else ():
        run.run_table(passing)
    for passing, _ in sums.passes() if sums is not None else ():
        run.run_table(passing)


class _Run:
    """One simulated run."""

    def __init__(
        self, plan: Plan, pipeline: Pipeline, agenda: Agenda, world: World, sums: StagedPipeline | None, rows: Rows
    ) -> None:
        self.workers, self.pipeline = plan.workers, pipeline
        self.agenda, self.world, self.sums = agenda, world, sums
        self.compute_times, self.rows, self.free = ComputeTimes(world, plan.workers), rows, [0.0] * plan.workers
        self.recomputed: tuple[int, ...] = ()

    def run_table(self, passing: Pass) -> None:
        """Run one table. The bytes of a message count for the row of the work that sent it."""
        table = self.sums.setup.table(passing.counts) if self.sums is not None else self._table(passing)
        self.recomputed = self.pipeline.recomputing(self.workers)
        bases: dict[tuple[int, int], int] = {}  # (stage, update): version that its first forward read
        waited, sent = [0.0] * table.workers, [0] * table.workers
        for worker, work, start, end, wait in clocked(
            table, lambda worker, work: self._seconds(worker, work, passing, table.stages), self.free
        ):
            if self.world.deaths.get(worker, math.inf) < end:
                advice = "the plan cannot continue without it"
                where = Position(passing.update(work.micro))
                raise WorkerDied(Failure(worker, "died, as its world says", where, advice=advice))
            waited[worker] += wait
            made = self.sums.do(worker, work) if self.sums is not None else None
            if takes(work) or work.what == ALL_REDUCE:
                continue
            if sends(work):
                sent[worker] += self._bytes(work, passing)
                continue
            update = passing.update(work.micro)
            times = nanoseconds(start), nanoseconds(end), nanoseconds(waited[worker])
            waited[worker] = 0.0
            if work.what == FORWARD and passing.opens(work.micro):
                bases[work.stage, update] = passing.first + work.version
            if work.what != UPDATE:
                letter = ord(work.what)
                self.rows.add(
                    Row(Kind.STAGE, worker, update, work.stage, work.micro, letter, *times, 0, sent[worker], math.nan)
                )
                sent[worker] = 0
                continue
            base, version = bases[work.stage, update], passing.first + work.version
            if work.stage == table.stages - 1:
                loss = made.loss / made.weight if made is not None and made.weight else math.nan
                samples = sum(chunk.samples for chunk in self.agenda.filled(update))
                self.rows.add(Row(Kind.COMPUTE, worker, update, -1, base, -1, times[0], times[0], 0, samples, 0, loss))
            self.rows.add(Row(Kind.APPLY, worker, update, work.stage, base, version, *times))
            if made is not None and self.sums is not None:
                self.sums.keep_snapshot(StageUpdate(work.stage, update, made), end)

    def _table(self, passing: Pass) -> Table:
        return self.pipeline.table(self.workers, passing.counts)

    def _seconds(self, worker: int, work: Work, passing: Pass, stages: int) -> float:
        """Return the seconds that a piece of work takes."""
        if work.what == UPDATE:
            return self.world.update
        if work.what == ALL_REDUCE:
            return self.world.travel(8)
        samples = passing.chunk(work.micro).samples
        if sends(work):
            return self.world.travel(self._bytes(work, passing))
        share = PART[work.what]
        if work.what in (BACKWARD, INPUTS) and work.stage in self.recomputed:
            share += PART[FORWARD]
        return self.compute_times.draw(worker, samples) * share / stages

    def _bytes(self, work: Work, passing: Pass) -> int:
        plan = self.sums.setup.blueprint if self.sums is not None else None
        if plan is None:
            return ACTIVATIONS * passing.chunk(work.micro).samples
        return plan.bytes_on[work.stage] if work.what == "S>" else plan.bytes_back[work.stage - 1]
