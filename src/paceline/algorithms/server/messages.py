"""The messages and answers of the machines of a server, and the integers in which they remember it."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

# The answers of a server: each says what the engine must do next.


class Lease(NamedTuple):
    """Compute this batch, which is leased to the worker until it sends Finish or dies."""

    batch: int
    #: Its first owner died, perhaps after some of its pushes.
    again: bool
    #: The shards, in the worker's order, that have its gradient already.
    pushed: int = 0


class Wait(NamedTuple):
    """There is nothing to do yet; ask again when the desk has changed."""


class Done(NamedTuple):
    """Every batch has been applied, so the worker has finished."""


class Apply(NamedTuple):
    """Apply the gradient; the shard is then at `version`. It was computed from version `base`."""

    version: int
    base: int


class Held(NamedTuple):
    """The shard holds the gradient, computed from version `base`, for the others that `version` is made of."""

    version: int
    base: int


class Late(NamedTuple):
    """The gradient was computed from an older version: pull, and compute it again."""


class Drop(NamedTuple):
    """This shard already has the batch (its first owner died half-way through its pushes): apply nothing."""


class Noted(NamedTuple):
    """There is nothing to do."""


Action = Lease | Wait | Done | Apply | Held | Late | Drop | Noted


# The state of a machine: a flat run of integers, owned by the engine.

if TYPE_CHECKING:
    State: TypeAlias = MutableSequence[int] | memoryview[int]  # an array here, shared memory there


# The events of a server: the messages of workers, and deaths.


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
