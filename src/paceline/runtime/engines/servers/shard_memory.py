"""The memory of a server: the desk's integers, and for each shard its integers, versions and journal.

    integers   the machine's state, then the slots' state, so that one commit changes both
    versions   parameters and optimizer state, one version per slot (`algorithms.server.version_slots`)
    journal    which rows of embedding tables the last versions touched

The memory may be shared by processes, where the integers are a double buffer and a commit is one store, or private
to one process that computes all workers, where a change is valid at once.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.messages import Action, Event
from paceline.algorithms.server.shard import Gathering, Shard
from paceline.algorithms.server.version_slots import ReplicaSlots, VersionSlots
from paceline.training.parameters.rows import Journal
from paceline.training.parameters.shard_version import ShardVersion, VersionShape

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
