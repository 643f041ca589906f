"""The answers of a server: each says what the engine must do next."""

from __future__ import annotations

from typing import NamedTuple


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
