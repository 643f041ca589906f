"""A replica of several workers that is one client of a desk, as the program of each of its workers.

first worker of the replica                      the others                        desk and shards
───────────────────────────                      ──────────                        ───────────────
1 asks for a batch ───────────────────────────────────────────────────────────────▶ leases one
2 assigns it to its replica ────────────────────▶ follow
3 all compute it together, and push, each to the shard of its own place ───────────▶ make their next versions
4 waits until all have pushed ◀────────────────── count it
5 finishes the batch ──────────────────────────────────────────────────────────────▶ leases the next one
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from paceline.algorithms.server.actions import Lease
from paceline.algorithms.server.events import Ask, Finish, Push


class Place(NamedTuple):
    """A worker of a replica."""

    replica: int
    #: Which of the replica's workers it is, and to which shard it pushes.
    number: int

    def push(self, lease: Lease) -> Push:
        return Push(self.replica, self.number, lease.batch, lease.again)


class Assign(NamedTuple):
    """Let all workers of the replica have their lease of this number; None: the training has ended."""

    number: int
    lease: Lease | None


class TakeUp(NamedTuple):
    """Wait for the replica's lease of this number. The answer is the lease."""

    number: int


class Count(NamedTuple):
    """Let the first worker of the replica know that this one has pushed its part of so many leases."""

    pushed: int


class AwaitPushes(NamedTuple):
    """Wait until all workers of the replica have pushed their parts of so many leases."""

    pushed: int


Program = Generator[Any, Any, None]


def share_leases(place: Place, compute: Callable[[Lease], Program]) -> Program:
    """Compute what is leased to the replica, together with its other workers; `compute` ends with the push."""
    count, lease = 0, None
    while True:
        if not place.number:
            if count:
                yield AwaitPushes(count)
            granted = yield Finish(place.replica, lease.batch) if lease else Ask(place.replica)
            yield Assign(count + 1, granted)
        lease = yield TakeUp(count + 1)
        if lease is None:
            return
        yield from compute(lease)
        count += 1
        yield Count(count)
