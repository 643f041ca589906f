"""The events of a server: the messages of workers, and deaths."""

from __future__ import annotations

from typing import NamedTuple

from paceline.algorithms.server.actions import Lease


class Ask(NamedTuple):
    """A worker wants a batch: its first, or again after Wait."""

    worker: int


class Compute(NamedTuple):
    """A worker computes the gradient of the batch that is leased to it. No machine handles this command."""

    worker: int
    lease: Lease


class Push(NamedTuple):
    """A worker pushes the gradient of `batch` to one shard, and pulls that shard's newest parameters."""

    worker: int
    shard: int
    batch: int
    #: The batch was leased before, to a worker that died.
    again: bool = False


class Pull(NamedTuple):
    """A worker wants a shard's newest parameters without pushing a gradient."""

    worker: int
    shard: int


class Finish(NamedTuple):
    """A worker has pushed `batch` to every shard, and wants its next one."""

    worker: int
    batch: int


class Death(NamedTuple):
    """A worker is dead. A worker that takes its place sends `Join` first."""

    worker: int


class Join(NamedTuple):
    """A worker that joins late wants to take the place of a dead one."""

    worker: int


Command = Ask | Pull | Compute | Push | Finish | Join
Event = Ask | Pull | Push | Finish | Death | Join
