"""CentrePort: a replica that has stepped on its own is exchanged with a centre, and both change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from paceline.algorithms.rules import Exchanging
from paceline.algorithms.server.messages import Push
from paceline.runtime.engines.servers.port import ShardPort, WorkerSide
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.replicas import ExchangingReplica
from paceline.training.parameters.shard_version import ShardVersion
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class CentrePort(ShardPort):
    """The port of elastic averaging, DiLoCo and map-reduce with a centre."""

    def __init__(self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, rule: Exchanging) -> None:
        super().__init__(side, number, memory, lock)
        self.replica = ExchangingReplica(side.learner, side.optimizer, rule)

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        if saved is not None:
            self.replica.restore(saved)
        elif resumed:
            self.replica.join(_values(self.memory.newest))
        version = self.memory.machine.base(self.memory.integers.current, self.side.number)
        self.side.write_state(version, self.worker_state)

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        """Make a local step; the replica itself is pushed."""
        self.replica.step(batch, computed)
        return []

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        """Do nothing: the exchange needs the centre."""

    def make(self, draft: State, version: int) -> None:
        versions, (source, target) = self.memory.versions, self.memory.slots.move(draft, self.side.number)
        self.memory.copy(versions[target].raw, versions[source].raw)
        self.replica.exchange(versions[target])
        self.side.write_state(version, self.worker_state)

    def fetch(self, draft: State) -> None:
        """Begin with the centre's parameters, as a worker that joins late does."""
        self.replica.join(_values(self.memory.versions[self.memory.slots.newest(draft)]))

    def begin_part(self) -> None:
        self.replica.begin()

    def trained(self) -> list[Tensor]:
        return self.side.learner.replica.values()

    def worker_state(self) -> WorkerState:
        return self.replica.worker_state()


def _values(centre: ShardVersion) -> list[Tensor]:
    return [*centre.parameters, *centre.buffers]
