"""GatheringPort: a shard holds gradients until a round is full; the worker that fills it applies their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from paceline.algorithms.rules import GradientUpdate, Rule
from paceline.algorithms.server.messages import Push
from paceline.algorithms.server.shard import Gathering
from paceline.runtime.engines.servers.gradient import RulePort
from paceline.runtime.engines.servers.port import WorkerSide
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory
from paceline.training.gradients.gather_buffers import GatherBuffers
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class GatheringPort(RulePort):
    """The port of a server with backup workers; `buffers` hold the gradients until the round is full."""

    computed: GradientSum | None = None

    def __init__(
        self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked, rule: Rule, buffers: GatherBuffers
    ) -> None:
        super().__init__(side, number, memory, lock, rule)
        self.buffers = buffers
        assert isinstance(memory.machine, Gathering)
        self.machine = memory.machine

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        """Do nothing: every worker pulls before it computes."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        self.computed = computed
        return []

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        assert self.computed is not None
        self.buffers.write(self.machine.slot(self.memory.integers.current, self.side.number), self.computed)

    def make(self, draft: State, version: int) -> None:
        total = self.buffers.add_up([held.slot for held in self.machine.full_round(draft)])
        self.apply(draft, version, GradientUpdate(self.side.learner.finalize(total, alone=True)))

    def worker_state(self) -> WorkerState:
        """Return nothing: the whole state is in the shard."""
        return WorkerState()
