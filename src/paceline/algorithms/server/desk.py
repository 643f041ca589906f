"""The parameter server as two machines: the desk assigns batches, each shard counts its versions.

              Ask, Finish                        Push
        worker ------------> desk    worker ------------> shard (one per part of the parameters)
               <------------                <------------
           Lease | Wait | Done              Apply(version, base) | Drop

The invariants, whatever the order of events and whichever workers die:

- every batch is applied exactly once by every shard (`pushed` remembers each worker's last batch: a batch whose
  owner died between two shards is leased again, and dropped by the shards that already have it);
- a batch is leased to at most one living worker;
- the staleness identity: when a worker pulls right after each push, the staleness of all its pushes sums to
  (position of its last push + 1) - (number of its pushes); see `identity_gap`.

State is a flat run of integers owned by the engine (an array here, shared memory there) and changed in place, so a
decision costs a microsecond. An engine that needs changes to be all or nothing under SIGKILL hands in a copy, and
makes it the valid one afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.algorithms.server.gates import Gate
from paceline.algorithms.server.messages import Action, Ask, Death, Done, Event, Finish, Join, Lease, Noted, Wait
from paceline.errors import ProtocolError

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State

NONE = -1  # no batch
DEAD = -2  # no worker


class Desk:
    """Assigns batches 0..batches-1, each to one worker at a time, until every one is finished.

    state: next | finished | orphans | lost | orphan per worker and ghost | lease per worker | lost batch per worker |
    the gate's integers

    An orphan is a batch whose owner died; it stays in the dead owner's cell until another worker takes it. Ghosts are
    owners that died before the run was resumed (`algorithms.server.checkpoint_cut`).
    """

    def __init__(self, workers: int, batches: int, gate: Gate, pending_owners: int = 0, keyed: bool = False) -> None:
        """`keyed`: shards know every batch by its number (`cluster.shard`), not by the worker that pushed it."""
        self.workers, self.batches, self.gate, self.pending_owners, self.keyed = (
            workers,
            batches,
            gate,
            pending_owners,
            keyed,
        )
        #: No batch from this one on is given out for the first time.
        self.until = batches
        self._orphan, self._lease = 4, 4 + workers + pending_owners
        self._lost = self._lease + workers
        self._gate = self._lost + workers
        self.ints = self._gate + gate.ints(workers)

    def init(self, state: State, given_out: int = 0, orphans: Sequence[int] = ()) -> None:
        """Start with no batch given out, or with so many given out, of which all but these orphans are finished."""
        state[0], state[1], state[2], state[3] = given_out, given_out - len(orphans), len(orphans), 0
        for worker in range(self.workers):
            state[self._orphan + worker] = state[self._lease + worker] = state[self._lost + worker] = NONE
        for cell, batch in enumerate(orphans, self._orphan + self.workers):
            state[cell] = batch
        self.gate.init(state, self._gate, self.workers)

    def handle(self, state: State, event: Event) -> Action:
        """Change the state by one event, and return the answer."""
        if isinstance(event, Ask):
            return self._ask(state, event.worker)
        if isinstance(event, Finish):
            lease = self._lease + event.worker
            if state[lease] != event.batch:
                raise ProtocolError(f"{event}, but worker {event.worker} holds {state[lease]}")
            state[lease] = NONE
            state[1] += 1
            if state[3]:
                self._found(state, event.batch)
            self.gate.finished(state, self._gate, event.worker)
            return self._ask(state, event.worker)
        if isinstance(event, Death):
            return self._death(state, event.worker)
        if isinstance(event, Join):
            return self._join(state, event.worker)
        raise ProtocolError(f"the desk has no answer to {event}")

    def _death(self, state: State, worker: int) -> Noted:
        """Mark a worker as dead; its batch becomes an orphan."""
        lease = self._lease + worker
        if state[lease] == DEAD:
            return Noted()
        if state[lease] != NONE:
            self._orphaned(state, worker, state[lease])
        state[lease] = DEAD
        self.gate.died(state, self._gate, worker)
        return Noted()

    def _orphaned(self, state: State, worker: int, batch: int) -> None:
        """Keep a dead worker's batch for another one, in the first free cell."""
        cell = next(c for c in (self._orphan + worker, *range(self._orphan, self._lease)) if state[c] == NONE)
        state[cell] = batch
        state[2] += 1
        if not self.keyed:
            state[self._lost + worker] = batch
            state[3] += 1

    def _join(self, state: State, worker: int) -> Noted | Wait:
        """Take a dead worker's place, but not before the batch that died with it is finished.

        Unless batches are the key, shards know by the dead worker's number which of them have that batch. A push under
        the same number would make them forget it, and apply the batch twice.
        """
        lease = self._lease + worker
        if state[lease] != DEAD:
            raise ProtocolError(f"worker {worker} joins, but it is alive")
        if state[self._lost + worker] != NONE:
            return Wait()
        state[lease] = NONE
        self.gate.joined(state, self._gate, worker)
        return Noted()

    def _found(self, state: State, batch: int) -> None:
        """Note that a batch is finished, which may have been lost with a worker."""
        for cell in range(self._lost, self._lost + self.workers):
            if state[cell] == batch:
                state[cell] = NONE
                state[3] -= 1

    def _ask(self, state: State, worker: int) -> Action:
        """Lease an orphan or the next batch to a worker, if the gate is open."""
        lease = self._lease + worker
        if state[lease] != NONE:
            raise ProtocolError(f"worker {worker} asks, but its cell says {state[lease]}")
        if state[1] == self.batches:
            return Done()
        if not self.gate.open(state, self._gate, worker):
            return Wait()
        if state[2]:
            return self._adopt(state, lease)
        if state[0] < self.until:
            state[lease] = state[0]
            state[0] += 1
            return Lease(state[lease], again=False)
        return Wait()  # the last batches are with others, one of whom may die

    def _adopt(self, state: State, lease: int) -> Lease:
        cell = next(c for c in range(self._orphan, self._lease) if state[c] != NONE)
        state[lease], state[cell] = state[cell], NONE
        state[2] -= 1
        return Lease(state[lease], again=True)

    def retain(self, state: State, worker: int, batch: int) -> bool:
        """Let a worker that has just joined continue with an orphan that it computes; return whether it is one."""
        for cell in range(self._orphan, self._lease):
            if state[cell] == batch:
                state[self._lease + worker], state[cell] = batch, NONE
                state[2] -= 1
                return True
        return False

    @property
    def places(self) -> tuple[int, int]:
        """Where the state says which worker has leased which batch, and where the gate's integers begin."""
        return self._lease, self._gate

    def leased(self, state: State) -> list[int]:
        """Return the batch of each worker, NONE or DEAD."""
        return list(state[self._lease : self._lease + self.workers])

    def given_out(self, state: State) -> int:
        return state[0]

    def under_way(self, state: State) -> list[int]:
        """Return the batches that were given out and that no worker has finished yet."""
        return sorted(batch for batch in state[self._orphan : self._lost] if batch >= 0)

    def finished(self, state: State) -> int:
        return state[1]

    def all_out(self, state: State) -> bool:
        """Return whether every batch is with a worker or finished: no worker gets one before a death or the end."""
        return state[0] == self.batches and not state[2] and state[1] < self.batches

    def key(self, state: State) -> tuple[int, ...]:
        return tuple(state[: self.ints])
