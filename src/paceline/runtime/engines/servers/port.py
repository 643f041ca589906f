"""A push: the transaction on a shard that every kind of server shares.

    worker                      shard, under its lock
    ──────                      ─────────────────────
    1 prepare ───────────────▶  2 the machine answers: Apply, Held, Late or Drop
                                3 Apply: the next version is made in a slot that no worker reads
                                4 the row of the trace
    6 compute with it ◀───────  5 commit: one store makes the version the newest

A worker killed before step 5 has changed nothing that others see, and its batch is leased again.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from paceline.algorithms.server.actions import Action, Apply, Held
from paceline.algorithms.server.events import Pull, Push
from paceline.runtime.engines.servers import WorkerSide
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.state import State


class Exchange(Protocol):
    """One kind of server's part of a push; there is one per worker and shard."""

    optimizer: Optimizer | None

    @property
    def bytes(self) -> int:
        """The bytes that the last push moved, both ways."""

    def resume(self, resumed: bool, saved: WorkerState | None) -> None: ...

    def begin_part(self) -> None: ...

    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]: ...

    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        """Do what needs no lock."""

    def make(self, draft: State, version: int) -> None:
        """Make this version from the newest one, in the slot for it; the worker computes with it from now on."""

    def fetch(self, draft: State) -> None:
        """Compute with the newest version."""

    def values(self) -> list[Tensor]: ...

    def worker_state(self) -> WorkerState: ...


class ShardPort:
    """A `ServerPort` to a shard whose memory this process sees."""

    def __init__(self, side: WorkerSide, number: int, memory: ShardMemory, exchange: Exchange, lock: Locked) -> None:
        self.side, self.number, self.memory, self.exchange, self.lock = side, number, memory, exchange, lock
        self.base = memory.machine.base(memory.integers.current, side.number)
        self.optimizer = exchange.optimizer
        self.resume, self.begin_part = exchange.resume, exchange.begin_part
        self.finalize, self.worker_state = exchange.finalize, exchange.worker_state

    @property
    def bytes(self) -> int:
        return self.exchange.bytes

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        """Run the transaction of a push, step by step as above."""
        memory, start = self.memory, now()
        # Outside the lock, for which other workers wait.
        self.exchange.prepare(event, gradients)  # 1
        self.side.ensure_trace_space()
        with self.lock as waited:
            draft = memory.integers.begin()
            action: Action = memory.machine.handle(draft, event)  # 2
            if isinstance(action, Apply | Held):
                if isinstance(action, Apply):
                    self.exchange.make(draft, action.version)  # 3
                # Written before the commit: no version without its row. A worker killed between the two leaves a row
                # too many, which a later row of the same version replaces.
                row = (event.batch, self.number, action.base, action.version)
                self.side.record(Kind.APPLY, *row, start, now(), waited, 0, self.bytes, 0.0)  # 4
                memory.integers.commit()  # 5
                if isinstance(action, Apply):
                    self.base = action.version  # 6
                return action
        # The draft is not committed: a push that was refused leaves the shard as it was.
        self.side.record(Kind.DROP, event.batch, self.number, self.base, -1, start, now(), waited, 0, 0, 0.0)
        return action

    def pull(self, event: Pull) -> Action:
        """Fetch the newest version under the shard's lock."""
        memory = self.memory
        with self.lock:
            draft = memory.integers.begin()
            action: Action = memory.machine.handle(draft, event)
            self.exchange.fetch(draft)
            memory.integers.commit()
            self.base = memory.machine.base(draft, self.side.number)
        return action

    def values(self) -> list[Tensor]:
        with self.lock:
            return self.exchange.values()
