"""A shard of a parameter server as a machine: it counts the versions of its part of the parameters.

Push of a batch it lacks     Apply: the gradient makes the next version
Push of a batch it has       Drop: its first owner died half-way through its pushes
Pull                         the worker holds the newest version from now on
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.algorithms.server.desk import NONE
from paceline.algorithms.server.messages import Apply, Drop, Held, Late, Noted, Pull, Push

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class Taken(NamedTuple):
    """A push that a shard applied, recorded so that invariants can be checked afterwards."""

    worker: int
    #: The version that it was computed from.
    base: int
    #: The worker joined late.
    joined: bool = False


class Shard:
    """Counts the versions of one part of the parameters and refuses what it already has.

    state: version | base per worker (the version it holds) | last batch pushed per worker and ghost
    """

    #: Gradients that are kept until a version is made of them: none, since each push makes one.
    slots = 0

    def __init__(self, workers: int, pending_owners: int = 0) -> None:
        self.workers, self.pending_owners = workers, pending_owners
        self._pushed = 1 + workers
        self.ints = self._pushed + workers + pending_owners

    def init(self, state: State, version: int = 0, pushed: Sequence[int] = ()) -> None:
        """Start every worker from this version; `pushed` is the batch that each ghost has pushed here, or NONE."""
        state[0] = version
        for worker in range(self.workers):
            state[1 + worker] = version
            state[self._pushed + worker] = NONE
        for ghost, batch in enumerate(pushed, self._pushed + self.workers):
            state[ghost] = batch

    def handle(self, state: State, event: Push | Pull) -> Apply | Drop | Noted:
        """Change the state by one event, and return the answer."""
        if isinstance(event, Pull):
            state[1 + event.worker] = state[0]
            return Noted()
        # Only a batch that was leased before can be here already, so no other push searches for it.
        if event.again and self.has(state, event.batch):
            return Drop()
        base = state[1 + event.worker]
        state[0] += 1
        state[1 + event.worker] = state[0]
        self.note(state, event.worker, event.batch)
        return Apply(state[0], base)

    def note(self, state: State, worker: int, batch: int) -> None:
        """Note that this worker has pushed this batch."""
        state[self._pushed + worker] = batch

    def has(self, state: State, batch: int) -> bool:
        """Return whether a batch that is under way was pushed here."""
        return batch in list(state[self._pushed : self.ints])

    def held(self, state: State) -> list[int]:
        """Return the batches that were pushed and are in no version yet."""
        return []

    def base(self, state: State, worker: int) -> int:
        """Return the version that this worker holds."""
        return state[1 + worker]

    def fault(self, pushes: Sequence[Taken], version: int) -> str | None:
        """Describe what is wrong with these pushes, in their order, if the shard is then at `version`; else None."""
        if version != len(pushes):
            return f"it is at version {version} after {len(pushes)} pushes"
        if gap := identity_gap(pushes):
            return f"the staleness identity is off by {gap}"
        return None

    def past(self, pushes: Sequence[Taken]) -> Hashable:
        """Return what is equal for pushes without a fault after which the same further ones have one."""
        return frozenset({push.worker: position for position, push in enumerate(pushes)}.items())

    def key(self, state: State, finished: Collection[int] = ()) -> tuple[int, ...]:
        """Return what its answers depend on; whether it has a batch that is finished is asked no more."""
        return *state[: self._pushed], *(
            NONE if batch in finished else batch for batch in state[self._pushed : self.ints]
        )


def identity_gap(pushes: Sequence[Taken]) -> int:
    """Return the sum of staleness minus the sum that the identity predicts, for one shard's pushes in their order.

    When every worker pulls right after each push, its staleness sums to
    (position of its last push + 1) - (version it started from) - (number of its pushes).
    A worker that joined late started from the base of its first push; all others from version 0.
    """
    staleness = sum(position - base for position, (_, base, *_) in enumerate(pushes))
    last = {push.worker: position for position, push in enumerate(pushes)}
    starts = {push.worker: push.base for push in reversed(pushes) if push.joined}
    return staleness - (sum(position + 1 - starts.get(w, 0) for w, position in last.items()) - len(pushes))


# A shard that makes a version only of enough gradients that were all computed from the version before.
#                   Push            too old     Late: the worker pulls and computes its share again
#         worker ---------> shard   fresh       Held: the shard holds it until the round is full
#                                   the last    Apply: the sum of all that are held is the next version
#
# Each gradient is in a slot. A worker that pushes leaves its slot to the round and takes the free one of the round for
# its next gradient, so slots are written before the lock is taken, and a round whose last contributor is killed while
# it sums still has all the others.
#
#     slots of worker 0, worker 1 | of the round      0 1 | 2 3
#     worker 1 is the first to push                   0 2 | 1 3


class Contribution(NamedTuple):
    """A gradient that a round holds."""

    batch: int
    slot: int


class Gathering:
    """Counts the versions of a shard, each of `needed` gradients.

    state: version | per worker: base, last batch pushed, slot | held | per gradient of the round: batch, slot
    """

    def __init__(self, workers: int, needed: int) -> None:
        self.workers, self.needed = workers, needed
        self._base, self._pushed, self._slot, self._held = 1, 1 + workers, 1 + 2 * workers, 1 + 3 * workers
        self._batches, self._slots = self._held + 1, self._held + 1 + needed
        self.ints = self._slots + needed
        #: Gradients that are kept: the next one of each worker, and those of the round.
        self.slots = workers + needed

    def init(self, state: State, version: int = 0, pushed: Sequence[int] = ()) -> None:
        """Start every worker from this version. `pushed` is not used: a held gradient is lost with its round."""
        state[0], state[self._held] = version, 0
        for worker in range(self.workers):
            state[self._base + worker], state[self._pushed + worker] = version, NONE
            state[self._slot + worker] = worker
        for number in range(self.needed):
            state[self._batches + number], state[self._slots + number] = NONE, self.workers + number

    def handle(self, state: State, event: Push | Pull) -> Apply | Drop | Held | Late | Noted:
        """Change the state by one event, and return the answer."""
        worker = event.worker
        if isinstance(event, Pull):
            state[self._base + worker] = state[0]
            return Noted()
        if event.again and self.has(state, event.batch):
            return Drop()
        base = state[self._base + worker]
        if base != state[0]:
            return Late()
        self._hold(state, worker, event.batch)
        if state[self._held] < self.needed:
            return Held(base + 1, base)
        state[0] = state[self._base + worker] = base + 1
        state[self._held] = 0
        return Apply(base + 1, base)

    def _hold(self, state: State, worker: int, batch: int) -> None:
        count, worker_slot = state[self._held], self._slot + worker
        free = self._slots + count
        state[worker_slot], state[free] = state[free], state[worker_slot]
        state[self._batches + count] = state[self._pushed + worker] = batch
        state[self._held] = count + 1

    def has(self, state: State, batch: int) -> bool:
        """Return whether a batch that is under way was pushed here."""
        return batch in list(state[self._pushed : self._slot])

    def held(self, state: State) -> list[int]:
        """Return the batches that were pushed and are in no version yet."""
        return list(state[self._batches : self._batches + state[self._held]])

    def base(self, state: State, worker: int) -> int:
        return state[self._base + worker]

    def slot(self, state: State, worker: int) -> int:
        """Return the slot for this worker's next gradient."""
        return state[self._slot + worker]

    def full_round(self, state: State) -> list[Contribution]:
        """The contributions that the newest version is made of, in the order of their batches, right after Apply."""
        batches, slots = state[self._batches : self._slots], state[self._slots : self._slots + self.needed]
        return sorted(map(Contribution, batches, slots))

    def fault(self, pushes: Sequence[Taken], version: int) -> str | None:
        for number, (worker, base, _) in enumerate(pushes):
            if base != number // self.needed:
                return f"push {number}, of worker {worker}, was computed from version {base}: too old for its round"
        if version != len(pushes) // self.needed:
            return f"it is at version {version} after {len(pushes)} pushes, {self.needed} to a version"
        return None

    def past(self, pushes: Sequence[Taken]) -> Hashable:
        """Return what is equal for pushes without a fault after which the same further ones have one."""
        return len(pushes)

    def key(self, state: State, finished: Collection[int] = ()) -> tuple[int, ...]:
        """Return what its answers depend on: a version that is not the newest is too old, whichever it is.

        It is the same in which slots gradients lie, and whether it has a batch that is finished.
        """
        version, bases = state[0], state[self._base : self._pushed]
        pushed = (NONE if batch in finished else batch for batch in state[self._pushed : self._slot])
        return version, *(base == version for base in bases), *pushed, state[self._held]
