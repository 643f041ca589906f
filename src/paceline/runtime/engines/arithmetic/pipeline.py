"""All workers of a pipeline in one process, or of replicas that are pipelines, with the server between them.

A program stands for the workers that share the layers of its stages. They compute together, from movement to movement,
and a message is one of each. The programs run in an order that their messages allow; which one, the bits do not tell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.schedules import Pass, Table, Work, passes
from paceline.algorithms.schedules.clock import Place, Walk
from paceline.algorithms.schedules.worker import Agree, Compute, Effect, SumUp, Update, follow
from paceline.algorithms.server.messages import Action, Pull, Push
from paceline.plans.methods.pipeline import Pipeline
from paceline.runtime.engines.arithmetic.common import Snapshots, execute
from paceline.runtime.engines.outcome import Snapshot
from paceline.runtime.engines.servers.shard_memory import ShardPort, WorkerSide, private_memory
from paceline.runtime.engines.servers.stage_shards import open_stage_port, stage_shards, whole_values
from paceline.runtime.engines.setup import Setup
from paceline.training.data.source import Reader
from paceline.training.gradients.payload import GradientSum, Payload
from paceline.training.parameters.shard_version import ShardVersion
from paceline.training.splits.planning import run_together
from paceline.training.splits.slicing import assembled, sliced
from paceline.training.splits.stages import SplitStages
from paceline.training.stages.cutting import skeleton
from paceline.training.stages.segment import Message, Segment

#: One segment for each replica and place inside: the workers that do the same work of the table.
Team = list[list[Segment]]


class StageUpdate(NamedTuple):
    """An update of one stage, which made its next version."""

    stage: int
    update: int
    sums: GradientSum


class PlaceOfReplica:
    """The `StageWorker` of a program: a worker of a replica's table, and the segments that it computes with."""

    def __init__(
        self,
        worker: int,
        depth: int,
        tables: Iterator[Pass],
        table: Callable[[tuple[int, ...]], Table],
        segments: Sequence[Segment],
    ) -> None:
        self.worker, self.depth, self._passes, self._table, self.segments = worker, depth, tables, table, segments

    def lines(self) -> Iterator[Iterable[Work]]:
        for passing in self._passes:
            self.passing = passing
            for segment in self.segments:
                segment.begin(passing)
            yield self._table(passing.counts).lines[self.worker]


def places_of(
    pipeline: Pipeline,
    workers: int,
    agenda: Agenda,
    table: Callable[[tuple[int, ...]], Table],
    teams: Sequence[Team] | None = None,
    stop: int | None = None,
) -> list[list[PlaceOfReplica]]:
    """Return the places of every replica, for the updates up to `stop`."""
    span, data, depth, table = pipeline.schedule.span, pipeline.spread.data, pipeline.depth(workers), cache(table)
    teams = teams or [[[]] * data] * depth
    return [
        [
            PlaceOfReplica(worker, depth, passes(span, agenda, 0, stop, replica, data), table, teams[worker][replica])
            for worker in range(depth)
        ]
        for replica in range(data)
    ]


class StagedPipeline:
    """The segments of all workers, and the messages between them."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.snapshots = setup, Snapshots(setup, self.values)
        assert setup.blueprint is not None
        assert setup.pipeline is not None
        self.blueprint, self.spread = setup.blueprint, setup.pipeline.spread
        self.collective, self.pipeline = self.spread.collective, setup.pipeline
        self.reader = Reader(setup.source, setup.order(), 0, lambda _: None)
        #: By the place along the axis `layers`.
        self.teams = [
            [
                [self._segment(worker, mine, place) for place in range(self.spread.inside)]
                for _ in range(self.spread.data)
            ]
            for worker, mine in enumerate(self.blueprint.holdings(setup.module))
        ]
        #: Snapshots that not every stage has reached, by their number of updates.
        self.drafts: dict[int, dict[str, Tensor]] = defaultdict(dict)
        self.answers: dict[type, Callable[..., Any]] = {
            Compute: self.compute,
            SumUp: self.sum_up,
            Agree: self.agree,
            Update: self.update,
            Push: lambda *_: None,
        }

    def _segment(self, worker: int, names: list[str], place: int) -> Segment:
        setup, module = self.setup, skeleton(self.setup.module, names)
        if self.spread.inside == 1:
            return Segment(worker, setup.job, module, self.blueprint, self.reader)
        module = sliced(module, self.blueprint.stored, place)
        inside = SplitStages(module, self.blueprint, place)
        return Segment(worker, setup.job, module, self.blueprint, self.reader, inside)

    def places(self, stop: int | None = None) -> list[list[PlaceOfReplica]]:
        setup = self.setup
        return places_of(self.pipeline, setup.plan.workers, setup.agenda, setup.table, self.teams, stop)

    def walk(self, places: Sequence[Sequence[PlaceOfReplica]]) -> Walk:
        """Run the programs of all replicas."""
        program = self.pipeline.program
        return Walk([[program(each) for each in mine] for mine in places], self.blueprint.slots, self.answer)

    def answer(self, places: Sequence[Place], effect: Effect) -> Any:
        """Answer an effect of one worker, or of all that meet in it."""
        return self.answers[type(effect)]([self.teams[worker][replica] for replica, worker in places], *effect)

    def compute(self, team: Team, work: Work, messages: list[Message] | None) -> list[Message]:
        """Let the workers that share a stage do a piece of work."""
        (segments,) = team
        each = zip(segments, messages or [[] for _ in segments], strict=True)
        walks = [segment.compute(work, message) for segment, message in each]
        return run_together(walks, self.blueprint.carries_chance)

    def sum_up(self, team: Team, number: int, micro: int) -> None:
        """Add the gradient of a stage up over all replicas, as their workers do."""
        for place in range(self.spread.inside):
            stages = [replica[place].stages[number] for replica in team]
            shares = [stage.share() for stage in stages]
            if len(stages) == 1:
                stages[0].finalize(shares[0])
                continue
            layout = team[0][place].layout(number)
            flats = [torch.zeros(Payload.length(layout), dtype=layout.dtype) for _ in stages]
            payloads = [Payload(layout, flat) for flat in flats]
            for payload, share in zip(payloads, shares, strict=True):
                payload.write(share)
            execute(self.collective, flats)
            for stage, payload, share in zip(stages, payloads, shares, strict=True):
                stage.finalize(payload.read(share.samples))

    def agree(self, replica: Team, stage: int, micro: int) -> None:
        """Give all workers of a replica the squared norm of the whole gradient."""
        squares = sum(worker[0].squares() for worker in replica)
        for worker in replica:
            worker[0].agree(squares)

    def update(self, team: Team, work: Work) -> GradientSum:
        sums, *_ = [segment.update(work) for segment in team[0]]
        return sums

    def replay(self, stop: int | None) -> Iterator[StageUpdate]:
        """Make every version up to that of `stop` updates."""
        places = self.places(stop)
        for (replica, worker), effect, answer in self.walk(places):
            if isinstance(effect, Update) and not replica:
                first = places[replica][worker].passing.first
                yield StageUpdate(effect.work.stage, first + effect.work.version - 1, answer)

    @property
    def stage_to_worker(self) -> tuple[int, ...]:
        return self.blueprint.stage_to_worker

    def finite(self, done: StageUpdate) -> bool:
        """Return whether the stage as it is now, and the loss that led to it, are finite."""
        values = self._named(done.stage).values()
        return math.isfinite(done.sums.loss) and all(bool(value.isfinite().all()) for value in values)

    def keep_snapshot(self, done: StageUpdate, seconds: float) -> None:
        """Keep the stage as it is after this update, if a snapshot is due; the last stage completes the snapshot."""
        updates = done.update + 1
        if not self.setup.agenda.reaches(updates, self.setup.snapshots_every):
            return
        draft = self.drafts[updates]
        draft.update(self._named(done.stage))
        if len(draft) == len(self.setup.names):
            del self.drafts[updates]  # or a stage without parameters would complete it again
            values = [draft[name] for name in self.setup.names]
            self.snapshots.kept.append(Snapshot(updates, seconds, lambda: values))

    def values(self) -> list[Tensor]:
        tensors: dict[str, Tensor] = {}
        for stage in range(len(self.stage_to_worker)):
            tensors |= self._named(stage)
        return [tensors[name] for name in self.setup.names]

    def _named(self, stage: int) -> dict[str, Tensor]:
        """Return copies of a stage's newest parameters and its moving buffers, whole, by name."""
        places = self.teams[self.stage_to_worker[stage]][0]
        parts = [dict(segment.named(stage)) for segment in places]
        stored, shapes = self.blueprint.stored, self.blueprint.shapes
        return {
            name: assembled([each[name] for each in parts], stored.get(name), shapes.get(name, ())) for name in parts[0]
        }


# Replicas that are pipelines, and the shards of the server between them, in one process.
#
# A replica is what `ServerArithmetic` calls a worker: it computes a batch from the versions that its workers hold, each
# of its own shard, and its workers push.


class ReplicaArithmetic:
    """Computes the gradients of replicas and applies pushes in the order of the caller's calls (`ServerArithmetic`)."""

    def __init__(self, setup: Setup) -> None:
        assert setup.pipeline is not None
        server, self.replicas = setup.pipeline.spread.server, setup.pipeline.spread.data
        assert server is not None
        self.setup, self.snapshots, self.pipeline = setup, Snapshots(setup, self.values), StagedPipeline(setup)
        places, self.memories = stage_shards(setup), []
        for each in places:
            memory = private_memory(each.shape(setup), server.machine(self.replicas), server.slots)
            memory.init()
            each.put_version_0(memory, setup)
            self.memories.append(memory)
        #: Of every replica: its port to each shard, and the sums that are to be pushed there.
        self.ports = [[self._port(replica, shard) for shard in range(len(places))] for replica in range(self.replicas)]
        self.shares: list[list[GradientSum]] = [[] for _ in range(self.replicas)]
        self.held: dict[int, ShardVersion] = {}

    @property
    def sides(self) -> list[WorkerSide]:
        return [ports[0].side for ports in self.ports]

    def _port(self, replica: int, shard: int) -> ShardPort:
        inside = self.pipeline.spread.inside
        segment = self.pipeline.teams[shard // inside][replica][shard % inside]
        memory, plan = self.memories[shard], self.setup.plan
        return open_stage_port(segment, plan, replica, shard, memory, nullcontext(0), lambda: None, lambda *row: None)

    def compute(self, worker: int, chunks: list[Chunk]) -> GradientSum:
        """Compute the gradient of one batch from the versions that this replica holds."""
        passing, pipeline = Pass(chunks[0].update, (len(chunks),), lambda update: chunks), self.pipeline
        table, push = self.setup.table(passing.counts), Push(worker, 0, passing.first)
        for team in pipeline.teams:
            for segment in team[worker]:
                segment.begin(passing)
        programs = [follow(line, table.stage_to_worker, push) for line in table.lines]
        walk = Walk([programs], table.slots, lambda at, effect: pipeline.answer([(worker, w) for _, w in at], effect))
        for _ in walk:
            pass  # pushes come when the caller asks for them
        segments = [segment for team in self.pipeline.teams for segment in team[worker]]
        self.shares[worker] = [stage.share() for segment in segments for stage in segment.stages.values()]
        last = self.shares[worker][-1]
        gradients = [gradient for share in self.shares[worker] for gradient in share.gradients]
        return GradientSum(gradients, [], last.loss, last.weight, last.samples)

    def base(self, worker: int) -> int:
        return self.ports[worker][0].base

    def pull(self, event: Pull) -> Action:
        return self.ports[event.worker][event.shard].pull(event)

    def push(self, event: Push) -> Action:
        port = self.ports[event.worker][event.shard]
        return port.push(event, port.finalize(event.batch, self.shares[event.worker][event.shard]))

    def bytes(self, event: Push) -> int:
        """Return the bytes that the replica's last push to this shard moved."""
        return self.ports[event.worker][event.shard].bytes

    def newest(self, shard: int) -> list[ShardVersion]:
        return self.memories[shard].all_newest

    def hold(self, shard: int) -> None:
        """Let `values` return this version of a shard, whatever is pushed to it from now on."""
        newest = self.memories[shard].newest
        self.held[shard] = ShardVersion(newest.shape, newest.raw.clone())

    def values(self) -> list[Tensor]:
        """Return the newest trainable parameters in the module's order, then the moving buffers."""
        versions = [self.held.get(shard, memory.newest) for shard, memory in enumerate(self.memories)]
        return whole_values(self.pipeline.blueprint, self.setup.names, versions)
