"""GatheringServer: a shard holds gradients until a round is full; the worker that fills it applies their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from paceline.algorithms.rules import GradientUpdate, Rule
from paceline.algorithms.server.events import Push
from paceline.algorithms.server.gathering import Gathering
from paceline.runtime.engines.servers import WorkerSide
from paceline.runtime.engines.servers.gradient import ShardUpdates
from paceline.runtime.engines.servers.shard_memory import ShardMemory
from paceline.training.gradients.gather_buffers import GatherBuffers
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.state import State


class GatheringExchange:
    """`port.Exchange` of a server with backup workers; `buffers` hold the gradients until the round is full."""

    def __init__(self, side: WorkerSide, number: int, memory: ShardMemory, rule: Rule, buffers: GatherBuffers) -> None:
        self.side, self.memory, self.buffers = side, memory, buffers
        self.learner, self.updates = side.learner, ShardUpdates(side, number, memory, rule)
        self.optimizer: Optimizer | None = self.updates.store.optimizer
        assert isinstance(memory.machine, Gathering)
        self.machine = memory.machine
        self.computed: GradientSum | None = None

    @property
    def bytes(self) -> int:
        return self.updates.store.bytes

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        """Do nothing: every worker pulls before it computes."""

    def begin_part(self) -> None:
        """Do nothing: the data are not divided into parts."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        self.computed = computed
        return []

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        assert self.computed is not None
        self.buffers.write(self.machine.slot(self.memory.integers.current, self.side.number), self.computed)

    def make(self, draft: State, version: int) -> None:
        total = self.buffers.add_up([held.slot for held in self.machine.full_round(draft)])
        self.updates.make(draft, version, GradientUpdate(self.learner.finalize(total, alone=True)))

    def fetch(self, draft: State) -> None:
        self.updates.fetch(draft)

    def values(self) -> list[Tensor]:
        return self.learner.replica.values()

    def worker_state(self) -> WorkerState:
        """Return nothing: the whole state is in the shard."""
        return WorkerState()
