"""Replicas that are pipelines, and the shards of the server between them, in one process.

A replica is what `ServerArithmetic` calls a worker: it computes a batch from the versions that its workers hold, each
of its own shard, and its workers push.
"""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.schedules import Pass
from paceline.algorithms.schedules.clock import Walk
from paceline.algorithms.schedules.worker import follow
from paceline.algorithms.server.messages import Action, Pull, Push
from paceline.runtime.engines.arithmetic.common import Snapshots
from paceline.runtime.engines.arithmetic.pipeline import StagedPipeline
from paceline.runtime.engines.servers.port import ShardPort, WorkerSide
from paceline.runtime.engines.servers.shard_memory import private_memory
from paceline.runtime.engines.servers.stage_shards import open_stage_port, stage_shards, whole_values
from paceline.runtime.engines.setup import Setup
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.shard_version import ShardVersion


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
