"""The memory of a server, the desk's and each shard's, and a push: the transaction on a shard.

    integers   the machine's state, then the slots' state, so that one commit changes both
    versions   parameters and optimizer state, one version per slot (`algorithms.server.version_slots`)
    journal    which rows of embedding tables the last versions touched

The memory may be shared by processes, where the integers are a double buffer and a commit is one store, or private
to one process that computes all workers, where a change is valid at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableSequence, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from paceline.algorithms.rules import Averaging, Rule
from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.messages import Action, Apply, Event, Held, Pull, Push
from paceline.algorithms.server.shard import Gathering, Shard
from paceline.algorithms.server.version_slots import ReplicaSlots, VersionSlots
from paceline.plans.plan import Plan
from paceline.runtime.runs.trace import Kind
from paceline.training.gradients.encoder import GradientEncoder
from paceline.training.gradients.learner import Learner
from paceline.training.gradients.native_step import native_step
from paceline.training.gradients.payload import GradientSum
from paceline.training.parameters.layout import Layout
from paceline.training.parameters.optimizers import Optimizer
from paceline.training.parameters.rows import Journal
from paceline.training.parameters.shard_version import ShardVersion, VersionShape
from paceline.training.parameters.store import LocalStore
from paceline.training.parameters.worker_state import WorkerState

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


#: A lock; its value is the nanoseconds that it was waited for.
Locked = AbstractContextManager[int]


class Integers(Protocol):
    """The state of machines, changed all or nothing."""

    @property
    def current(self) -> Any:
        """The valid state."""

    def begin(self) -> Any:
        """A state to change, equal to the valid one."""

    def commit(self) -> None:
        """Make the state that `begin` gave the valid one."""


class PrivateIntegers:
    """Integers that no other process sees: a change is valid at once."""

    def __init__(self, count: int) -> None:
        self.current: MutableSequence[int] = [0] * count

    def begin(self) -> MutableSequence[int]:
        return self.current

    def commit(self) -> None:
        """Do nothing: the change is already valid."""


@dataclass
class DeskMemory:
    """The desk and its integers."""

    desk: Desk
    integers: Integers

    def handle(self, event: Event, lock: Locked) -> tuple[Action, int]:
        """Return the desk's answer, which it gives under its lock, and how many batches are finished then."""
        with lock:
            draft = self.integers.begin()
            action = self.desk.handle(draft, event)
            self.integers.commit()
            # Read under the lock: whichever worker takes it next may already be writing here.
            return action, self.desk.finished(draft)

    @property
    def finished(self) -> int:
        return self.desk.finished(self.integers.current)


@dataclass
class ShardMemory:
    """A shard's machine, its integers and its versions."""

    machine: Shard | Gathering
    slots: VersionSlots | ReplicaSlots
    integers: Integers
    versions: list[ShardVersion]
    journal: Journal
    #: Copies the bytes of a version to those of another slot: (to, from).
    copy: Callable[[Tensor, Tensor], object] = Tensor.copy_

    def init(self, version: int = 0) -> None:
        """Give every worker this version."""
        self.machine.init(self.integers.current, version)
        self.slots.init(self.integers.current)

    @property
    def newest(self) -> ShardVersion:
        return self.versions[self.slots.newest(self.integers.current)]

    @property
    def all_newest(self) -> list[ShardVersion]:
        """The newest version of every replica if each worker has one, else the one newest version."""
        if isinstance(self.slots, VersionSlots):
            return [self.newest]
        return [self.versions[self.slots.newest(self.integers.current, r)] for r in range(self.slots.workers)]


def private_memory(
    shape: VersionShape, machine: Shard | Gathering, slots: type[VersionSlots | ReplicaSlots]
) -> ShardMemory:
    """Make the memory of a shard for this process alone."""
    version_slots = slots(machine.workers, at=machine.ints)
    versions = [ShardVersion(shape, torch.zeros(shape.size, dtype=torch.uint8)) for _ in range(version_slots.count)]
    ints = torch.zeros(Journal.size(shape.heights, version_slots.count), dtype=torch.int64)
    journal = Journal(shape.heights, version_slots.count, ints)
    return ShardMemory(machine, version_slots, PrivateIntegers(machine.ints + version_slots.ints), versions, journal)


def newest_values(memories: Sequence[ShardMemory]) -> list[list[torch.Tensor]]:
    """Return the newest values of all shards; one such list per replica, if the result is the mean of replicas."""
    if isinstance(memories[0].slots, ReplicaSlots):
        return [[version.values] for version in memories[0].all_newest]
    return [[memory.newest.values for memory in memories]]


# A push: the transaction on a shard that every kind of server shares.
#
#     worker                      shard, under its lock
#     ──────                      ─────────────────────
#     1 prepare ───────────────▶  2 the machine answers: Apply, Held, Late or Drop
#                                 3 Apply: the next version is made in a slot that no worker reads
#                                 4 the row of the trace
#     6 compute with it ◀───────  5 commit: one store makes the version the newest
#
# A worker killed before step 5 has changed nothing that others see, and its batch is leased again.


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
