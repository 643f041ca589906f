"""What a server answers: what the engine must now do."""

from __future__ import annotations

from typing import NamedTuple


class Lease(NamedTuple):
    """Compute this batch. It stays the worker's until it says Finish or dies."""

    batch: int
    again: bool  # its first owner died, perhaps after some of its pushes


class Wait(NamedTuple):
    """Nothing to do yet; ask again when something has changed."""


class Done(NamedTuple):
    """Every batch has been applied: go home."""


class Apply(NamedTuple):
    """Apply the gradient; the shard is then at `version`. It was computed from version `base`."""

    version: int
    base: int


class Held(NamedTuple):
    """The gradient, computed from version `base`, waits at the shard for the others that `version` is made of."""

    version: int
    base: int


class Late(NamedTuple):
    """The gradient was computed from an older version: pull, and compute it again."""


class Drop(NamedTuple):
    """This shard already has the batch (its first owner died half-way through its pushes): apply nothing."""


class Noted(NamedTuple):
    """Nothing to do."""


Action = Lease | Wait | Done | Apply | Held | Late | Drop | Noted
