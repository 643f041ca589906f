"""Hogwild: all workers write into the same parameters without a lock; each has its own optimizer state."""

from __future__ import annotations

from contextlib import AbstractContextManager
from time import perf_counter_ns as now

from torch import Tensor

from paceline.algorithms.rules.gradients import Plain
from paceline.algorithms.server.messages import Action, Apply, Pull, Push
from paceline.algorithms.server.shard import Shard
from paceline.runtime.engines.servers.port import WorkerSide
from paceline.runtime.engines.servers.shard_memory import ShardMemory
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.store import restore_store, state_of_store
from paceline.training.parameters.worker_state import WorkerState, copy_into, state_of_tensors


class HogwildPort:
    """A port without versions. `guard` keeps writers out while a checkpoint is taken, never each other."""

    base = -1
    optimizer: Optimizer | None = None

    def __init__(self, side: WorkerSide, memory: ShardMemory, guard: AbstractContextManager[object]) -> None:
        self.side, self.memory, self.guard = side, memory, guard
        self.shared, self.moving = memory.newest, side.learner.replica.moving
        for parameter, view in zip(side.learner.replica.parameters, self.shared.parameters, strict=True):
            parameter.data = view
        self.store = side.local_store(Plain())
        self.pushes, self.bytes = 0, 2 * self.shared.values.nbytes

    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        if resumed:
            copy_into(self.moving, self.shared.buffers)
        if saved is not None:
            copy_into(self.moving, saved.many("moving"))
            restore_store(self.store, saved)
        self.side.write_state(self.pushes, self.worker_state)

    def begin_part(self) -> None:
        """Do nothing: the data are not divided into parts."""

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        self.store.updates = batch
        return self.side.learner.finalize(computed)

    def pull(self, event: Pull) -> Action:
        raise AssertionError("every worker sees the newest parameters")

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        """Apply the gradient without keeping other writers out."""
        start, machine = now(), self.memory.machine
        assert isinstance(machine, Shard)
        self.side.ensure_trace_space()
        with self.guard:
            self.store.step(gradients)
            self.shared.keep_buffers(self.moving)
            self.side.record(Kind.APPLY, event.batch, 0, -1, -1, start, now(), 0, 0, 0, 0.0)
            self.pushes += 1
            self.side.write_state(self.pushes, self.worker_state)
            machine.note(self.memory.integers.current, self.side.number, event.batch)
        return Apply(-1, -1)

    def values(self) -> list[Tensor]:
        return self.side.learner.replica.values()

    def worker_state(self) -> WorkerState:
        return state_of_tensors("moving", self.moving) | state_of_store(self.store)
