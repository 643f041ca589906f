"""PairwisePort: a worker averages its replica with one neighbour's, then applies its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from paceline.algorithms.rules.averaging import AdPsgd
from paceline.algorithms.rules.gradients import Plain
from paceline.algorithms.server.messages import Push
from paceline.algorithms.server.version_slots import ReplicaSlots
from paceline.runtime.engines.servers.port import ShardPort, WorkerSide
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.replicas import GossipReplica, mean_of
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class PairwisePort(ShardPort):
    """The port of AD-PSGD. All replicas lie in one shard, where a neighbour may change this worker's."""

    def __init__(self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, rule: AdPsgd) -> None:
        super().__init__(side, number, memory, lock)
        assert isinstance(memory.slots, ReplicaSlots)
        self.rule, self.slots = rule, memory.slots
        self.replica = GossipReplica(side.learner, side.local_store(Plain()), rule, memory.versions)
        self.replica.bind_to_slot(self.slots.of(memory.integers.current, side.number))
        self.partner: int | None = None
        self.gradients: list[Tensor | None] = []

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        current = self.memory.integers.current
        if resumed:
            self.side.learner.set_buffers(self.memory.versions[self.slots.of(current, self.side.number)].buffers)
        if saved is not None:
            self.replica.restore(saved)
        self.side.write_state(self.memory.machine.base(current, self.side.number), self.worker_state)

    def begin_part(self) -> None:
        """Do nothing: the data are not divided into parts."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        return self.side.learner.finalize(computed)

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        side = self.side
        self.partner = self.rule.partner(side.number, side.plan.workers, side.seed, event.batch)
        self.gradients = gradients

    def make(self, draft: State, version: int) -> None:
        theirs = None if self.partner is None else self.slots.change(draft, self.partner)
        self.replica.step(version, self.gradients, self.slots.move(draft, self.side.number), theirs)
        self.side.write_state(version, self.worker_state)

    def fetch(self, draft: State) -> None:
        """Do nothing: a replica computes with its own parameters."""

    def worker_state(self) -> WorkerState:
        return self.replica.worker_state()

    def trained(self) -> list[Tensor]:
        """Return the mean of all replicas."""
        return mean_of([[v.clone() for v in (*r.parameters, *r.buffers)] for r in self.memory.all_newest])
