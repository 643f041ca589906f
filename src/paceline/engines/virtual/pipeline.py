"""A plan whose workers hold stages, in a virtual world: its table on the clock, with or without real arithmetic.

The seconds of a gradient are divided evenly among stages, and among the workers that share one; in each stage a third
goes to the forward pass, a third to the gradients of inputs and a third to the gradients of weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.core.agenda import Agenda, Chunk
from paceline.core.schedules import ALL_REDUCE, BACKWARD, FORWARD, INPUTS, UPDATE, WEIGHTS, Table, Work
from paceline.core.schedules.clock import clocked, sends, takes
from paceline.core.schedules.passes import Pass, passes
from paceline.core.splits.derivation import Program
from paceline.engines.arithmetic.pipeline import StagedPipeline, StageUpdate
from paceline.engines.arithmetic.replicas import ReplicaArithmetic
from paceline.engines.virtual.exchange import exchange
from paceline.engines.virtual.replicas import run_replicas
from paceline.engines.virtual.rows import Rows
from paceline.engines.virtual.world import ComputeTimes, World, nanoseconds
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.gradients.payload import GradientSum, Payload
from paceline.plans.methods.pipeline import LAYERS, Pipeline
from paceline.plans.methods.split_layers import DATA, INSIDE
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind, Row

PART = {FORWARD: 1 / 3, BACKWARD: 2 / 3, INPUTS: 1 / 3, WEIGHTS: 1 / 3}
ACTIVATIONS = 1024  # bytes per sample, where there is no model to measure


def run_pipeline(
    plan: Plan, pipeline: Pipeline, agenda: Agenda, world: World, size: int,
    sums: StagedPipeline | ReplicaArithmetic | None, rows: Rows,
) -> None:  # fmt: skip
    """Run a pipeline; `size` is that of all gradients, which replicas add up, or push."""
    if pipeline.spread.server is not None:
        assert not isinstance(sums, StagedPipeline)
        run_replicas(plan, pipeline, agenda, world, size, sums, rows)
        return
    assert not isinstance(sums, ReplicaArithmetic)
    run = _Run(plan, pipeline, agenda, world, size, sums, rows)
    if sums is not None:
        for together in sums.passes():
            run.run_tables(together)
        return
    span, data = pipeline.schedule.span, pipeline.spread.data
    for passings in zip(*(passes(span, agenda, 0, None, d, data) for d in range(data)), strict=True):
        run.run_tables([(passing, pipeline.table(plan.workers, passing.counts)) for passing in passings])


class _Applied(NamedTuple):
    """An update that a replica's stage is ready to make."""

    replica: int
    worker: int
    work: Work
    update: int
    base: int
    start: float
    #: Bytes of messages since the worker's last row.
    sent: int


class _Run:
    """One simulated run. A table's worker stands for the workers that share its stages, which work together."""

    def __init__(
        self, plan: Plan, pipeline: Pipeline, agenda: Agenda, world: World, size: int, sums: StagedPipeline | None,
        rows: Rows,
    ) -> None:  # fmt: skip
        self.workers, self.pipeline, self.agenda = plan.workers, pipeline, agenda
        self.world, self.size, self.sums, mesh = world, size, sums, pipeline.mesh(plan.workers)
        self.data, self.depth, self.inside = (mesh.size(axis) for axis in (DATA, LAYERS, INSIDE))
        #: When the workers of each replica and stage are free.
        self.free = [[0.0] * self.depth for _ in range(self.data)]
        self.compute_times, self.rows = ComputeTimes(world, range(plan.workers)), rows
        self.recomputed = pipeline.recomputing(plan.workers)

    def run_tables(self, together: Sequence[tuple[Pass, Table]]) -> None:
        """Run one table in every replica, then the updates that they make together."""
        ready: dict[int, list[_Applied]] = defaultdict(list)
        made: dict[int, list[GradientSum]] = {}
        for replica, (passing, table) in enumerate(together):
            for applied, sums in self._run_table(replica, passing, table):
                ready[applied.work.stage].append(applied)
                made[applied.work.stage] = sums
        for stage, updates in ready.items() if self.data > 1 else ():
            self._apply_together(stage, updates, made[stage])

    def _run_table(self, replica: int, passing: Pass, table: Table) -> Iterator[tuple[_Applied, list[GradientSum]]]:
        """Run one replica's table. The bytes of a message count for the row of the work that sent it."""
        bases: dict[tuple[int, int], int] = {}  # (stage, update): version that its first forward read
        waited, sent = [0.0] * table.workers, [0] * table.workers
        for worker, work, start, end, wait in clocked(
            table, lambda worker, work: self._seconds(replica, worker, work, passing), self.free[replica]
        ):
            update = passing.update(work.micro)
            self._survive(replica, worker, end, update)
            waited[worker] += wait
            made = self.sums.do(replica, worker, work) if self.sums is not None else []
            if sends(work):
                sent[worker] += self._bytes(work, passing) if self.sums is None else self.sums.sent
            if takes(work) or sends(work) or work.what == ALL_REDUCE:
                continue
            if work.what == FORWARD and passing.opens(work.micro):
                bases[work.stage, update] = passing.first + work.version
            if work.what != UPDATE:
                times = start, end, waited[worker]
                self._computed(replica, worker, work, passing.chunk(work.micro), times, sent[worker])
                waited[worker], sent[worker] = 0.0, 0
                continue
            applied = _Applied(replica, worker, work, update, bases[work.stage, update], start, sent[worker])
            sent[worker] = 0
            if self.data == 1:
                self._apply(applied, end, made)
            yield applied, made

    def _computed(
        self, replica: int, worker: int, work: Work, chunk: Chunk, times: tuple[float, float, float], sent: int
    ) -> None:
        start, end, waited = map(nanoseconds, times)
        for place, each in enumerate(self._column(replica, worker)):
            moved = sent + self._moved(work, place, chunk.samples)
            row = (chunk.update, work.stage, work.micro, ord(work.what), start, end, waited, 0, moved, math.nan)
            self.rows.add(Row(Kind.STAGE, each, *row))

    def _apply_together(self, stage: int, updates: Sequence[_Applied], made: list[GradientSum]) -> None:
        """Time the all-reduce of one stage's gradient between replicas, and the updates after it."""
        worker, update = updates[0].worker, updates[0].update
        arrived = [self.free[each.replica][worker] for each in updates]
        ready: Sequence[float] = arrived
        for place in range(self.inside):
            size = self._stage_bytes(stage, place)
            ready, waited, sent = exchange(self.pipeline.spread.collective, arrived, size, self.world)
            for each in updates:
                number = each.replica
                times = nanoseconds(arrived[number]), nanoseconds(ready[number]), nanoseconds(waited[number])
                row = (update, -1, update, -1, *times, 0, sent[number], 0.0)
                self.rows.add(Row(Kind.COLLECTIVE, self._column(number, worker)[place], *row))
        for each in updates:
            start = float(ready[each.replica])
            self.free[each.replica][worker] = start + self.world.update
            self._apply(each._replace(start=start), start + self.world.update, made[each.replica :])

    def _apply(self, applied: _Applied, end: float, made: Sequence[GradientSum]) -> None:
        """Write the rows of an update of one replica's stage."""
        work, update, times = applied.work, applied.update, (nanoseconds(applied.start), nanoseconds(end))
        column = self._column(applied.replica, applied.worker)
        if work.stage == self.pipeline.stages(self.workers) - 1:
            loss = made[0].mean if made else math.nan
            chunks = self.agenda.filled(update)
            mine = [
                c for c in chunks if c.number % self.agenda.parts * self.data // self.agenda.parts == applied.replica
            ]
            row = (update, -1, applied.base, -1, times[0], times[0], 0, sum(c.samples for c in mine), 0, loss)
            self.rows.add(Row(Kind.COMPUTE, column[0], *row))
        for each in column:
            stepped = (update, work.stage, applied.base, update + 1, *times, 0, 0, applied.sent)
            self.rows.add(Row(Kind.APPLY, each, *stepped))
        if made and self.sums is not None and not applied.replica:
            self.sums.keep_snapshot(StageUpdate(work.stage, update, made[0]), end)

    def _column(self, replica: int, worker: int) -> range:
        """Return the workers that a table's worker stands for in one replica."""
        first = (replica * self.depth + worker) * self.inside
        return range(first, first + self.inside)

    def _survive(self, replica: int, worker: int, end: float, update: int) -> None:
        for each in self._column(replica, worker):
            if self.world.deaths.get(each, math.inf) < end:
                advice = "the plan cannot continue without it"
                raise WorkerDied(Failure(each, "died, as its world says", Position(update), advice=advice))

    def _seconds(self, replica: int, worker: int, work: Work, passing: Pass) -> float:
        """Return the seconds that a piece of work takes, with the movements of those that share its stage."""
        if work.what == UPDATE:
            return self.world.update if self.data == 1 else 0.0
        if work.what == ALL_REDUCE:
            return self.world.travel(8)
        samples = passing.chunk(work.micro).samples
        if sends(work):
            return self.world.travel(self._bytes(work, passing))
        share = PART[work.what]
        if work.what in (BACKWARD, INPUTS) and work.stage in self.recomputed:
            share += PART[FORWARD]
        slowest = max(self.compute_times.draw(each, samples) for each in self._column(replica, worker))
        alone = slowest * share / self.pipeline.stages(self.workers) / self.inside
        if self.inside == 1:
            return alone
        sent = max(self._moved(work, place, samples) for place in range(self.inside))
        return alone + self._exchanges(work, samples) * self.world.latency + sent / self.world.bandwidth

    def _program(self, stage: int, samples: int) -> Program | None:
        """Return what the workers of a stage do with a micro-batch of so many samples."""
        programs = self.sums.blueprint.programs if self.sums is not None else ()
        if not programs:
            return None
        fits = (each for sizes, each in programs[stage].items() if sizes and sizes[0][:1] == (samples,))
        return next(fits, next(iter(programs[stage].values())))

    def _moved(self, work: Work, place: int, samples: int) -> int:
        """Return the bytes that a worker sends to those that share its stage, in one piece of work."""
        program = self._program(work.stage, samples)
        if program is None or self.sums is None:
            return 0 if self.inside == 1 else ACTIVATIONS
        moves = (step for step in program.steps if step.value and step.back == (work.what != FORWARD))
        numbers = sum(step.movement.numbers(program.shapes[step.value], place, program.workers) for step in moves)
        return numbers * self.sums.setup.layout.bytes_per_number

    def _exchanges(self, work: Work, samples: int) -> int:
        program = self._program(work.stage, samples)
        if program is None:
            return 1
        moves = [step for step in program.steps if step.value and step.back == (work.what != FORWARD)]
        return sum(len(step.movement.exchanges(program.shapes[step.value], program.workers)) for step in moves)

    def _stage_bytes(self, stage: int, place: int) -> int:
        """Return the bytes of the vector in which replicas add the gradient of a stage up."""
        if self.sums is None:
            return self.size // (self.pipeline.stages(self.workers) * self.inside)
        segment = self.sums.teams[self.sums.stage_to_worker[stage]][0][place]
        layout = segment.layout(stage)
        return Payload.length(layout) * layout.bytes_per_number

    def _bytes(self, work: Work, passing: Pass) -> int:
        plan = self.sums.setup.blueprint if self.sums is not None else None
        if plan is None:
            return ACTIVATIONS * passing.chunk(work.micro).samples
        return plan.bytes_on[work.stage] if work.what == "S>" else plan.bytes_back[work.stage - 1]
