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

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from torch import Tensor

from paceline.algorithms.rules import Averaging, Rule
from paceline.algorithms.server.messages import Action, Apply, Held, Pull, Push
from paceline.plans.plan import Plan
from paceline.runtime.engines.servers.shard_memory import Locked, ShardMemory
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.native_step import native_step
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.store import LocalStore
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


@dataclass
class WorkerSide:
    """The worker's side of a port: everything that a port needs of its worker."""

    number: int
    plan: Plan
    learner: Learner
    optimizer: Optimizer
    layout: Layout
    #: Writes gradients as messages; None where they travel as they are.
    encoder: GradientEncoder | None
    #: Waits until the trace has space for another row. To be called before a lock is taken: the process that drains the
    #: trace waits for the locks itself when it takes a checkpoint.
    ensure_trace_space: Callable[[], None]
    #: Writes a row of the trace.
    record: Callable[..., None]
    #: Writes the worker's own state for a checkpoint, with the version that it belongs to.
    write_state: Callable[[int, Callable[[], WorkerState]], None]

    @property
    def seed(self) -> int:
        return self.learner.replica.job.seed

    @property
    def schedule(self) -> Any:
        return self.learner.replica.job.lr_scheduler

    def local_store(self, rule: Rule | Averaging) -> LocalStore:
        """Return a store of the replica's parameters, wherever they lie in every step."""
        step = native_step(self.optimizer)
        return LocalStore(self.learner.replica.parameters, self.optimizer, self.schedule, rule, step)


class ShardPort(ABC):
    """One worker's access to one shard; each kind of server says in a class of its own what a push brings there."""

    #: The user's optimizer over the shard, by which this worker steps it; None where it steps its own replica.
    optimizer: Optimizer | None = None

    def __init__(self, side: WorkerSide, number: int, memory: ShardMemory, lock: Locked) -> None:
        self.side, self.number, self.memory, self.lock = side, number, memory, lock
        #: The version of the shard that this worker computes with.
        self.base = memory.machine.base(memory.integers.current, side.number)
        #: Bytes that the last push moved, both ways.
        self.bytes = 2 * memory.newest.values.nbytes

    @abstractmethod
    def resume(self, resumed: bool, saved: WorkerState | None) -> None:
        """Restore a resumed run; `saved` is this worker's state at the checkpoint, if it was part of the run then."""

    @abstractmethod
    def finalize(self, batch: int, computed: GradientSum) -> list[Tensor | None]:
        """Return what to push of what was computed."""

    @abstractmethod
    def prepare(self, event: Push, gradients: list[Tensor | None]) -> None:
        """Do what a push needs no lock for."""

    @abstractmethod
    def make(self, draft: State, version: int) -> None:
        """Make this version from the newest one, in the slot for it; the worker computes with it from now on."""

    @abstractmethod
    def fetch(self, draft: State) -> None:
        """Compute with the newest version."""

    @abstractmethod
    def begin_part(self) -> None:
        """Prepare for a batch that is the first of another part of the data."""

    @abstractmethod
    def worker_state(self) -> WorkerState:
        """Return the state that is this worker's own, besides the shard."""

    @abstractmethod
    def trained(self) -> list[Tensor]:
        """Return the parameters and moving buffers as far as this worker knows them."""

    def push(self, event: Push, gradients: list[Tensor | None]) -> Action:
        """Push what `finalize` returned, step by step as above, and compute with the outcome from now on."""
        memory, start = self.memory, now()
        # Outside the lock, for which other workers wait.
        self.prepare(event, gradients)  # 1
        self.side.ensure_trace_space()
        with self.lock as waited:
            draft = memory.integers.begin()
            action: Action = memory.machine.handle(draft, event)  # 2
            if isinstance(action, Apply | Held):
                if isinstance(action, Apply):
                    self.make(draft, action.version)  # 3
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
        """Compute with the newest version from now on."""
        memory = self.memory
        with self.lock:
            draft = memory.integers.begin()
            action: Action = memory.machine.handle(draft, event)
            self.fetch(draft)
            memory.integers.commit()
            self.base = memory.machine.base(draft, self.side.number)
        return action

    def values(self) -> list[Tensor]:
        with self.lock:
            return self.trained()
