"""The worker's side of a parameter server, as programs: each yields commands, and is sent their answers.

A worker starts with version 0 of every shard and pulls a shard's newest parameters with each push (Downpour with
n_fetch = n_push = 1):

    Ask --Lease--> Compute --> Push to every shard, starting at another one each --> Finish --Lease--> Compute --> ...

Where the shard gathers the gradients of a version, a push may be too late, and the batch is computed again:

    Ask --Lease--> Pull --> Compute --> Push --> Finish --Lease--> Pull --> ...
                    ^---------Late-------+

A worker that takes a dead one's place first joins and pulls every shard.

Who runs a program answers Ask and Finish by a Lease, however long the gate made the worker wait for it, or by None when
every batch has been applied; Compute by the lease whose gradient the worker then has: generated code may have finished
some batches and begun another one in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from paceline.algorithms.server.messages import Ask, Command, Compute, Finish, Join, Late, Lease, Pull, Push

Program = Generator[Command, Any, None]


class Client(NamedTuple):
    """A worker, as servers know it."""

    number: int
    shards: int
    #: It takes the place of a worker that died.
    joins: bool = False

    @property
    def order(self) -> list[int]:
        """The shards, starting at another one for each worker: in a round they do not queue for the same lock."""
        return [(self.number + shard) % self.shards for shard in range(self.shards)]


def push_every_batch(client: Client) -> Program:
    """Compute the gradient of every batch that is leased, and push it to every shard."""
    worker = client.number
    yield from _join(client)
    lease: Lease | None = yield Ask(worker)
    while lease is not None:
        lease = yield Compute(worker, lease)
        for shard in client.order[lease.pushed :]:
            yield Push(worker, shard, lease.batch, lease.again)
        lease = yield Finish(worker, lease.batch)


def push_in_rounds(client: Client) -> Program:
    """Compute the gradient of every batch that is leased, again and again until it is in time for a version."""
    worker = client.number
    yield from _join(client)
    lease: Lease | None = yield Ask(worker)
    while lease is not None:
        answer: object = Late()
        while isinstance(answer, Late):
            yield Pull(worker, 0)
            yield Compute(worker, lease)
            answer = yield Push(worker, 0, lease.batch, lease.again)
        lease = yield Finish(worker, lease.batch)


def _join(client: Client) -> Program:
    """Take a dead worker's place, and begin with the newest version of every shard."""
    if client.joins:
        yield Join(client.number)
        for shard in client.order:
            yield Pull(client.number, shard)


# A replica of several workers that is one client of a desk, as the program of each of its workers.
# first worker of the replica                      the others                        desk and shards
# ───────────────────────────                      ──────────                        ───────────────
# 1 asks for a batch ───────────────────────────────────────────────────────────────▶ leases one
# 2 assigns it to its replica ────────────────────▶ follow
# 3 all compute it together, and push, each to the shard of its own place ───────────▶ make their next versions
# 4 waits until all have pushed ◀────────────────── count it
# 5 finishes the batch ──────────────────────────────────────────────────────────────▶ leases the next one


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


ReplicaProgram = Generator[Any, Any, None]


def share_leases(place: Place, compute: Callable[[Lease], ReplicaProgram]) -> ReplicaProgram:
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
