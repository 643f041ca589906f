"""What can happen to a server: the words a worker says to it, and the news of a death."""

from __future__ import annotations

from typing import NamedTuple


class Ask(NamedTuple):
    """A worker wants a batch: its first, or again after Wait."""

    worker: int


class Compute(NamedTuple):
    """A worker computes the gradient of its batch. It concerns nobody else: no machine hears of it."""

    worker: int
    batch: int


class Push(NamedTuple):
    """A worker brings the gradient of `batch` to one shard, and pulls that shard's newest parameters."""

    worker: int
    shard: int
    batch: int
    again: bool = False  # the batch was leased before, to a worker that died


class Pull(NamedTuple):
    """A worker wants a shard's newest parameters, without bringing anything."""

    worker: int
    shard: int


class Finish(NamedTuple):
    """A worker has pushed `batch` to every shard, and wants its next one."""

    worker: int
    batch: int


class Death(NamedTuple):
    """A worker is dead. A worker that takes its place says `Join` first."""

    worker: int


class Join(NamedTuple):
    """A worker that joins late wants to take the place of a dead one."""

    worker: int


Command = Ask | Pull | Compute | Push | Finish | Join
Event = Ask | Pull | Push | Finish | Death | Join
