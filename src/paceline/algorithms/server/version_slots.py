"""Slots for versions in memory that several workers share, so that nothing has to be undone when one is killed.

**VersionSlots** of a shard: one for each worker, and a spare.

A worker computes with the version in its own slot. The next version is made in a slot that no worker reads: in the
pusher's own slot, since its gradient is ready and it will not compute with the old version again; in the spare slot
if the newest version is in its own, because that must stay whole until the next one is.

    push by     slots 0 1 2 | newest    makes the next in
    worker 0          a b .   b (1)     its own slot 0, from 1
    worker 0          c b .   c (0)     the spare slot 2, from 0; slot 0 is then the spare

No worker reads the slot that a killed worker was changing.

**ReplicaSlots** hold a replica per worker that other workers may change, in three slots each. One holds the newest
version; the owner may still compute with an older one in another; the next version is made in the third.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class VersionSlots:
    """The slots of a shard's versions.

    state, from `at`: the newest version's slot | the spare slot | the slot of each worker
    """

    def __init__(self, workers: int, at: int = 0) -> None:
        self.workers, self.at = workers, at
        self.count, self.ints = workers + 1, workers + 2

    def init(self, state: State) -> None:
        """Start with version 0 in every slot."""
        state[self.at] = state[self.at + 1] = self.workers
        for worker in range(self.workers):
            state[self.at + 2 + worker] = worker

    def move(self, state: State, worker: int) -> tuple[int, int]:
        """Return (the newest version's slot, the slot for this worker's next version), which is then the newest."""
        at, worker_slot = self.at, self.at + 2 + worker
        source, target = state[at], state[worker_slot]
        # The newest version must stay whole until the next one is: a killed worker leaves a half-made one in its slot.
        if target == source:
            target = state[at + 1]
            state[at + 1] = source
        state[at] = state[worker_slot] = target
        return source, target

    def fetch(self, state: State, worker: int) -> tuple[int, int]:
        """Return (the newest version's slot, the slot for this worker's copy of it), which may be the same."""
        return state[self.at], state[self.at + 2 + worker]

    def of(self, state: State, worker: int) -> int:
        """Return the slot of the version that this worker holds."""
        return state[self.at + 2 + worker]

    def newest(self, state: State) -> int:
        return state[self.at]


class ReplicaSlots:
    """The slots of every worker's replica.

    state, from `at`: per replica, the newest version's slot | the slot that its owner computes with
    """

    def __init__(self, workers: int, at: int = 0) -> None:
        self.workers, self.at = workers, at
        self.count, self.ints = 3 * workers, 2 * workers

    def init(self, state: State) -> None:
        for replica in range(self.workers):
            state[self.at + 2 * replica] = state[self.at + 2 * replica + 1] = 3 * replica

    def move(self, state: State, replica: int) -> tuple[int, int]:
        """Return (the newest version's slot, the slot for the next one), with which its owner then computes."""
        source, spare = state[self.at + 2 * replica], state[self.at + 2 * replica + 1]
        target = spare if spare != source else self._free(state, replica)
        state[self.at + 2 * replica] = state[self.at + 2 * replica + 1] = target
        return source, target

    def change(self, state: State, replica: int) -> tuple[int, int]:
        """Return (the newest version's slot, the slot for one that another worker makes); the owner keeps its own."""
        source, target = state[self.at + 2 * replica], self._free(state, replica)
        state[self.at + 2 * replica] = target
        return source, target

    def of(self, state: State, replica: int) -> int:
        """Return the slot that the owner of this replica computes with."""
        return state[self.at + 2 * replica + 1]

    def newest(self, state: State, replica: int = 0) -> int:
        return state[self.at + 2 * replica]

    def _free(self, state: State, replica: int) -> int:
        occupied = (state[self.at + 2 * replica], state[self.at + 2 * replica + 1])
        return next(slot for slot in range(3 * replica, 3 * replica + 3) if slot not in occupied)
