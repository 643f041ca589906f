"""Gates decide which workers may start another batch.

The desk calls `open` before each lease, and reports every finished batch, death and join.

One class per published method. A gate keeps its integers at `state[at:]`; it never sees a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class Gate(Protocol):
    """The interface of every gate."""

    def ints(self, workers: int) -> int:
        """Return the number of integers that the gate keeps."""

    def init(self, state: State, at: int, workers: int) -> None: ...

    def open(self, state: State, at: int, worker: int) -> bool:
        """Return whether this worker may start another batch now."""

    def finished(self, state: State, at: int, worker: int) -> None: ...

    def died(self, state: State, at: int, worker: int) -> None: ...

    def joined(self, state: State, at: int, worker: int) -> None:
        """Another worker takes the place of a dead one."""


@dataclass(frozen=True)
class Asynchronous:
    """The asynchronous gate: always open.

    Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012 (Downpour SGD); the same gate is used by Hogwild
    and, under the name "total asynchronous parallel", in Petuum. Staleness is not bounded: with P equal workers it is
    about P - 1, with unequal ones a slow worker's may be anything. Not to be confused with stale-synchronous (a bound),
    nor with gradient accumulation (no staleness at all).

    Opens for every worker at any time.
    """

    def ints(self, workers: int) -> int:
        return 0

    def init(self, state: State, at: int, workers: int) -> None:
        pass

    def open(self, state: State, at: int, worker: int) -> bool:
        return True

    def finished(self, state: State, at: int, worker: int) -> None:
        pass

    def died(self, state: State, at: int, worker: int) -> None:
        pass

    def joined(self, state: State, at: int, worker: int) -> None:
        pass


DEAD = -1


@dataclass(frozen=True)
class StaleSynchronous:
    """The stale-synchronous gate: no worker may be more than `bound` batches ahead of the slowest.

    Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NeurIPS 2013 (SSP). A
    worker's clock counts the batches it has finished; it may start another while

        its clock - the slowest living worker's clock  <=  bound

    so the computations that run at one time are at most `bound` clocks apart. With bound 0 the workers keep step, but
    each still pushes its own batch: that equals a synchronous plan only for plain SGD with the sizes and learning rates
    matched. Not to be confused with a bound on staleness, which counts updates: P workers that are s clocks apart may
    make up to (P - 1)(2s + 1) of them between a pull and its push.

    A worker that died has no clock, so no worker waits for it.

    Opens for workers within `bound` batches of the slowest living one.

    state: workers | a clock per worker, or DEAD
    """

    bound: int = 3

    def ints(self, workers: int) -> int:
        return 1 + workers

    def init(self, state: State, at: int, workers: int) -> None:
        state[at] = workers
        for worker in range(workers):
            state[at + 1 + worker] = 0

    def open(self, state: State, at: int, worker: int) -> bool:
        clocks = state[at + 1 : at + 1 + state[at]]
        return clocks[worker] - min(clock for clock in clocks if clock != DEAD) <= self.bound

    def finished(self, state: State, at: int, worker: int) -> None:
        state[at + 1 + worker] += 1

    def died(self, state: State, at: int, worker: int) -> None:
        state[at + 1 + worker] = DEAD

    def joined(self, state: State, at: int, worker: int) -> None:
        """Start as far as the slowest worker, so that no worker waits for what the new one has not done."""
        living = [clock for clock in state[at + 1 : at + 1 + state[at]] if clock != DEAD]
        state[at + 1 + worker] = min(living, default=0)


WORKERS, ROUND, FINISHED, FREE = 0, 1, 2, 3


@dataclass(frozen=True)
class Backup:
    """The gate with backup workers: a round ends when the first n of all workers have pushed their gradient.

    Chen et al., "Revisiting distributed synchronous SGD", ICLR workshop 2016. Of n + b workers that compute from the
    same parameters the n fastest make the update, so that up to b stragglers delay no worker. A worker that has pushed
    waits for the end of the round; one that is too late pulls and computes its share again
    (`algorithms.server.shard`), so no gradient is stale and, unlike in the paper, no sample is left out. With b = 0
    it is the synchronous plan.

    If too few workers are left to end the round, as after a death, workers that have pushed may push again. Not to be
    confused with stale-synchronous, where the slow workers are waited for and every gradient counts.

    Opens for a worker that has not pushed in this round, or if the round lacks workers.

    state: workers | the round | finished in it | the round that each worker is free for, or DEAD
    """

    needed: int

    def ints(self, workers: int) -> int:
        return FREE + workers

    def init(self, state: State, at: int, workers: int) -> None:
        state[at + WORKERS] = workers
        for cell in range(at + ROUND, at + FREE + workers):
            state[cell] = 0

    def open(self, state: State, at: int, worker: int) -> bool:
        number, free = state[at + ROUND], state[at + FREE : at + FREE + state[at + WORKERS]]
        if free[worker] <= number:
            return True
        to_come = sum(DEAD < other <= number for other in free)
        return state[at + FINISHED] + to_come < self.needed

    def finished(self, state: State, at: int, worker: int) -> None:
        state[at + FREE + worker] = state[at + ROUND] + 1
        state[at + FINISHED] += 1
        if state[at + FINISHED] == self.needed:
            state[at + ROUND] += 1
            state[at + FINISHED] = 0

    def died(self, state: State, at: int, worker: int) -> None:
        state[at + FREE + worker] = DEAD

    def joined(self, state: State, at: int, worker: int) -> None:
        state[at + FREE + worker] = state[at + ROUND]
