"""A plan whose workers hold stages, in a virtual world: their programs on one clock, with or without real arithmetic.

A program stands for the workers that share the layers of its stages, which work together. The seconds of a gradient are
divided evenly among stages, and among the workers that share one; in each stage a third goes to the forward pass, a
third to the gradients of inputs and a third to the gradients of weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.schedules import BACKWARD, FORWARD, INPUTS, WEIGHTS, Work
from paceline.algorithms.schedules.clock import Place, Timed, Walk, after_the_last, clocked
from paceline.algorithms.schedules.proof import ticks_of
from paceline.algorithms.schedules.worker import Agree, Compute, Effect, Send, SumUp, Update, micro_of
from paceline.algorithms.splits.derivation import Program
from paceline.errors import WorkerDied
from paceline.errors.failure import Failure, Position
from paceline.plans.methods.pipeline import LAYERS, Pipeline
from paceline.plans.methods.split_layers import DATA, INSIDE
from paceline.plans.plan import Plan
from paceline.runtime.engines.arithmetic.pipeline import (
    PlaceOfReplica,
    ReplicaArithmetic,
    StagedPipeline,
    StageUpdate,
    places_of,
)
from paceline.runtime.engines.virtual.rows import Numbers, Rows
from paceline.runtime.engines.virtual.server import run_server
from paceline.runtime.engines.virtual.world import ComputeTimes, World, exchange, nanoseconds
from paceline.runtime.links.shared_memory import bytes_of
from paceline.runtime.runs.trace import Kind, Row
from paceline.training.gradients.payload import Payload

PART = {FORWARD: 1 / 3, BACKWARD: 2 / 3, INPUTS: 1 / 3, WEIGHTS: 1 / 3}
ACTIVATIONS = 1024  # bytes per sample, where there is no model to measure


def run_pipeline(
    plan: Plan,
    pipeline: Pipeline,
    agenda: Agenda,
    world: World,
    size: int,
    sums: StagedPipeline | ReplicaArithmetic | None,
    rows: Rows,
) -> None:
    """Run a pipeline; `size` is that of all gradients, which replicas add up, or push."""
    if pipeline.spread.server is not None:
        assert not isinstance(sums, StagedPipeline)
        run_replicas(plan, pipeline, agenda, world, size, sums, rows)
        return
    assert not isinstance(sums, ReplicaArithmetic)
    PipelineOnClock(plan, pipeline, agenda, world, size, sums, rows).run()


class PipelineOnClock:
    """Says how long every effect takes, and writes the rows."""

    def __init__(
        self,
        plan: Plan,
        pipeline: Pipeline,
        agenda: Agenda,
        world: World,
        size: int,
        sums: StagedPipeline | None,
        rows: Rows,
    ) -> None:
        self.workers, self.pipeline, self.agenda = plan.workers, pipeline, agenda
        self.world, self.size, self.sums, mesh = world, size, sums, pipeline.mesh(plan.workers)
        self.data, self.depth, self.inside = (mesh.size(axis) for axis in (DATA, LAYERS, INSIDE))
        self.compute_times, self.rows = ComputeTimes(world, range(plan.workers)), rows
        self.recomputed = pipeline.recomputing(plan.workers)
        if sums is not None:
            self.places = sums.places()
            self.walk = sums.walk(self.places)
        else:
            self.places = places_of(pipeline, plan.workers, agenda, partial(pipeline.table, plan.workers))
            slots = pipeline.schedule.layout(self.depth).slots
            self.walk = Walk([[pipeline.program(each) for each in mine] for mine in self.places], slots)
        #: Seconds that each worker has waited and bytes that it has sent since its last row.
        self.waited, self.sent = defaultdict[Place, float](float), defaultdict[Place, int](int)
        #: By worker, stage and update: the version that its first forward read.
        self.bases: dict[tuple[Place, int, int], int] = {}

    def run(self) -> None:
        for timed in clocked(self.walk, self._seconds, self._meet):
            self._survive(timed)
            self._record(timed)

    def _record(self, timed: Timed) -> None:
        """Write the rows of an effect. The bytes of a message count for the work after it."""
        place, effect, _, start, end, waited = timed
        if isinstance(effect, Compute):
            self._computed(place, effect.work, start, end)
        elif isinstance(effect, Update):
            self._updated(timed, effect.work)
        elif not isinstance(effect, SumUp):
            self.waited[place] += waited
            if isinstance(effect, Send):
                self.sent[place] += self._bytes(place, effect)

    def _computed(self, place: Place, work: Work, start: float, end: float) -> None:
        passing = self._at(place).passing
        chunk = passing.chunk(work.micro)
        if work.what == FORWARD and passing.opens(work.micro):
            self.bases[place, work.stage, chunk.update] = passing.first + work.version
        times = nanoseconds(start), nanoseconds(end), nanoseconds(self.waited.pop(place, 0.0))
        sent = self.sent.pop(place, 0)
        for number, each in enumerate(self._column(*place)):
            moved = sent + self._moved(work, number, chunk.samples)
            self.rows.add(
                Row(Kind.STAGE, each, chunk.update, work.stage, work.micro, ord(work.what), *times, 0, moved, math.nan)
            )

    def _meet(
        self, places: Sequence[Place], effect: Effect, arrived: Sequence[float], seconds: float
    ) -> Sequence[float]:
        """Time the all-reduce of one stage's gradient between replicas."""
        if not isinstance(effect, SumUp) or self.data == 1:
            return after_the_last(places, effect, arrived, seconds)
        update, ready = self._at(places[0]).passing.update(effect.micro), arrived
        for number in range(self.inside):
            size = self._stage_bytes(effect.stage, number)
            ready, waited, sent = exchange(self.pipeline.spread.collective, arrived, size, self.world)
            for at, place in enumerate(places):
                times = nanoseconds(arrived[at]), nanoseconds(ready[at]), nanoseconds(waited[at])
                row = (update, -1, update, -1, *times, 0, sent[at], 0.0)
                self.rows.add(Row(Kind.COLLECTIVE, self._column(*place)[number], *row))
        return ready

    def _updated(self, timed: Timed, work: Work) -> None:
        """Write the rows of an update of one replica's stage."""
        place, sums, times = timed.place, timed.answer, (nanoseconds(timed.start), nanoseconds(timed.end))
        passing, column = self._at(place).passing, self._column(*place)
        update = passing.update(work.micro)
        base = self.bases.pop((place, work.stage, update))
        if work.stage == self.pipeline.stages(self.workers) - 1:
            samples = sum(chunk.samples for chunk in passing.chunks(update))
            loss = sums.mean if sums is not None else math.nan
            self.rows.add(Row(Kind.COMPUTE, column[0], update, -1, base, -1, times[0], times[0], 0, samples, 0, loss))
        sent = self.sent.pop(place, 0)
        for each in column:
            self.rows.add(Row(Kind.APPLY, each, update, work.stage, base, update + 1, *times, 0, 0, sent))
        if self.sums is not None and not place[0]:
            self.sums.keep_snapshot(StageUpdate(work.stage, update, sums), timed.end)

    def _at(self, place: Place) -> PlaceOfReplica:
        replica, worker = place
        return self.places[replica][worker]

    def _column(self, replica: int, worker: int) -> range:
        """Return the workers that a table's worker stands for in one replica."""
        first = (replica * self.depth + worker) * self.inside
        return range(first, first + self.inside)

    def _survive(self, timed: Timed) -> None:
        for each in self._column(*timed.place):
            if self.world.deaths.get(each, math.inf) < timed.end:
                update = self._at(timed.place).passing.update(micro_of(timed.effect))
                advice = "the plan cannot continue without it"
                raise WorkerDied(Failure(each, "died, as its world says", Position(update), advice=advice))

    def _seconds(self, place: Place, effect: Effect) -> float:
        """Return the seconds that an effect takes, with the movements of those that share its stage."""
        match effect:
            case Update():
                return self.world.update
            case Agree():
                return self.world.travel(8)
            case Send():
                return self.world.travel(self._bytes(place, effect))
            case Compute(work):
                return self._compute_seconds(place, work)
        return 0.0

    def _compute_seconds(self, place: Place, work: Work) -> float:
        samples = self._at(place).passing.chunk(work.micro).samples
        share = PART[work.what]
        if work.what in (BACKWARD, INPUTS) and work.stage in self.recomputed:
            share += PART[FORWARD]
        slowest = max(self.compute_times.draw(each, samples) for each in self._column(*place))
        alone = slowest * share / self.pipeline.stages(self.workers) / self.inside
        if self.inside == 1:
            return alone
        sent = max(self._moved(work, number, samples) for number in range(self.inside))
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

    def _bytes(self, place: Place, effect: Send) -> int:
        """Return the bytes of a message."""
        if self.sums is None:
            return ACTIVATIONS * self._at(place).passing.chunk(effect.micro).samples
        return bytes_of(effect.message[0])


# Replicas that are pipelines, with a server between them, in a virtual world: each is one worker of the server.
#
# A replica computes a batch in the seconds of one worker, divided by the number of its workers and by how much of the
# pipeline's time they are busy.


class _OfWorkers:
    """Rows of replicas, written as those of their workers: a push is that of the shard's own worker."""

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows, self.size = rows, size

    def add(self, row: tuple[float, ...]) -> None:
        kind, replica, update, shard = row[:4]
        place = shard if kind in (Kind.APPLY, Kind.DROP) else self.size - 1 if kind == Kind.COMPUTE else 0
        self.rows.add((kind, replica * self.size + place, update, shard, *row[4:]))

    def add_all(self, kind: Kind, update: int, **columns: Numbers | float) -> None:
        raise NotImplementedError("a server has no row of all workers at once")


def run_replicas(
    plan: Plan, pipeline: Pipeline, agenda: Agenda, world: World, size: int, sums: ReplicaArithmetic | None, rows: Rows
) -> None:
    """Run a pipeline whose replicas push to a server and pull from it."""
    server, shards = pipeline.spread.server, pipeline.shards(plan.workers)
    assert server is not None
    _, bubble = ticks_of(pipeline.table(plan.workers, (pipeline.micro_batches,)))
    deaths: dict[int, float] = {}
    for worker, when in world.deaths.items():
        deaths[worker // shards] = min(deaths.get(worker // shards, math.inf), when)
    world = replace(world, compute=world.compute / shards / (1 - bubble), deaths=deaths, repairs={})
    method = replace(server, shards=shards)
    of_replicas = replace(plan, method=method, workers=pipeline.spread.data, codec=None)
    run_server(of_replicas, method, agenda, world, size, sums, _OfWorkers(rows, shards))
